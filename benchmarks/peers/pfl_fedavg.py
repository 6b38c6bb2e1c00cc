"""pfl-research: federated averaging in its simulated backend, one process."""

from __future__ import annotations

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.peers.work import BATCH, RATE, Work, arguments, load


class Classifier(nn.Module):
    """The model with the two methods pfl asks for."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.network = work.model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)
        return logits

    def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        return nn.functional.cross_entropy(self(images), labels)

    def metrics(self, images: Tensor, labels: Tensor, eval: bool = False) -> dict[str, Any]:
        return {"loss": Weighted(float(self.loss(images, labels)) * len(labels), len(labels))}


def main() -> None:
    work = load(arguments())
    network = Classifier(work)
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )

    def user(number: int) -> Dataset:
        images, labels = work.shards[number]
        order = torch.randperm(len(labels))
        return Dataset(raw_data=[images[order], labels[order]], user_id=str(number))

    sampler = get_user_sampler("minimize_reuse", list(range(len(work.shards))))
    backend = SimulatedBackend(training_data=FederatedDataset(user, sampler), val_data=None)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.per_round,
            val_cohort_size=None,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
    )


if __name__ == "__main__":
    main()

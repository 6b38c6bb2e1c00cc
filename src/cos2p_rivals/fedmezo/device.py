"""FedMeZO on the device: zeroth-order steps instead of epochs of gradients, and what they cost and weigh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cos2p import ElasticTransformer, SubmodelSpec
from cos2p.methods import (
    Batch,
    Learned,
    Ledger,
    LocalSettings,
    Settings,
    TaskContract,
    TaskFlops,
    TensorForm,
    Trainer,
    TrainingError,
    Update,
    UpdateRefused,
    forward_flops,
    forward_memory,
    trained_shapes,
)
from cos2p_rivals.fedmezo.steps import step
from cos2p_rivals.sizes import FLOAT

STEP_BYTES = 12
"""On the wire a step is its seed (8 bytes) and η·g (4 bytes)."""


LARGEST_SEED = 2**62


class StepSettings(Settings):
    """How a device looks and what it sends: the recipe's, and a part of every task."""

    epsilon: float = Field(default=1e-3, gt=0, description="ε of the two forward passes, 1e-4 to 1e-2.")
    wire: Literal["tensors", "seeds"] = Field(
        default="tensors", description="What comes back: `tensors`, or `seeds` with 12 bytes a step."
    )


class MezoSettings(LocalSettings, StepSettings):
    """`optimizer` and `epochs` do not matter here: plain steps, as many as `steps` says."""

    steps: int = Field(default=30, ge=1, description="Steps of a task.")


class MezoContract(TaskContract):
    """Forward passes alone; tensors or seeds go back."""

    settings: MezoSettings

    def answer(self, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
        return {} if self.settings.wire == "seeds" else super().answer(spec)

    def upload(self) -> int:
        return STEP_BYTES * self.settings.steps + FLOAT if self.settings.wire == "seeds" else super().upload()

    def extra_tensors(self, spec: SubmodelSpec) -> Mapping[str, TensorForm]:
        """Seeds and scales as the server can replay them; what decays follows from the order."""
        if self.settings.wire != "seeds":
            return {}
        decay, steps = self.decay(), self.settings.steps
        return {
            "seeds": TensorForm((steps,), torch.int64, 0, LARGEST_SEED, shorter=True),
            "scales": TensorForm((steps,), shorter=True),
            "decay": TensorForm((), low=decay, high=decay),
        }

    def decay(self) -> float:
        """By how much of itself a weight shrinks in a step, as it travels."""
        return float(torch.tensor(self.order.lr * self.settings.weight_decay, dtype=torch.float32))

    def check(self, update: Update, max_rms: float) -> None:
        """The sum of c·z has a root mean square of about √Σc²."""
        if self.settings.wire != "seeds":
            return
        seeds, scales = update.extras["seeds"], update.extras["scales"]
        if len(seeds) != len(scales):
            raise UpdateRefused(f"it names {len(seeds)} seeds and {len(scales)} steps")
        if float(torch.linalg.vector_norm(scales.double())) > max_rms:
            raise UpdateRefused(f"its steps add up to more than a root mean square of {max_rms:.3g}")

    def flops(self, samples: int, test_samples: int) -> TaskFlops:
        """Two forward passes a step, and the test of the personal submodel."""
        per_epoch = -(-max(1, samples) // self.settings.batch)
        seen = self.settings.steps * samples / per_epoch  # samples in all: an epoch's last batch may be short
        return TaskFlops(training=(2 * seen + test_samples) * forward_flops(self.config, self.order.spec))

    def memory(self, samples: int) -> Ledger:
        """The weights twice, with tensors a third time (the update), and either one z or the activations of one block;
        no gradient, no optimiser, no graph."""
        config, spec = self.config, self.order.spec
        z = FLOAT * max(map(math.prod, trained_shapes(config, spec).values()))
        # the weights as they came stay, for the difference
        copies = 3 if self.settings.wire == "tensors" else 2
        return forward_memory(config, spec, self.settings, samples, copies=copies, between=z)


class MezoTrainer(Trainer):
    name: ClassVar[str] = "mezo"
    contract_type = MezoContract
    settings_type = MezoSettings
    contract: MezoContract
    settings: MezoSettings

    def build(self, spec: SubmodelSpec) -> ElasticTransformer:
        return super().build(spec).requires_grad_(False)

    @torch.no_grad()
    def fit(self) -> float:
        """The steps, noted in `taken`. Returns the mean of their losses."""
        settings, weights, losses = self.settings, dict(self.model.named_parameters()), []
        self.taken: list[tuple[int, float]] = []
        for rows in islice(self.batches(epochs=settings.steps), settings.steps):
            loss_now = partial(self._loss_now, self.batch(rows))
            seed = int(torch.randint(LARGEST_SEED, (), generator=self.rng))
            rates = settings.epsilon, self.order.lr, settings.weight_decay
            taken, loss = step(weights, loss_now, seed, *rates)
            if math.isfinite(taken):
                self.taken.append((seed, taken))
                losses.append(loss)
        if not losses:
            raise TrainingError(
                f"no step had a finite loss; lower training.lr (now {self.order.lr:g} after the method's factor)"
            )
        return sum(losses) / len(losses)

    def _loss_now(self, batch: Batch) -> Tensor:
        return self.loss(self.forward(batch), batch)

    def end(self) -> Learned:
        report = {"steps": float(len(self.taken))}
        if self.settings.wire == "tensors":
            end = dict(self.model.named_parameters())
            return Learned({name: tensor - end[name] for name, tensor in self.start.items()}, report=report)
        extras = {
            "seeds": torch.tensor([seed for seed, _ in self.taken], dtype=torch.int64),
            "scales": torch.tensor([taken for _, taken in self.taken], dtype=torch.float32),
            "decay": torch.tensor(self.contract.decay(), dtype=torch.float32),
        }
        return Learned({}, extras, report)

"""FedLab: its serial trainer and synchronous server, which run in one process."""

# ruff: noqa: E402 (modules that FedLab asks for must be there before it is imported)

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

# Imported by FedLab's data sets of images, none of which is used here.
sys.modules |= {name: ModuleType(name) for name in ("torchvision", "torchvision.transforms")}
sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.work import BATCH, RATE, arguments, load


class Shards:
    """FedLab's idea of a federated data set."""

    def __init__(self, shards: list[Any]) -> None:
        self.sets = [TensorDataset(images, labels) for images, labels in shards]

    def get_dataloader(self, client: int, batch: int) -> DataLoader[Any]:
        return DataLoader(self.sets[client], batch, shuffle=True)


class Silent(StandalonePipeline):  # type: ignore[misc]
    def evaluate(self) -> None:
        """Nobody is evaluated in this benchmark."""


def main() -> None:
    work = load(arguments())
    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.ERROR)
    devices = len(work.shards)
    trainer = SGDSerialClientTrainer(work.model, devices, logger=quiet)
    trainer.setup_dataset(Shards(work.shards))
    trainer.setup_optim(1, BATCH, RATE)
    server = SyncServerHandler(work.model, work.rounds, work.per_round / devices, logger=quiet)
    Silent(server, trainer).main()


if __name__ == "__main__":
    main()

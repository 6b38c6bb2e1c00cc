"""What every peer is given: the shards as tensors, the first weights, the model. Written by `benchmarks.simulator`.

Runs in the peers' environment, where of cos2p only the model is imported.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cos2p.models.sizes import model_config
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer

BATCH, RATE = 8, 0.05


class LastExit(nn.Module):
    """vit-nano with one answer: the logits of its last exit."""

    def __init__(self) -> None:
        super().__init__()
        config = model_config("vit-nano")
        self.inner = ElasticTransformer(config, SubmodelSpec.full(config))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.inner(images)[-1]
        return logits


@dataclass(frozen=True, eq=False)
class Work:
    shards: list[tuple[Tensor, Tensor]]
    """Images and labels of every device."""
    model: LastExit
    rounds: int
    per_round: int
    workers: int


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--per-round", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()


def load(options: argparse.Namespace) -> Work:
    torch.set_num_threads(1)
    stored = torch.load(options.file, weights_only=True)
    network = LastExit()
    network.inner.load(stored["weights"])
    return Work(stored["shards"], network, options.rounds, options.per_round, options.workers)

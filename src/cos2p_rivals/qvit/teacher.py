"""Q-ViT's teacher: the model as it came, in full precision, asked once about every training sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cos2p.methods import Shard, place
from cos2p_rivals.qvit.model import QuantTransformer


@dataclass(frozen=True)
class Teacher:
    """Outputs of the model as it came for every training sample."""

    answers: Tensor
    queries: list[Tensor]
    """For every block with heads: (samples, heads, tokens, head size), 16 bits."""
    keys: list[Tensor]
    accuracy: float

    def batch(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [(q[rows].float(), k[rows].float()) for q, k in zip(self.queries, self.keys, strict=True)]


@torch.no_grad()
def ask(model: QuantTransformer, shard: Shard, batch: int, remember: bool) -> Teacher:
    """One pass in full precision; queries and keys only if they are to be remembered."""
    model.quantized = False
    answers: list[Tensor] = []
    seen: list[list[tuple[Tensor, Tensor]]] = []
    for rows in torch.arange(len(shard.train)).split(batch):
        answers.append(model(place(shard.inputs(shard.train, rows), model.device))[-1].argmax(-1))
        seen.append([(q.half(), k.half()) for q, k in model.seen] if remember else [])
    model.quantized, model.seen = True, []
    said = torch.cat(answers)
    blocks = range(len(seen[0]))
    return Teacher(
        said,
        [torch.cat([part[i][0] for part in seen]) for i in blocks],
        [torch.cat([part[i][1] for part in seen]) for i in blocks],
        float((said == place(shard.train.labels, said.device)).float().mean()),
    )


def gram(x_BNTH: Tensor) -> Tensor:
    """x·xᵀ/√d_h of every sample and head, divided by its norm."""
    g_BNTT: Tensor = x_BNTH @ x_BNTH.transpose(-2, -1) / math.sqrt(x_BNTH.shape[-1])
    norm: Tensor = torch.linalg.vector_norm(g_BNTT, dim=(-2, -1), keepdim=True)
    return g_BNTT / norm.clamp_min(1e-12)


def gram_distance(ours: list[tuple[Tensor, Tensor]], theirs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean over samples, heads and blocks of the distances for queries and for keys, added."""
    total = torch.zeros(())
    for own, other in zip(ours, theirs, strict=True):
        for a, b in zip(own, other, strict=True):
            total = total + torch.linalg.vector_norm(gram(b) - gram(a), dim=(-2, -1)).mean()
    return total / max(1, len(ours))

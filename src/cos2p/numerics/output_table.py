"""The output table of a language model, some of its rows at a time: logits are never whole, nor is a table in 8 bits.

The loss of a token needs one number over all rows, log Σ exp, and its gradient the same products once more. Both are
computed part by part, forward and again backward, so that only the features and one part are held.

Shapes: n tokens, D width, V rows of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PART = 1 << 18
"""Scalars of one part, of the table and of its logits."""
SMALL = 1024
"""Tables of no more rows are used whole."""


@dataclass(frozen=True, eq=False)
class Table:
    """A frozen table that is read in parts from where it is stored."""

    rows: int
    dim: int
    read: Callable[[slice], Tensor]
    """These rows as numbers of 32 bits."""


def parts(table: Tensor | Table, tokens: int) -> Iterator[tuple[int, Tensor]]:
    """Where each part begins, and its rows."""
    rows, dim = table.shape if isinstance(table, Tensor) else (table.rows, table.dim)
    step = max(1, PART // max(tokens, dim))
    for first in range(0, rows, step):
        chosen = slice(first, min(first + step, rows))
        yield first, table[chosen] if isinstance(table, Tensor) else table.read(chosen)


def project(features: Tensor, table: Tensor | Table) -> Tensor:
    """Logits, for a table that is read in parts without gradients."""
    if isinstance(table, Tensor):
        return F.linear(features, table)
    return torch.cat([F.linear(features, part) for _, part in parts(table, features.shape[0])], -1)


def cross_entropy_in_parts(features_nD: Tensor, table: Tensor | Table, labels_n: Tensor) -> Tensor:
    """The mean loss of the tokens, with gradients of the features and of a table that trains."""
    own = table if isinstance(table, Tensor) else None
    loss: Tensor = _InParts.apply(features_nD, own, table, labels_n)  # type: ignore[no-untyped-call]
    return loss


class _InParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_nD: Tensor, own: Tensor | None, table: Tensor | Table, labels_n: Tensor) -> Tensor:
        total_n = torch.full((len(x_nD),), -torch.inf, device=x_nD.device)
        right_n = torch.zeros(len(x_nD), device=x_nD.device)
        for first, part in parts(table, len(x_nD)):
            logits = F.linear(x_nD, part)
            total_n = torch.logaddexp(total_n, logits.logsumexp(1))
            here = (labels_n >= first) & (labels_n < first + len(part))
            at = (labels_n - first).clamp(0, len(part) - 1)
            right_n = torch.where(here, logits.gather(1, at[:, None]).squeeze(1), right_n)
        ctx.save_for_backward(x_nD, labels_n, total_n)
        ctx.table = table
        return (total_n - right_n).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_nD, labels_n, total_n = ctx.saved_tensors
        wants_x, wants_table = ctx.needs_input_grad[:2]
        back_x = torch.zeros_like(x_nD)
        back_table = torch.empty_like(ctx.table) if wants_table else None
        for first, part in parts(ctx.table, len(x_nD)):
            shares = F.linear(x_nD, part).sub_(total_n[:, None]).exp_()
            here = (labels_n >= first) & (labels_n < first + len(part))
            at = (labels_n - first).clamp(0, len(part) - 1)
            shares.scatter_add_(1, at[:, None], -here[:, None].to(shares.dtype))
            shares.mul_(gradient / len(x_nD))
            back_x.addmm_(shares, part.to(shares.dtype))
            if back_table is not None:
                back_table[first : first + len(part)] = shares.T @ x_nD
        return back_x if wants_x else None, back_table, None, None

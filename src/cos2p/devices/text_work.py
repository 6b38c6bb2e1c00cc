"""FLOPs of a task on texts at their real lengths.

A task's FLOPs are a polynomial of degree two in the length of its texts: linear maps grow with the length, attention
with its square. So three lengths tell them for every other, and two moments of the lengths for all texts together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from torch import Tensor

from cos2p.training.costs import TaskFlops


def text_work(flops_at: Callable[[int], TaskFlops], widths: Tensor) -> TaskFlops:
    """The mean of `flops_at` over these lengths.

    Batches hold texts of like length, so a text costs its own length, rounded up as batches are; the few that share a
    batch with longer ones cost a little more than is counted here.

    >>> import torch
    >>> text_work(lambda tokens: TaskFlops(training=tokens**2), torch.tensor([8, 16])).training
    160.0
    """
    first, second, third = (flops_at(tokens) for tokens in (1, 2, 3))
    steps = widths.double() - 1
    linear, square = float(steps.mean()), float((steps * (steps - 1) / 2).mean())
    values = {}
    for field in fields(TaskFlops):
        a, b, c = (float(getattr(found, field.name)) for found in (first, second, third))
        values[field.name] = a + linear * (b - a) + square * (c - 2 * b + a)
    return TaskFlops(**values)

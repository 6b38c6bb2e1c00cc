"""The loss of a language model, part by part: what torch computes from whole logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p.numerics import output_table
from cos2p.numerics.output_table import Table, cross_entropy_in_parts, project


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 9), rows=st.integers(1, 70), part=st.integers(1, 200), seed=st.integers(0, 99))
def test_loss_and_gradients_are_those_of_whole_logits(tokens: int, rows: int, part: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, 6, generator=rng, dtype=torch.float64).float().requires_grad_()
    table = torch.randn(rows, 6, generator=rng).requires_grad_()
    labels = torch.randint(rows, (tokens,), generator=rng)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output_table, "PART", part)
        ours = cross_entropy_in_parts(x, table, labels)
        found = torch.autograd.grad(3 * ours, (x, table))
        stored = Table(rows, 6, lambda chosen: table.detach()[chosen])
        frozen = cross_entropy_in_parts(x, stored, labels)
        (alone,) = torch.autograd.grad(3 * frozen, x)
        logits = project(x.detach(), stored)
    whole = F.cross_entropy(x @ table.T, labels)
    expected = torch.autograd.grad(3 * whole, (x, table))
    torch.testing.assert_close(ours, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(frozen, whole, rtol=1e-5, atol=1e-5)
    for own, theirs in zip((*found, alone), (*expected, expected[0]), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits, (x @ table.T).detach())


def test_far_logits_neither_overflow_nor_vanish() -> None:
    x, table = torch.eye(2) * 200, torch.eye(2) * 50
    loss = cross_entropy_in_parts(x, table, torch.tensor([0, 0]))
    assert loss.item() == pytest.approx(F.cross_entropy(x @ table.T, torch.tensor([0, 0])).item())

from __future__ import annotations

from itertools import pairwise

import pytest

from cos2p import model
from cos2p.costs.budget import Workload, shape_peak
from cos2p.costs.cheapest import cheapest, savings
from cos2p.costs.shape import Shape

BASE = model("vit-base")
SHAPE = Shape.at(BASE, 0.5, start=0)
ALL = ["plain", "step in backward", "8-bit states", "recomputation", "bf16 activations"]


def test_every_saving_saves_on_top_of_those_before() -> None:
    """Gradients are small change while all activations are there: stepping pays behind the recomputation."""
    steps = list(savings(Workload(batch=8, threads=1)))
    assert [name for name, _ in steps] == ALL
    totals = [shape_peak(BASE, SHAPE, workload).total for _, workload in steps]
    assert totals[1] < totals[0] + 2**20
    assert all(after < before for before, after in pairwise(totals[1:]))


@pytest.mark.parametrize("number", range(4))
def test_no_more_is_done_than_the_budget_asks_for(number: int) -> None:
    workload = Workload(batch=2, threads=1)  # so few samples that gradients are seen
    expected = list(savings(workload))[number][1]
    needed = shape_peak(BASE, SHAPE, expected).total
    assert cheapest(BASE, SHAPE, workload, needed, bf16=True) == expected


def test_bf16_is_not_taken_unasked_and_nothing_is_promised_that_does_not_fit() -> None:
    workload = Workload(batch=8, threads=1)
    *_, (_, all_but_bf16), (_, everything) = savings(workload)
    between = shape_peak(BASE, SHAPE, everything).total
    assert between < shape_peak(BASE, SHAPE, all_but_bf16).total
    assert cheapest(BASE, SHAPE, workload, between) is None
    assert cheapest(BASE, SHAPE, workload, between, bf16=True) == everything
    assert cheapest(BASE, SHAPE, workload, "100MB", bf16=True) is None


def test_micro_batches_and_sgd_keep_their_ways() -> None:
    workloads = dict(savings(Workload(batch=8, micro_batch=2, optimizer="sgd")))
    assert not workloads["bf16 activations"].step_in_backward
    assert workloads["bf16 activations"].optimizer == "sgd"

"""PruneFL against jiangyuang/PruneFL: what a reconfiguration keeps, the client's statistic, the turnover ρ.

Different on purpose: a head or a unit is chosen as one; a set's size is the budget unless `stop = "rate"`; here the
official rule alone is compared, on single weights. Our statistic is the squared *mean* gradient of a task's steps and
is multiplied by the samples on the server: the official one divided by steps² and samples.

The official client adds up `param.grad` without a copy. Under torch 2, where `zero_grad` drops the old tensor, this is
the sum of the steps, which is compared. Under older versions, which zero it in place, it is twice the last gradient.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cos2p.methods import build_method
from cos2p_rivals.prunefl.device import GradientSums
from cos2p_rivals.prunefl.method import PruneFl
from cos2p_rivals.prunefl.reconfiguration import strongest, worth_their_time
from tests.official.block import VIT, by_segment, give_gradients, model
from tests.official.case import agree, fixture, wave
from tests.tiny import context

OFFICIAL = fixture("prunefl")


@pytest.mark.parametrize("number", range(len(OFFICIAL["reconfiguration"]["cases"])))
def test_what_a_reconfiguration_keeps(number: int) -> None:
    """Two layers; the weights of both are numbered through."""
    fed = OFFICIAL["reconfiguration"]
    case: dict[str, Any] = fed["cases"][number]
    offsets = (0, fed["shapes"][0][0] * fed["shapes"][0][1])
    weights = torch.cat([wave(shape, 1.0 + i).flatten() for i, shape in enumerate(fed["shapes"])])
    layers = [wave(shape, 7.0 + i + number).flatten().square() for i, shape in enumerate(fed["shapes"])]
    gain = torch.cat(layers)
    time = torch.cat([torch.full_like(x, t) for x, t in zip(layers, fed["time_of_a_weight"], strict=True)])
    kept: list[int] = []
    for offset, members in zip(offsets, case["before"], strict=True):
        own = [offset + place for place in members]
        kept += strongest(own, weights.abs(), len(own), case["turnover"])
    chosen = sorted([*kept, *worth_their_time(gain, time, kept, case["time_constant"])])
    assert chosen == [offset + i for offset, after in zip(offsets, case["after"], strict=True) for i in after]


def test_the_squared_gradient_of_a_task() -> None:
    fed = OFFICIAL["statistic"]
    shapes, steps, samples = fed["shapes"], fed["steps"], fed["samples"]
    expected = by_segment(fed["accumulated"], shapes)
    tiny, sums = model(shapes), GradientSums(VIT)
    sums.begin(tiny)
    for step in range(steps):
        give_gradients(tiny, shapes, step)
        sums.after_step(tiny)
    for key, value in sums.squares().items():
        agree(f"PruneFL g² of {key}", value * steps**2 * samples, expected[key])


def test_the_turnover_falls_as_there() -> None:
    method = build_method({"name": "prunefl"}, context())
    assert isinstance(method, PruneFl)
    rounds, official = zip(*OFFICIAL["turnover"], strict=True)
    agree("PruneFL ρ", torch.tensor([method.turnover(q) for q in rounds], dtype=torch.float64), official)

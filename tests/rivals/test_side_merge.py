from __future__ import annotations

import pytest
import torch

from cos2p.aggregation.merge import Contribution
from cos2p.models.layout import Weights, init_weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.submodel.slicing import extract
from cos2p_rivals.side_tensors import SideMerge, SideTensor
from tests.tiny import VIT, same

TABLE = {"x.heads": SideTensor((4,), "head", 0), "x.rows": SideTensor((2, 3))}


def model() -> Weights:
    return {**init_weights(VIT, 0), "x.heads": torch.zeros(4), "x.rows": torch.zeros(2, 3)}


def update(weights: Weights, heads: tuple[int, ...], value: float, samples: int = 1) -> Contribution:
    spec = SubmodelSpec(0, (BlockKeep(heads, (0,)),) * 4, (4,))
    delta = {name: torch.full_like(t, value) for name, t in extract(weights, VIT, spec).items()}
    delta |= {"x.heads": torch.full((len(heads),), value), "x.rows": torch.full((2, 3), value)}
    return Contribution("pi-0", spec, delta, samples, 0, weights)


@pytest.mark.parametrize(("rule", "shared"), [("uniform", -2.0), ("samples", -2.5)])
def test_each_entry_is_averaged_over_its_holders(rule: str, shared: float) -> None:
    weights, merge = model(), SideMerge(VIT, TABLE, rule)  # type: ignore[arg-type]
    merge.add(update(weights, (0, 1), 1.0, samples=1), weights)
    merge.add(update(weights, (1, 2), 3.0, samples=3), weights)
    after = merge.apply(weights)
    assert after["x.heads"].tolist() == [-1.0, shared, -3.0, 0.0]
    assert (after["x.rows"] == shared).all()
    torch.testing.assert_close(after["embed.cls"], weights["embed.cls"] + shared)
    assert torch.equal(weights["x.heads"], torch.zeros(4))  # the old version stays


def test_a_round_starts_empty_and_survives_a_restart_in_the_middle() -> None:
    weights, merge, again = model(), SideMerge(VIT, TABLE), SideMerge(VIT, TABLE)
    merge.add(update(weights, (0,), 1.0), weights)
    again.load_state(merge.state())
    for each in (merge, again):
        each.add(update(weights, (0, 3), 2.0), weights)
    one, two = merge.apply(weights), again.apply(weights)
    assert same(one, two)
    assert one["x.heads"].tolist() == [-1.5, 0.0, 0.0, -2.0]
    assert same(merge.apply(one), one)

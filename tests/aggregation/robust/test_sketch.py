"""A sample of large updates shows what all of them would."""

from __future__ import annotations

import pytest
import torch

from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.aggregation.robust import sketch
from cos2p.aggregation.robust.sketch import Sampler, compare
from cos2p.models.layout import init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import trained_shapes
from tests.tiny import VIT


def update(client: str, spec: SubmodelSpec) -> Contribution:
    delta = {}
    for name, shape in trained_shapes(VIT, spec).items():
        common = torch.randn(shape, generator=torch_rng(0, name))
        delta[name] = common + torch.randn(shape, generator=torch_rng(0, name, client))
    return Contribution(client, spec, delta, 1, 0, {})


@pytest.mark.parametrize("scalars", [2**17, 4000])
def test_cosines_of_a_sample_are_those_of_all(scalars: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch, "SCALARS", scalars)
    current, merge, sampler = init_weights(VIT, 0), SegmentMerge(VIT), Sampler(7)
    items = [update(name, SubmodelSpec.full(VIT)) for name in ("a", "b", "c")]
    sketches = [(item.client, sampler.sketch(item, merge, current)) for item in items]
    total = sum(tensor.numel() for tensor in current.values())
    assert len(sketches[0][1]) <= min(total, scalars + len(current))
    found = compare(sketches[:2], {"c": sketches[2][1]})
    assert set(found) == {("a", "b"), ("a", "c"), ("b", "c")}
    assert all(abs(evidence.cosine - 0.5) < 0.06 for evidence in found.values())
    assert all(0 < evidence.shared <= len(sketches[0][1]) for evidence in found.values())

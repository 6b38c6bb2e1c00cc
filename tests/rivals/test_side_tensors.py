from __future__ import annotations

import torch

from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p_rivals.side_tensors import SideTensor, side_shapes, take_side
from tests.tiny import VIT

SPEC = SubmodelSpec(0, (BlockKeep((0, 2), (1, 5, 9)),) * 4, (4,))
TABLE = {
    "whole": SideTensor((3,)),
    "heads": SideTensor((4, 2), "head", 1),
    "queries": SideTensor((16,), "query", 1),
    "units": SideTensor((10,), "unit", 2),
}


def test_entries_follow_the_segments_they_belong_to() -> None:
    weights = {name: torch.arange(float(torch.Size(e.shape).numel())).view(e.shape) for name, e in TABLE.items()}
    taken = take_side(weights, TABLE, VIT, SPEC)
    assert taken["whole"].tolist() == [0, 1, 2]
    assert taken["heads"].tolist() == [[0, 1], [4, 5]]
    assert taken["queries"].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]  # heads of four entries
    assert taken["units"].tolist() == [1, 5, 9]
    assert {name: tuple(t.shape) for name, t in taken.items()} == side_shapes(TABLE, VIT, SPEC)


def test_what_is_taken_is_a_copy() -> None:
    weights = {name: torch.zeros(entry.shape) for name, entry in TABLE.items()}
    for tensor in take_side(weights, TABLE, VIT, SPEC).values():
        tensor.add_(1)
    assert all(float(tensor.sum()) == 0 for tensor in weights.values())

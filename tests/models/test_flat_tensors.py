from __future__ import annotations

import pickle

import pytest
import torch

from cos2p.models.flat_tensors import FlatTensors, copied, flat_layout
from cos2p.models.layout import Weights

SHAPES = {
    "blocks.0.a": (3, 5),
    "blocks.0.b": (),
    "blocks.1.a": (3, 5),
    "blocks.1.b": (),
    "blocks.2.a": (2, 5),
    "c": (0,),
}


def piece(seed: int = 0) -> FlatTensors:
    arranged = flat_layout(tuple(sorted(SHAPES.items())))
    return FlatTensors(
        arranged, arranged.spread(torch.randn(arranged.values, generator=torch.manual_seed(seed)).numpy())
    )


def test_every_tensor_is_where_one_of_its_own_would_begin() -> None:
    found = piece()
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == SHAPES
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found.values() if tensor.numel())
    dense = b"".join(found.arranged.dense(found.memory))
    assert dense == b"".join(tensor.contiguous().numpy().tobytes() for tensor in found.values())


def test_what_is_between_them_is_zero() -> None:
    found = piece()
    kept = found.memory.sum().item()
    assert kept == pytest.approx(sum(tensor.sum().item() for tensor in found.values()))


def test_a_change_of_one_is_a_change_of_the_memory_and_of_no_other() -> None:
    found = piece()
    before = {name: tensor.clone() for name, tensor in found.items()}
    found["blocks.1.a"].add_(1.0)
    assert torch.equal(found["blocks.1.a"], before["blocks.1.a"] + 1)
    assert all(torch.equal(found[name], before[name]) for name in SHAPES if name != "blocks.1.a")
    assert found["blocks.0.a"]._version != found["blocks.1.a"]._version  # autograd looks at each by itself


def test_the_same_shapes_are_arranged_once() -> None:
    assert piece(0).arranged is piece(1).arranged
    assert torch.equal(piece(0).minus(piece(1))["blocks.0.a"], piece(0)["blocks.0.a"] - piece(1)["blocks.0.a"])


def test_blocks_that_are_alike_are_a_family() -> None:
    found = piece()
    families = {tuple(family.names): family for family in found.arranged.families}
    assert set(families) == {
        ("blocks.0.a", "blocks.1.a"), ("blocks.2.a",), ("blocks.0.b", "blocks.1.b"), ("c",),
    }  # fmt: skip
    both = families["blocks.0.a", "blocks.1.a"].of(found.memory)
    assert torch.equal(both, torch.stack((found["blocks.0.a"], found["blocks.1.a"])))


@pytest.mark.parametrize(
    "way",
    [dict, lambda p: {**p}, lambda p: p | {}, lambda p: {} | p, lambda p: pickle.loads(pickle.dumps(p))],
    ids=["dict", "stars", "or", "ror", "pickle"],
)
def test_a_dict_of_them_has_all_of_them(way: object) -> None:
    fresh, plain = piece(), dict(piece().items())
    made: Weights = way(fresh)  # type: ignore[operator]
    assert type(made) is dict
    assert made.keys() == plain.keys()
    assert all(torch.equal(made[name], plain[name]) for name in plain)


def test_none_can_be_exchanged() -> None:
    found = piece()
    for change in (lambda: found.pop("c"), lambda: found.update(c=torch.ones(1)), found.clear):
        with pytest.raises(TypeError, match="make a dict of them first"):
            change()
    with pytest.raises(TypeError, match="make a dict of them first"):
        found["c"] = torch.ones(1)
    assert len(found) == len(SHAPES)


def test_a_copy_stays_in_one_piece() -> None:
    first = piece()
    second = copied(first)
    assert isinstance(second, FlatTensors)
    second.memory.zero_()
    assert bool(first["blocks.0.a"].any())

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cos2p.seeding import torch_rng
from cos2p.submodel import kernels as passes
from cos2p.submodel.kernels import Scratch, absolute_differences, absolute_sums, add_scaled, square_sums

sizes = st.integers(1, 40)
pieces = st.sampled_from([1, 7, 64, 10_000])


def matrix(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_rng(seed, "test passes"))


@st.composite
def cuts(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, Tensor]:
    """An axis and what is kept of it: scattered entries, long runs, nothing, everything."""
    dim = draw(st.integers(0, len(shape) - 1))
    kept = draw(
        st.one_of(
            st.sets(st.integers(0, shape[dim] - 1)),
            st.tuples(st.integers(0, shape[dim]), st.integers(0, shape[dim])).map(lambda ab: set(range(*ab))),
        )
    )
    return dim, torch.tensor(sorted(kept), dtype=torch.int64)


@given(st.one_of(st.tuples(sizes), st.tuples(sizes, sizes)), pieces)
def test_sums_do_not_depend_on_the_pieces(shape: tuple[int, ...], piece: int) -> None:
    a, b = matrix(*shape), matrix(*shape, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "SCRATCH", piece)
        for dim in (None, *range(len(shape))):
            for found, values in (
                (absolute_sums(a, dim, Scratch()), a),
                (absolute_differences(a, b, dim, Scratch()), a - b),
                (square_sums(a, dim, Scratch()), a * a),
            ):
                others = tuple(d for d in range(len(shape)) if d != dim)
                expected = values.abs().sum(others) if others else values.abs()
                torch.testing.assert_close(found, expected)


@given(st.data(), st.one_of(st.tuples(sizes), st.tuples(sizes, sizes)))
def test_scaled_parts_are_added_where_they_belong(data: st.DataObject, shape: tuple[int, ...]) -> None:
    dim, index = data.draw(cuts(shape))
    total, before = matrix(*shape), matrix(*shape)
    part_shape = [len(index) if d == dim else size for d, size in enumerate(shape)]
    part, factor = matrix(*part_shape, seed=1), matrix(len(index), seed=2)
    broadcast = factor if len(shape) == 1 else factor.unsqueeze(1 - dim)
    if data.draw(st.booleans()):  # one for all
        factor = torch.full_like(factor, 0.5)
        broadcast = torch.tensor(0.5)
    add_scaled(total, part, broadcast, (dim, index), Scratch())
    expected = before.clone()
    for place, i in enumerate(index.tolist()):
        expected.select(dim, i).add_(part.select(dim, place) * factor[place])
    torch.testing.assert_close(total, expected)
    untouched = torch.ones(shape[dim], dtype=torch.bool)
    untouched[index] = False
    kept = untouched.nonzero().flatten()
    assert torch.equal(total.index_select(dim, kept), before.index_select(dim, kept))


def test_whole_tensors_take_one_factor() -> None:
    total = torch.ones(2, 3, 1, 1)
    add_scaled(total, torch.full((2, 3, 1, 1), 2.0), torch.tensor(0.5), None, Scratch())
    assert total.flatten().tolist() == [2.0] * 6


def test_scratch_grows_to_the_largest_and_is_used_again() -> None:
    scratch = Scratch()
    large = scratch.like(torch.zeros(4, 5))
    small = scratch.like(torch.zeros(3))
    assert (large.shape, small.shape) == ((4, 5), (3,))
    assert small.data_ptr() == large.data_ptr()
    assert scratch.like(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64


def test_a_difference_is_worked_out_once_for_two_versions() -> None:
    room, now, then = Scratch(), matrix(4, 3), matrix(4, 3, seed=1)
    first = room.differences(now, then, 0)
    assert room.differences(now, then, 0) is first
    assert room.differences(matrix(4, 3), then, 0) is not first  # equal, but another version
    then.add_(1.0)
    torch.testing.assert_close(room.differences(now, then, 0), (now - then).abs().sum(1))
    room.forget()
    assert room.differences(now, then, 0) is not first

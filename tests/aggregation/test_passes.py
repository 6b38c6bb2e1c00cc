from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cos2p.aggregation.passes import absolute_differences, absolute_sums, add_scaled, new_scratch
from cos2p.seeding import torch_rng

sizes = st.integers(1, 40)
scratches = st.sampled_from([1, 7, 64, 10_000]).map(torch.empty)


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


@given(st.one_of(st.tuples(sizes), st.tuples(sizes, sizes)), scratches)
def test_absolute_sums(shape: tuple[int, ...], scratch: Tensor) -> None:
    values = matrix(*shape)
    torch.testing.assert_close(absolute_sums(values, None, scratch), values.abs().sum())
    by_row = values.abs() if len(shape) == 1 else values.abs().sum(1)
    torch.testing.assert_close(absolute_sums(values, 0, scratch), by_row)
    if len(shape) == 2:
        torch.testing.assert_close(absolute_sums(values, 1, scratch), values.abs().sum(0))


@given(st.data(), st.one_of(st.tuples(sizes), st.tuples(sizes, sizes)), scratches)
def test_absolute_differences_of_what_is_kept(data: st.DataObject, shape: tuple[int, ...], scratch: Tensor) -> None:
    a, b = matrix(*shape), matrix(*shape, seed=1)
    dim, index = data.draw(cuts(shape))
    per_entry = (a - b).abs() if len(shape) == 1 else (a - b).abs().sum(1 - dim)
    torch.testing.assert_close(absolute_differences(a, b, None, dim, scratch), per_entry)
    torch.testing.assert_close(absolute_differences(a, b, (dim, index), dim, scratch), per_entry[index])
    torch.testing.assert_close(absolute_differences(a, b, None, None, scratch), (a - b).abs().sum())


@given(st.data(), st.one_of(st.tuples(sizes), st.tuples(sizes, sizes)), scratches)
def test_scaled_parts_are_added_where_they_belong(data: st.DataObject, shape: tuple[int, ...], scratch: Tensor) -> None:
    dim, index = data.draw(cuts(shape))
    total, before = matrix(*shape), matrix(*shape)
    part_shape = [len(index) if d == dim else size for d, size in enumerate(shape)]
    part, factor = matrix(*part_shape, seed=1), matrix(len(index), seed=2)
    broadcast = factor if len(shape) == 1 else factor.unsqueeze(1 - dim)
    add_scaled(total, part, broadcast, (dim, index), scratch)
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
    add_scaled(total, torch.full((2, 3, 1, 1), 2.0), torch.tensor(0.5), None, new_scratch())
    assert total.flatten().tolist() == [2.0] * 6

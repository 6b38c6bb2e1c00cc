"""Products of adapters: what is averaged, what is cut off, and that nothing is lost where nothing need be."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p.aggregation.merge import Contribution
from cos2p.methods.adapters.factors import adapter_shapes, first_adapters
from cos2p.methods.adapters.merge import FactorMerge, ProductMerge, factored
from cos2p.models.layout import Weights, init_weights
from cos2p.models.spec import SubmodelSpec
from tests.tiny import VIT, assert_close, same

KEY = "blocks.0.adapters.q"
RANK = 8
SPEC = SubmodelSpec.full(VIT)


def server(rank: int = RANK) -> Weights:
    return {**init_weights(VIT, 0), **first_adapters(adapter_shapes(VIT, [0], ("q",), rank), 0)}


def answer(start: Weights, rank: int, seed: int, samples: int = 1, staleness: int = 0) -> Contribution:
    """A device of this rank that ends somewhere else."""
    rng = torch.Generator().manual_seed(seed)
    delta = {f"{KEY}.{factor}": torch.randn(rank, VIT.dim, generator=rng) * 0.1 for factor in ("down", "up")}
    return Contribution(f"pi-{seed}", SPEC, delta, samples, staleness, start)


def product(weights: Weights, rank: int = 10**6) -> torch.Tensor:
    return weights[f"{KEY}.up"][:rank].double().T @ weights[f"{KEY}.down"][:rank].double()


def ended(start: Weights, item: Contribution) -> Weights:
    rank = len(item.delta[f"{KEY}.up"])
    return {name: start[name][:rank] - delta for name, delta in item.delta.items()}


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 9)), min_size=1, max_size=4))
def test_at_full_rank_the_product_is_the_mean_of_products(devices: Sequence[tuple[int, int]]) -> None:
    start = server(rank=16)  # as wide as the matrix: nothing can be cut off
    merge = ProductMerge(VIT, "samples")
    items = [answer(start, rank, seed, samples) for seed, (rank, samples) in enumerate(devices)]
    for item in items:
        merge.add(item, start)
    after = merge.apply(start)
    whole = sum(samples for _, samples in devices)
    expected = sum(
        samples / whole * product(ended(start, item)) for item, (_, samples) in zip(items, devices, strict=True)
    )
    torch.testing.assert_close(product(after), expected, atol=1e-6, rtol=1e-5)


def test_a_second_round_adds_to_the_first() -> None:
    start = server(rank=16)
    merge = ProductMerge(VIT, "uniform")
    merge.add(answer(start, 4, 1), start)
    first = merge.apply(start)
    item = answer(first, 4, 2)
    merge.add(item, first)
    second = merge.apply(first)
    moved = product(ended(first, item)) - product(first, 4)
    torch.testing.assert_close(product(second), product(first) + moved, atol=1e-6, rtol=1e-5)


def test_a_late_step_is_shortened() -> None:
    start = server()
    early, late = ProductMerge(VIT, "uniform"), ProductMerge(VIT, "uniform")
    early.add(answer(start, 4, 1), start)
    late.add(answer(start, 4, 1, staleness=3), start)
    torch.testing.assert_close(product(late.apply(start)), 0.5 * product(early.apply(start)), atol=1e-6, rtol=1e-4)


def test_what_is_cut_off_is_the_smallest() -> None:
    rng = torch.Generator().manual_seed(0)
    left, right = torch.randn(12, 20, generator=rng), torch.randn(12, 30, generator=rng)
    small_left, small_right = factored(left, right, 5)
    values = torch.linalg.svdvals(left.T @ right)
    missed = torch.linalg.matrix_norm(left.T @ right - small_left.T @ small_right)
    torch.testing.assert_close(missed, values[5:].norm(), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(small_left @ small_left.T, torch.eye(5), atol=1e-5, rtol=0)


def test_memory_does_not_grow_with_devices() -> None:
    start, merge = server(rank=16), ProductMerge(VIT, "uniform")
    items = [answer(start, 4, seed) for seed in range(20)]
    for item in items:
        merge.add(item, start)
    assert len(merge.left[KEY]) <= VIT.dim
    expected = sum(product(ended(start, item)) for item in items) / 20
    torch.testing.assert_close(product(merge.apply(start)), expected, atol=1e-5, rtol=1e-4)


def test_factors_are_averaged_row_by_row_over_their_holders() -> None:
    start, merge = server(), FactorMerge(VIT, "uniform")
    wide, narrow = answer(start, 4, 1), answer(start, 2, 2)
    merge.add(wide, start)
    merge.add(narrow, start)
    after = merge.apply(start)
    for name in wide.delta:
        moved = start[name] - after[name]
        torch.testing.assert_close(moved[:2], (wide.delta[name][:2] + narrow.delta[name]) / 2, atol=1e-6, rtol=0)
        torch.testing.assert_close(moved[2:4], wide.delta[name][2:], atol=1e-6, rtol=0)
        assert not moved[4:].any()


def test_a_merge_goes_on_from_its_state() -> None:
    start = server()
    for kind in (ProductMerge, FactorMerge):
        straight, broken = kind(VIT, "uniform"), kind(VIT, "uniform")
        for seed in (1, 2):
            straight.add(answer(start, 4, seed), start)
        broken.add(answer(start, 4, 1), start)
        again = kind(VIT, "uniform")
        again.load_state(broken.state())
        again.add(answer(start, 4, 2), start)
        assert same(again.apply(start), straight.apply(start))


def test_nobody_s_adapters_stay_bitwise() -> None:
    start = server()
    assert_close(ProductMerge(VIT, "uniform").apply(start), start, atol=0)


def test_what_factors_make_is_known_before_they_are_added() -> None:
    """Each is within bounds of its own; their product moves what is stored by as much as its singular values say."""
    start = server()
    for kind in (ProductMerge, FactorMerge):
        (small,) = kind(VIT, "uniform").products(answer(start, 2, 0)).values()
        far = Contribution(
            "pi-0", SPEC, {f"{KEY}.{f}": torch.full((2, VIT.dim), 9.9) for f in ("up", "down")}, 1, 0, start
        )
        (large,) = kind(VIT, "uniform").products(far).values()
        assert float(small.abs().max()) < 1
        assert float(large.abs().max()) > 100
    merge = ProductMerge(VIT, "uniform")
    item = answer(start, 2, 0)
    merge.add(item, start)
    moved = torch.linalg.matrix_norm(product(merge.apply(start)) - product(start))
    assert float(moved) <= float(torch.linalg.matrix_norm(merge.products(item)[KEY])) * 1.001

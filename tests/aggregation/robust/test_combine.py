from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nan

from cos2p.aggregation.robust.combine import combine


def stack(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_the_median_by_hand() -> None:
    """Three holders: the middle one. Four: the mean of the two in the middle. Two: no majority."""
    given = stack([1.0, 1.0, nan], [2.0, 2.0, 1.0], [99.0, 4.0, 2.0], [nan, 99.0, nan])
    assert combine(given, "median")[:2].tolist() == [2.0, 3.0]
    assert combine(given, "median")[2].isnan()


def test_the_trimmed_mean_by_hand() -> None:
    """One of three to seven is left out at each end with a quarter, two of eight."""
    assert combine(stack([-50.0], [1.0], [2.0], [3.0], [50.0]), "trimmed").tolist() == [2.0]
    eight = stack(*([float(x)] for x in (-99, -98, 1, 2, 3, 4, 98, 99)))
    assert combine(eight, "trimmed").tolist() == [2.5]
    assert combine(stack([1.0], [2.0], [9.0]), "trimmed").tolist() == [2.0]


def test_the_geometric_median_stays_with_the_majority() -> None:
    given = torch.stack([torch.zeros(2, 3), torch.zeros(2, 3), torch.full((2, 3), 1000.0)])
    assert combine(given, "geometric").abs().max() < 1e-3


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=9),
    st.floats(-1e6, 1e6, width=32),
    st.sampled_from(["median", "trimmed"]),
)
def test_one_liar_among_three_or_more_cannot_leave_the_range_of_the_honest(
    honest: list[float], lie: float, rule: str
) -> None:
    centre = float(combine(stack(*([x] for x in (*honest, lie))), rule))  # type: ignore[arg-type]
    assert min(honest) - 1e-5 <= centre <= max(honest) + 1e-5


@given(st.permutations([0.5, -1.0, 3.0, 7.0, nan]), st.sampled_from(["median", "trimmed"]))
def test_the_order_in_which_updates_come_does_not_matter(values: list[float], rule: str) -> None:
    fixed = combine(stack([0.5], [-1.0], [3.0], [7.0], [nan]), rule)  # type: ignore[arg-type]
    assert torch.allclose(combine(stack(*([x] for x in values)), rule), fixed)  # type: ignore[arg-type]

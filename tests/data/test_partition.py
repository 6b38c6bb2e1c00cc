from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cos2p.data.partition import PartitionKind, PartitionSettings, local_split, partition, sizes_by_weight
from cos2p.errors import ConfigError, DataError

KINDS: tuple[PartitionKind, ...] = ("dirichlet", "iid", "natural")
BALANCED = np.repeat(np.arange(10), 200)  # 2,000 samples, 200 of each of 10 classes


def class_shares(labels: np.ndarray, part: np.ndarray) -> np.ndarray:
    return np.bincount(labels[part], minlength=10) / len(part)


# What every partition keeps


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=120),
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=6),
    kind=st.sampled_from(KINDS),
    alpha=st.sampled_from([1e-6, 1e-3, 0.1, 1.5, 1e6]),
    seed=st.integers(0, 3),
    used=st.floats(0.1, 1.0),
)
def test_parts_are_disjoint_in_range_sized_as_asked_and_the_same_every_time(
    labels: list[int], weights: list[float], kind: PartitionKind, alpha: float, seed: int, used: float
) -> None:
    sizes = sizes_by_weight(int(len(labels) * used), weights)
    groups = [str(i % 7) for i in range(len(labels))]
    assume(kind != "natural" or len(set(groups)) >= len(sizes))

    def parts() -> list[np.ndarray]:
        return partition(labels, sizes, kind, alpha, seed, groups, minimum=0)

    result = parts()

    together = np.concatenate(result)
    assert len(result) == len(sizes)
    assert len(np.unique(together)) == len(together)
    assert np.isin(together, np.arange(len(labels))).all()
    assert all(np.all(np.diff(part) > 0) for part in result)
    if kind != "natural":
        assert [len(part) for part in result] == sizes
    else:
        assert len(together) == len(labels)
    assert all(np.array_equal(a, b) for a, b in zip(result, parts(), strict=True))


@pytest.mark.parametrize("kind", ["dirichlet", "iid"])
def test_another_seed_gives_another_partition(kind: PartitionKind) -> None:
    first, second = (partition(BALANCED, [200] * 8, kind, seed=seed) for seed in (0, 1))

    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_labels_may_be_a_tensor() -> None:
    from_array = partition(BALANCED, [100, 100])
    from_tensor = partition(torch.from_numpy(BALANCED), [100, 100])

    assert all(np.array_equal(a, b) for a, b in zip(from_array, from_tensor, strict=True))


# dirichlet


def test_a_huge_alpha_gives_every_client_the_prior() -> None:
    labels = np.repeat(np.arange(10), [100, 200, 300, 400, 500, 500, 400, 300, 200, 100])
    prior = np.bincount(labels) / len(labels)

    parts = partition(labels, [750] * 4, alpha=1e6, seed=3)

    # A client's count of a class is hypergeometric: deviation at most sqrt(750 * p * (1 - p)) / 750 = 1.4 points.
    for part in parts:
        assert class_shares(labels, part) == pytest.approx(prior, abs=0.05)


@pytest.mark.parametrize("alpha", [1e-4, 1e-9])
def test_a_tiny_alpha_gives_every_client_mostly_one_class(alpha: float) -> None:
    for seed in range(5):
        parts = partition(BALANCED, [50] * 4, alpha=alpha, seed=seed)

        assert all(class_shares(BALANCED, part).max() > 0.9 for part in parts)


def test_a_class_that_runs_out_is_replaced_by_the_others() -> None:
    # With a tiny alpha each client wants one class, but together they take every sample there is.
    parts = partition(BALANCED, [500] * 4, alpha=1e-3, seed=0)

    assert sorted(np.concatenate(parts).tolist()) == list(range(2000))
    # 500 samples are at least three classes of 200; a fresh mix among the rest would give all ten.
    assert np.mean([(class_shares(BALANCED, part) > 0.05).sum() for part in parts]) < 5


def test_the_mean_of_the_mixes_is_the_prior_and_their_spread_follows_alpha() -> None:
    labels = np.repeat([0, 1], [2000, 8000])
    shares = [
        np.mean(labels[part] == 0) for seed in range(300) for part in partition(labels, [100], alpha=1.5, seed=seed)
    ]

    # Dir(3 * prior), alpha for each of two classes: mean 0.2, variance
    # 0.2 * 0.8 / (3 + 1); drawing 100 samples adds p(1-p)/100 on average.
    variance = 0.16 / 4
    variance += (0.16 - variance) / 100
    assert np.mean(shares) == pytest.approx(0.2, abs=4 * np.sqrt(variance / 300))
    assert np.std(shares) == pytest.approx(np.sqrt(variance), rel=0.15)


def test_no_client_is_always_the_one_that_gets_the_leftovers() -> None:
    # Everything is shared out, so whoever draws late finds its favourite classes gone: with a fixed order the
    # mean share of a client's largest class falls from 0.65 (first) to 0.57 (last).
    labels = np.repeat(np.arange(10), 40)

    purities = np.array(
        [
            [class_shares(labels, part).max() for part in partition(labels, [50] * 8, alpha=0.1, seed=seed)]
            for seed in range(300)
        ]
    ).mean(0)

    assert np.ptp(purities) < 0.045


# natural


def test_groups_stay_together_and_loads_are_balanced() -> None:
    groups = [f"writer {i}" for i in range(40) for _ in range(1 + i % 5)]  # 120 samples

    parts = partition(np.zeros(120), [30] * 4, "natural", groups=groups)

    owners = [{groups[i] for i in part} for part in parts]
    assert sum(len(own) for own in owners) == 40
    assert sorted(np.concatenate(parts).tolist()) == list(range(120))
    assert [len(part) for part in parts] == [30] * 4


def test_groups_follow_the_sizes() -> None:
    groups = [str(i // 2) for i in range(200)]

    parts = partition(np.zeros(200), [50, 150], "natural", groups=groups)

    assert [len(part) for part in parts] == [50, 150]


# What cannot be


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"sizes": [10] * 8, "minimum": 20},
            "8 clients with at least 20 samples each need 160, but there are 100; use more samples",
        ),
        ({"sizes": [60, 60]}, "sizes sum to 120, but there are 100 samples"),
        ({"sizes": [60, 60], "kind": "iid"}, "sizes sum to 120, but there are 100 samples"),
        ({"sizes": [50, 1, 20]}, "client 1 would get 1 samples, fewer than the minimum of 2"),
        ({"sizes": [10] * 3, "kind": "natural"}, r"name its column in data\.group_column"),
        ({"sizes": [10] * 3, "kind": "natural", "groups": ["a", "b"] * 50}, "2 groups cannot be dealt to 3 clients"),
        ({"sizes": [10], "kind": "natural", "groups": ["a"]}, "1 groups for 100 samples"),
        (
            {"sizes": [10] * 2, "kind": "natural", "groups": ["a"] * 99 + ["b"]},
            "leaves client [01] with 1 samples, fewer than the minimum of 2",
        ),
    ],
)
def test_an_impossible_partition_says_the_numbers(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition(np.arange(100) % 5, **arguments)


def test_texts_without_classes_cannot_be_split_by_class() -> None:
    next_tokens = torch.zeros(10, 4, dtype=torch.int64)

    with pytest.raises(DataError, match="iid or natural"):
        partition(next_tokens, [5])
    assert [len(part) for part in partition(next_tokens, [5, 5], "iid")] == [5, 5]


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "random"}, {"alpha": 0.0}, {"alpha": float("nan")}, {"alpha": float("inf")}, {"local_test": 1.0},
     {"minimum": -1}],
)  # fmt: skip
def test_a_wrong_setting_is_refused_where_it_is_read(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        PartitionSettings(**wrong)


def test_a_partition_without_clients_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one client"):
        partition(np.zeros(100), [])


# Sizes and the local split


@given(st.integers(0, 10_000), st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_sizes_use_every_sample_and_follow_the_weights(total: int, weights: list[float]) -> None:
    sizes = sizes_by_weight(total, weights)

    assert sum(sizes) == total
    assert all(abs(s - total * w / sum(weights)) <= 1 + 1e-6 for s, w in zip(sizes, weights, strict=True))


@pytest.mark.parametrize("weights", [[], [1, 0], [1, -1], [1, float("inf")]])
def test_weights_must_be_above_zero(weights: Sequence[float]) -> None:
    with pytest.raises(ConfigError, match="finite weight above 0"):
        sizes_by_weight(10, weights)


def test_eight_to_two_of_every_class() -> None:
    indices = np.arange(0, 2000, 2)  # 100 of each class

    train, test = local_split(indices, BALANCED, seed=0, client="pi-1")

    assert (len(train), len(test)) == (800, 200)
    assert np.bincount(BALANCED[test]).tolist() == [20] * 10
    assert sorted([*train.tolist(), *test.tolist()]) == indices.tolist()


def test_every_client_and_seed_has_a_split_of_its_own_that_never_changes() -> None:
    indices = np.arange(100)

    def test_part(seed: int, client: str | int) -> list[int]:
        return local_split(indices, BALANCED, seed=seed, client=client)[1].tolist()

    assert test_part(0, "a") == test_part(0, "a")
    assert test_part(0, "a") != test_part(0, "b")
    assert test_part(0, "a") != test_part(1, "a")


@given(count=st.integers(0, 30), fraction=st.floats(0.01, 0.99))
def test_neither_part_is_empty_where_that_is_possible(count: int, fraction: float) -> None:
    labels = np.arange(count) % 3

    train, test = local_split(np.arange(count), labels, seed=0, client=0, fraction=fraction)

    assert len(train) + len(test) == count
    assert len(train) >= min(count, 1)
    assert (len(test) >= 1) == (count >= 2)


def test_texts_are_split_without_classes() -> None:
    next_tokens = torch.zeros(10, 4, dtype=torch.int64)

    train, test = local_split(np.arange(10), next_tokens, seed=0, client=0)

    assert (len(train), len(test)) == (8, 2)
    train, test = local_split(np.arange(10), next_tokens, seed=0, client=0, fraction=1.0)
    assert (len(train), len(test)) == (10, 0)

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.aggregation.triggers import Trigger
from cos2p.errors import ConfigError


@pytest.mark.parametrize(
    ("mu", "clients", "threshold"),
    [
        (0.5, 8, 4),
        (0.5, 7, 4),
        (0.125, 8, 1),  # the paper's asynchronous setting
        (0.07, 100, 7),  # 7.000000000000001 in floating point
        (0.3, 10, 3),
        (1 / 3, 3, 1),
        (1.0, 5, 5),
        (0.01, 2, 1),
        (0.5, 0, 1),  # nobody there: one update would do
    ],
)
def test_a_share_of_the_clients_rounded_up(mu: float, clients: int, threshold: int) -> None:
    assert Trigger.semi_asynchronous(mu, t_clk=60.0).threshold(clients) == threshold


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 1000))
def test_the_ceiling_is_that_of_exact_arithmetic(a: int, b: int, clients: int) -> None:
    mu = Fraction(min(a, b), max(a, b))
    assert Trigger.semi_asynchronous(float(mu), t_clk=0.0).threshold(clients) == ceil(mu * clients)


def test_the_special_cases_are_settings_of_the_same_rule() -> None:
    assert Trigger.synchronous() == Trigger.semi_asynchronous(mu=1.0, t_clk=0.0)
    assert Trigger.asynchronous() == Trigger.buffered(1)
    assert Trigger.buffered(10).threshold(clients=4) == 10  # more than the clients is legal


def test_a_share_counts_clients_and_a_buffer_counts_updates() -> None:
    # Three updates, two of them from the same client, in a fleet of four.
    arrived = {"updates": 3, "reporters": 2, "clients": 4}
    assert Trigger.semi_asynchronous(0.5, 0.0).met(**arrived)
    assert not Trigger.semi_asynchronous(0.75, 0.0).met(**arrived)
    assert Trigger.buffered(3).met(**arrived)
    assert not Trigger.buffered(4).met(**arrived)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "either mu or count"),
        ({"mu": 0.5, "count": 2}, "either mu or count"),
    ],
)
def test_a_setting_that_cannot_work_is_named(fields: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Trigger(**fields)  # type: ignore[arg-type]

"""Whatever a device sends, the server neither stumbles nor takes harm. `make fuzz` is the long form."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.arena import arena, attempt, kinds, play
from tests.fuzz.memory import growth
from tests.fuzz.mutations import bombs

TITLES = list(kinds())


def test_no_message_of_a_hostile_device_is_taken_that_a_run_does_not_need() -> None:
    pytest.importorskip("nvflare")
    from tests.fuzz.channels import attempt as attempt_message

    found = [attempt_message(seed) for seed in range(5000)]
    assert [harm for _, harm in found if harm] == []
    assert {fate for fate, _ in found} == {"refused", "taken"}


@pytest.mark.parametrize("title", TITLES)
def test_what_an_honest_device_sends_is_merged(title: str) -> None:
    verdict = play(arena(title), arena(title).honest)
    assert (verdict.fate, verdict.harm) == ("merged", "")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TITLES), st.integers(0, 10**9))
def test_no_mutated_update_breaks_a_server_or_its_model(title: str, seed: int) -> None:
    how, verdict = attempt(title, seed)
    assert not verdict.harm, how


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(TITLES), st.binary(max_size=400))
def test_any_bytes_are_refused(title: str, data: bytes) -> None:
    assert play(arena(title), data).fate == "refused"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("title", ["cos2p", "seeds"])
def test_a_few_bytes_do_not_become_many(title: str, seed: int) -> None:
    """At most three times the update, and a little for the server that looks at it."""
    place, rng = arena(title), random.Random(seed)
    data = bombs(place.honest, rng)
    play(place, place.honest)  # what is made once and kept
    fates: list[str] = []
    assert growth(lambda: fates.append(play(place, data).fate)) < 3 * len(data) + 2 * 2**20
    assert fates == ["refused"]

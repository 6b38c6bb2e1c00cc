"""A device with a valid certificate that answers with anything but an update: it is refused, named and excluded."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p.errors import BudgetError, RecipeError, UpdateRefused
from cos2p.fleet.messages import JoinRequest
from cos2p.fleet.server.driver import refuse_attack
from cos2p.fleet.server.inbox import Answered, measured_numbers
from cos2p.fleet.spool import Notice
from cos2p.fleet.wire import BadFrame, unpack
from cos2p.methods.base import Assignment, Call
from cos2p.methods.cos2p.method import Cos2p
from tests.fleet.bench import Bench
from tests.fleet.lab import small_recipe
from tests.fuzz.mutations import joined, split


def test_the_others_go_on_and_the_run_ends_well(tmp_path: Path) -> None:
    """A shape that no memory holds, five times; the other device does all three rounds."""
    bench = Bench(tmp_path, small_recipe(2, rounds=3, schedule__t_clk=0.0))
    bench.start()
    try:
        bench.join("dev-1")
        bench.join("dev-2")
        for _ in range(5):
            header, meta, body = split(bench.train("dev-1").to_bytes())
            name = next(name for name in header if name.startswith("d/"))
            header[name]["shape"] = [2**50, 2**50, 0]
            data, task = joined(header, meta, body), str(meta["task"])
            bench.offers.pop("dev-1", None)
            numbers = {"peak": "much", "more": [[]], "seconds": 1e400}
            bench.driver.answered(Answered("dev-1", task, bench.push("dev-1", task, data), numbers=numbers))
            bench.wait(lambda task=task: [e for e in bench.events("refused", "dev-1") if e["task"] == task])
        (excluded,) = bench.wait(lambda: bench.events("excluded"))
        assert excluded["client"] == "dev-1"
        assert "not as long as its shape says" in excluded["reason"]
        while bench.driver.finished is None:
            bench.answer("dev-2")
            bench.wait(lambda: bench.driver.finished or "dev-2" in bench.offers)
        assert bench.driver.finished == "rounds"
    finally:
        bench.stop()


def test_a_device_for_which_no_task_can_be_made_is_benched_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device says of its memory, or that it ran out of it again and again, ends nobody else's run."""
    bench = Bench(tmp_path, small_recipe(2, rounds=2, schedule__t_clk=0.0))
    assign = Cos2p.assign

    def too_small(self: Cos2p, call: Call) -> Assignment:
        if call.member.name == "dev-1":
            raise BudgetError("nothing fits in 1 kB")
        return assign(self, call)

    monkeypatch.setattr(Cos2p, "assign", too_small)
    bench.start()
    try:
        bench.join("dev-2")
        bench.join("dev-1")
        while bench.driver.finished is None:
            bench.answer("dev-2")
            bench.wait(lambda: bench.driver.finished or "dev-2" in bench.offers)
        assert bench.driver.finished == "rounds"
        assert [event["client"] for event in bench.events("excluded")] == ["dev-1"]
        assert "dev-1: nothing fits in 1 kB; " in bench.events("excluded")[0]["reason"]
    finally:
        bench.stop()


@pytest.mark.parametrize("head", [b"[" * 100_000, b'{"a":' * 50_000, b'{"size": ' + b"9" * 5000 + b"}"])
def test_a_frame_that_is_nested_for_ever_is_no_frame(head: bytes) -> None:
    with pytest.raises(BadFrame):
        unpack(len(head).to_bytes(4, "big") + head)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("9" * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
"""What JSON can say."""
FACTS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("samples", "test_samples", "memory", "flops", "rows", "task", "size", "digest"), ANYTHING),
)


@settings(max_examples=300, deadline=None)
@given(ANYTHING | FACTS)
def test_whatever_a_device_says_is_read_or_refused(said: Any) -> None:
    with suppress(UpdateRefused):
        assert Notice.from_dict(said).size >= 0
    if isinstance(said, dict):
        with suppress(UpdateRefused):
            assert JoinRequest.from_dict(said).samples >= 1
    assert all(abs(value) < 1e18 for value in (measured_numbers(said) or {}).values())


def test_what_a_device_measured_is_a_few_numbers() -> None:
    reported = {"peak": 5, "x" * 41: 1, "a": True, "b": "c", "d": 10**40, "e": float("inf"), 7: 1}
    assert measured_numbers(reported) == {"peak": 5}
    assert measured_numbers([1]) is None
    assert len(measured_numbers({str(i): i for i in range(1000)}) or {}) == 32


def test_a_fleet_is_not_told_to_lie() -> None:
    with pytest.raises(RecipeError, match="only simulations let devices lie"):
        refuse_attack(small_recipe(2, attack__kind="flip"))

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cos2p.view.devices import Roster
from cos2p.view.lanes import OUTCOMES, PHASES, LanesBuilder
from tests.view.diary import SECONDS, Diary, two_rounds


def lanes_of(diary: Diary, deadline: float | None = None) -> dict[str, Any]:
    roster = Roster()
    lanes = LanesBuilder(roster, deadline)
    for event in diary.reported():
        roster.feed(event)
        lanes.feed(event)
    return dict(lanes.document()) | {"names": roster.names}


def reported(found: dict[str, Any], client: str) -> list[tuple[float, str, int]]:
    """(seconds, phase, task) of each segment."""
    lane = found["lanes"][found["names"].index(client)]
    return [
        (round(length * found["tick"], 6), PHASES[phase], task)
        for length, phase, task in zip(lane["length"], lane["phase"], lane["task"], strict=True)
    ]


def outcomes(found: dict[str, Any], client: str) -> list[str]:
    return [OUTCOMES[number] for number in found["lanes"][found["names"].index(client)]["outcome"]]


TASK = [(1.0, "download"), (2.0, "masks"), (6.0, "training"), (1.0, "upload")]


def test_two_rounds_by_hand() -> None:
    found = lanes_of(two_rounds())
    work = [(seconds, phase, 0) for seconds, phase in TASK]
    assert reported(found, "a") == [*work, *((s, p, 1) for s, p in TASK), (5.0, "idle", -1)]
    assert reported(found, "b") == [
        (1.0, "download", 0), (2.0, "masks", 0), (11.0, "training", 0), (1.0, "upload", 0), (10.0, "idle", -1),
    ]  # fmt: skip
    a, b = found["lanes"]
    assert (a["version"], a["tau"], outcomes(found, "a")) == ([0, 1], [0, 0], ["merged", "merged"])
    assert (b["version"], b["tau"], outcomes(found, "b")) == ([0], [1], ["merged"])
    assert found["end"] * found["tick"] == 25.0


def test_an_open_task_goes_as_far_as_it_is_known_and_gets_staler() -> None:
    diary = Diary().started("a", "b").joined(0, "a").task(0, "a#0").joined(0, "b").task(0, "b#0")
    found = lanes_of(diary.aggregated(4.0, 1, ["b"]))
    assert reported(found, "a") == [(1.0, "download", 0), (2.0, "masks", 0), (1.0, "training", 0)]
    assert (found["lanes"][0]["tau"], outcomes(found, "a")) == ([1], ["open"])


def test_a_device_that_comes_late_restarts_and_leaves() -> None:
    diary = Diary().started("a").joined(5, "a").task(5, "a#0").add("lost", 7.5, client="a", task="a#0")
    diary.joined(10, "a").task(10, "a#1").add("left", 12, client="a").add(
        "refused", 14, client="a", task="", reason="x"
    )
    found = lanes_of(diary)
    assert reported(found, "a") == [
        (5.0, "absent", -1), (1.0, "download", 0), (1.5, "masks", 0), (2.5, "dead", -1),
        (1.0, "download", 1), (1.0, "masks", 1), (2.0, "absent", -1),
    ]  # fmt: skip
    assert outcomes(found, "a") == ["lost", "lost"]


def test_a_device_that_leaves_while_it_restarts_stays_dead() -> None:
    diary = Diary().started("a").joined(0, "a").task(0, "a#0").add("lost", 2, client="a", task="a#0")
    diary.add("left", 6, client="a")
    found = lanes_of(diary.finished(10, 0))
    assert reported(found, "a") == [(1.0, "download", 0), (1.0, "masks", 0), (8.0, "dead", -1)]


def test_past_the_deadline_it_is_late() -> None:
    found = lanes_of(Diary().started("a").joined(0, "a").task(0, "a#0").answered(10, "a#0"), deadline=8.0)
    assert reported(found, "a") == [(1.0, "download", 0), (2.0, "masks", 0), (5.0, "training", 0), (2.0, "late", 0)]


def test_outcomes_of_what_was_not_merged() -> None:
    diary = Diary().started("a").joined(0, "a")
    diary.task(0, "a#0").arrived(10, "a#0").add("refused", 10, client="a", task="a#0", reason="too large")
    diary.task(10, "a#1").arrived(20, "a#1").add("dropped", 20, client="a", task="a#1", reason="too stale")
    diary.task(20, "a#2").add("failed", 25, client="a", task="a#2", reason="loss not finite")
    assert outcomes(lanes_of(diary.add("excluded", 26, client="a", task="", reason="thrice")), "a") == [
        "refused", "dropped", "failed",
    ]  # fmt: skip


def test_a_fleet_measures_and_an_unusually_long_task_is_late() -> None:
    diary = Diary().started("a").joined(0, "a").task(0, "a#0", seconds=None)
    diary.arrived(10, "a#0", measured={"download": 1.0, "training": 6.0, "upload": 1.0}).merged(10, "a#0")
    diary.task(10, "a#1", seconds=None).aggregated(40, 1, ["b"])
    found = lanes_of(diary)
    assert reported(found, "a") == [
        (3.0, "download", 0), (6.0, "training", 0), (1.0, "upload", 0), (20.0, "training", 1), (10.0, "late", 1),
    ]  # fmt: skip


def test_a_silent_device_whose_answer_comes_all_the_same() -> None:
    diary = Diary().started("a").joined(0, "a").task(0, "a#0", seconds=None)
    diary.add("left", 5, client="a", reason="silent for 5 s").answered(9, "a#0").joined(9, "a").aggregated(10, 1, ["a"])
    found = lanes_of(diary)
    assert reported(found, "a") == [(5.0, "training", 0), (4.0, "dead", -1), (1.0, "idle", -1)]
    assert outcomes(found, "a") == ["merged"]


HAPPENINGS = ("joined", "dispatched", "arrived", "merged", "refused", "dropped", "failed", "lost", "left", "excluded",
              "aggregated")  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 2), st.integers(0, 3), st.floats(0, 50)), max_size=60
    ),
    st.sampled_from([None, 3.0]),
    st.booleans(),
)
def test_lanes_cover_the_run_without_gaps_or_overlaps(
    happenings: list[tuple[str, int, int, float]], deadline: float | None, planned: bool
) -> None:
    """Whatever the order of events, even one that no driver would write."""
    diary, now = Diary().started("c0", "c1", "c2"), 0.0
    for kind, client, attempt, wait in happenings:
        now += wait
        name, task = f"c{client}", f"c{client}#{attempt}"
        if kind == "dispatched":
            diary.task(now, task, seconds=SECONDS if planned else None)
        elif kind == "aggregated":
            diary.aggregated(now, attempt + 1, [name])
        elif kind == "arrived":
            diary.arrived(now, task, measured={"training": wait, "upload": wait / 2})
        elif kind == "merged":
            diary.merged(now, task, tau=1)
        else:
            diary.add(kind, now, client=name, task=task, reason="")
    found = lanes_of(diary, deadline)
    assert len(found["lanes"]) == 3
    for lane in found["lanes"]:
        assert all(length > 0 for length in lane["length"])
        assert sum(lane["length"]) == found["end"]
        assert len(lane["length"]) == len(lane["phase"]) == len(lane["task"])
        assert len(lane["version"]) == len(lane["tau"]) == len(lane["outcome"])
        assert all(-1 <= task < len(lane["version"]) for task in lane["task"])
        ends = list(accumulate(lane["length"]))
        assert ends == sorted(set(ends))

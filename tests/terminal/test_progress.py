from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cos2p.terminal.progress import Progress
from cos2p.tracking.events import EventLog
from tests.events import event
from tests.terminal.fake_run import SLOW, Clock, evaluated, merged, run_events, started


def test_counts_rounds_updates_and_virtual_time() -> None:
    progress = Progress(Clock())
    for reported in list(run_events(rounds=4))[:-1]:
        progress(reported)
    assert (progress.figures.version, progress.figures.merged, progress.figures.now) == (4, 12, 40.0)
    assert progress.share == 1.0
    assert progress.remaining_text() == "last evaluation on the whole test set"


def test_the_score_is_validation_at_the_deepest_exit_with_the_best_so_far() -> None:
    progress = Progress(Clock())
    progress(evaluated(1, 10.0, top1=0.5))
    progress(evaluated(2, 20.0, top1=0.4))
    assert (progress.figures.last, progress.figures.best) == (0.4, (0.5, 1))
    assert progress.score_text() == "server 40.0 % (best 50.0 %, validation)"


def test_without_validation_the_score_is_the_tests() -> None:
    progress = Progress(Clock())
    progress(event("evaluated", 1.0, version=1, test={"8": {"top1": 0.25}}))
    assert progress.score_text() == "server 25.0 % (best 25.0 %, test)"


def test_the_client_mean_is_weighted_by_local_size_and_uses_the_last_report_of_each() -> None:
    progress = Progress(Clock())
    progress(merged("a", 1.0, top1=0.1, samples=30))
    progress(merged("a", 2.0, top1=0.6, samples=30))
    progress(merged("b", 2.0, top1=0.2, samples=10))
    assert progress.figures.client_mean("top1") == pytest.approx((0.6 * 30 + 0.2 * 10) / 40)


def test_late_are_those_older_than_the_median_with_their_staleness() -> None:
    progress = Progress(Clock())
    events = list(run_events(rounds=3))
    assert progress.late() == []
    for reported in events[:-1]:
        progress(reported)
    assert progress.late() == [(SLOW, 3)]
    assert progress.trouble_text() == "late: nx-1 (τ 3)"
    progress(events[-1])
    assert progress.late() == []


def test_a_device_that_is_gone_is_not_late() -> None:
    progress = Progress(Clock())
    for reported in list(run_events(rounds=3))[:-1]:
        progress(reported)
    progress(event("left", 31.0, client=SLOW))
    assert progress.trouble_text() == "nobody late"


def test_many_late_clients_are_counted_not_listed() -> None:
    progress = Progress(Clock())
    progress(started(rounds=9))
    for number in range(9):
        progress(event("dispatched", 0.0 if number < 4 else 5.0, client=f"pi-{number}", version=0))
    progress(event("aggregated", 6.0, version=1))
    assert progress.trouble_text(names=2) == "late: pi-0 (τ 1), pi-1 (τ 1) and 2 more"


def test_an_even_pace_gives_the_exact_time_left() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress(started(rounds=10))
    assert progress.remaining() is None
    for version in range(1, 7):
        clock.now += 5.0
        progress(event("aggregated", 1.0, version=version))
    assert progress.remaining() == pytest.approx(4 * 5.0)
    clock.now += 3.0  # in the middle of a round the time left goes on falling
    assert progress.remaining() == pytest.approx(4 * 5.0 - 3.0)


def test_a_slow_beginning_is_forgotten() -> None:
    """Mask rounds take 60 s, the others 5 s: at round 10 of 12 the rest is 2 · 5 s, not 2 · 21 s."""
    clock = Clock()
    progress = Progress(clock)
    progress(started(rounds=12))
    for version in range(1, 11):
        clock.now += 60.0 if version <= 3 else 5.0
        progress(event("aggregated", 1.0, version=version))
    assert progress.remaining() == pytest.approx(10.0)


def test_the_nearer_of_two_limits_counts() -> None:
    progress = Progress(Clock())
    progress(started(rounds=100, updates=10))
    for number in range(5):
        progress(merged(f"pi-{number}", 1.0))
    progress(event("aggregated", 1.0, version=1))
    assert progress.share == 0.5
    assert progress.count_text() == "updates 5/10, round 1"


def test_a_resumed_run_begins_where_it_was(tmp_path: Path) -> None:
    """What happened before is read from the log, and counts for the figures but not for the pace."""
    before = [reported for reported in run_events(rounds=10) if reported.t <= 60.0]
    with closing(EventLog(tmp_path / "events.jsonl")) as log:
        for reported in before:
            log.write(reported)
    clock = Clock()
    progress = Progress(clock)
    progress(event("resumed", 60.0, rounds=10, log=tmp_path / "events.jsonl"))
    assert (progress.share, progress.figures.merged, progress.figures.now) == (0.6, 18, 60.0)
    assert progress.title == "Co-S²P"
    assert progress.late() == [(SLOW, 6)]
    for version in (7, 8):
        clock.now += 4.0
        progress(event("aggregated", 80.0, version=version))
    assert progress.remaining() == pytest.approx(8.0)  # not 2/8 of the time since the first start


def test_troubles_are_counted() -> None:
    progress = Progress(Clock())
    progress(event("refused", 1.0, client="pi-1", task="pi-1#0", reason="not finite"))
    progress(event("failed", 1.0, client="pi-1", task="pi-1#0", reason="nan"))
    assert progress.trouble_text() == "nobody late · refused 1 · failed 1"


def test_a_large_fleet_is_told_by_its_kinds() -> None:
    names = [f"pi-{number}" for number in range(1, 16)] + [f"orin-{number}" for number in range(1, 11)]
    progress = Progress(Clock())
    progress(event("started", rounds=4, devices={name: {"rate": 0.25} for name in names}))
    progress(event("dispatched", 0.0, client="orin-1", task="orin-1#0", version=0, seconds={}))
    progress(event("aggregated", 10.0, version=1))
    for name in ("pi-1", "pi-2", "orin-2"):
        progress(event("dispatched", 10.0, client=name, task=f"{name}#0", version=1, seconds={}))
    assert progress.trouble_text() == "at work: pi 2 of 15, orin 2 of 10 (1 late)"

"""What events add up to, by hand; and the same from the log as while it was written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from cos2p.runtime.simulation import run
from cos2p.tracking.event_kinds import Event
from cos2p.tracking.events import read_events
from cos2p.tracking.figures import RunFigures
from tests.events import event
from tests.runtime.small import VALUES, small


def folded(*events: Event) -> RunFigures:
    figures = RunFigures()
    figures.replay(events)
    return figures


def started(*names: str) -> Event:
    return event("started", devices={name: {"rate": 0.5, "samples": 10, "memory": 100} for name in names}, rounds=4)


def test_resource_utilisation_by_hand() -> None:
    """a works 10 s of 10, b 5 s: RU 15 / (2 · 10). Then b is gone: RU is a's alone."""
    figures = folded(
        started("a", "b"),
        *(event("joined", client=name) for name in "ab"),
        *(event("dispatched", client=name, task=f"{name}#0") for name in "ab"),
        event("arrived", 5.0, client="b", task="b#0", bytes=3),
        event("left", 6.0, client="b"),
        event("aggregated", 10.0, version=1, n_star=2),
        event("aggregated", 12.0, version=2, n_star=1),
    )
    assert figures.utilisation == [15 / 20, 1.0]
    assert [device.busy for device in figures.devices.values()] == [12.0, 5.0]
    assert (figures.n_star, figures.rounds, figures.share) == (1, 2, 0.5)
    assert figures.total("bytes_up") == 3


def test_rounds_in_which_nothing_trains_say_nothing_of_coverage() -> None:
    """The first tasks of a pretrained form only tell sums of features: their window is empty."""
    reports, trains = (event("merged", client="a", window=window) for window in ([2, 2], [0, 1]))
    reported = (started("a"), reports, event("aggregated", 1.0, version=1, n_star=0))
    assert folded(*reported).n_star is None
    assert folded(*reported, trains, event("aggregated", 2.0, version=2, n_star=3)).n_star == 3
    assert folded(*reported, reports, trains, event("aggregated", 2.0, version=2, n_star=0)).n_star == 0


def test_a_device_that_is_not_here_yet_is_not_counted() -> None:
    figures = folded(
        started("a", "late"),
        event("joined", client="a"),
        event("dispatched", client="a"),
        event("aggregated", 10.0, version=1),
    )
    assert figures.utilisation == [1.0]


@pytest.mark.parametrize("end", ["lost", "left"])
def test_a_task_in_hand_is_lost_with_its_device(end: str) -> None:
    figures = folded(
        started("a"),
        event("joined", client="a"),
        event("dispatched", client="a"),
        event(end, 4.0, client="a"),
        event("left", 9.0, client="a"),
    )
    device = figures.devices["a"]
    assert (device.lost, device.failed, device.task, device.worked(9.0)) == (1, 0, None, 4.0)


def test_a_refused_stranger_counts_but_is_no_device() -> None:
    figures = folded(started("a"), event("refused", client="stranger"), event("unfit", client="other"))
    assert (figures.refused, list(figures.devices)) == (1, ["a"])


def test_the_best_is_by_validation_and_patience_counts_from_it() -> None:
    figures = folded(
        *(
            event("evaluated", version=version, validation={"2": {"top1": top1}}, test={"2": {"top1": 1.0}})
            for version, top1 in enumerate((0.1, 0.5, 0.4, 0.5), start=1)
        )
    )
    assert (figures.part, figures.last, figures.best) == ("validation", 0.5, (0.5, 2))
    assert [figures.out_of_patience(n) for n in (0, 2, 3)] == [False, True, False]


def test_the_best_exit_is_chosen_on_validation_samples_where_there_are_any() -> None:
    figures = RunFigures()
    assert figures.best_exit is None
    test = {"2": {"top1": 0.9}, "4": {"top1": 0.5}}
    figures(event("evaluated", 1.0, version=1, test=test))
    assert figures.best_exit == 2
    figures(event("evaluated", 2.0, version=2, validation={"2": {"top1": 0.5}, "4": {"top1": 0.5}}, test=test))
    assert figures.best_exit == 4  # of equal ones the deepest


def test_a_new_rate_and_a_measured_peak_are_the_devices() -> None:
    figures = folded(
        started("a"),
        event("joined", client="a", rate=0.5, samples=7, memory=50),
        event("dispatched", client="a", task="a#0", peak_memory=40),
        event("failed", 1.0, client="a", task="a#0", measured={"peak": 49.6}),
        event("lowered", 1.0, client="a", rate=0.25),
        event("dispatched", 1.0, client="a", task="a#1", peak_memory=30),
    )
    device = figures.devices["a"]
    assert (device.rate, device.samples, device.memory) == (0.25, 7, 50)
    assert (device.predicted, device.measured, device.failed) == (40, 50, 1)


def test_a_run_that_begins_anew_begins_at_nothing() -> None:
    figures = folded(started("a"), event("merged", client="a"), started("b"))
    assert (figures.merged, list(figures.devices)) == (0, ["b"])


def test_the_log_gives_the_figures_of_the_result_to_the_last_bit(tmp_path: Path) -> None:
    weak, strong = VALUES["fleet"]["devices"]
    (tmp_path / "there.csv").write_text("device,from,to\nany,0,40\n")
    early = {**strong, "online": str(tmp_path / "there.csv")}
    faulty: dict[str, Any] = {"devices": [{**weak, "drop_rate": 0.3}, early]}
    result = run(small(schedule={"rounds": 4}, fleet=faulty), tmp_path / "run")
    figures = folded(*read_events(tmp_path / "run" / "events.jsonl"))
    found = figures.result()
    assert {name: result[name] for name in found} == found
    assert next(iter(found["devices"])) == "jetson-xavier-nx-8gb-1"  # as in the recipe, not by name


def test_a_language_model_is_judged_by_its_perplexity() -> None:
    """Lower is better, for the best version, patience and the exit to use; top-1 has no say."""

    def scores(perplexity: float, top1: float) -> dict[str, float]:
        return {"loss": math.log(perplexity), "perplexity": perplexity, "top1": top1}

    def judged(version: int, deep: float, top1: float) -> Event:
        by_exit = {"1": scores(20.0, 0.9), "2": scores(deep, top1)}
        return event("evaluated", float(version), version=version, validation=by_exit, test=by_exit)

    run = folded(started("a"), judged(1, 30.0, 0.5), judged(2, 12.0, 0.1), judged(3, 15.0, 0.3))
    assert (run.score_name, run.last, run.best, run.since_best) == ("perplexity", 15.0, (12.0, 2), 1)
    assert run.best_exit == 2
    result = run.result()
    assert (result["perplexity"], result["validation_perplexity"]) == (15.0, 15.0)
    assert result["exits_perplexity"] == {"1": 20.0, "2": 15.0}
    assert result["client_perplexity"] is None

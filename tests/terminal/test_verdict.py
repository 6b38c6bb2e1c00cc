from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cos2p.terminal.verdict import headline, verdict
from cos2p.tracking.events import read_events
from cos2p.tracking.figures import RunFigures
from tests.view.diary import Diary, two_rounds


def test_a_run_says_where_it_began_and_what_it_gained(tmp_path: Path) -> None:
    """Sums of features alone make version 1, which is the start; what trains comes after it."""
    figures = RunFigures()
    diary = Diary().started("a").joined(0, "a")
    diary.add("merged", 1, client="a", task="a#0", version=0, staleness=0, window=[2, 2], size=0.0, report={})
    diary.aggregated(1, 1, ["a"]).task(1, "a#1", 1).answered(9, "a#1", loss=1.0).aggregated(9, 2, ["a"])
    diary.evaluated(9, 1, test=0.9).evaluated(9, 2, test=0.6).finished(10, 2, test=0.8)
    figures.replay(read_events(diary.write(tmp_path / "run") / "events.jsonl"))
    result = figures.result()
    assert result["base"]["top1"] == 0.9
    assert result["gain"]["value"] == pytest.approx(-0.1)
    assert figures.best == (0.8, 2)  # patience begins with training
    assert "90.0 % → 80.0 % after training (−10.0" in verdict(result)["outcome"]
    assert "training did harm" in verdict(result)["warning"]
    assert verdict(result)["memory"].startswith("900 B of 1.00 kB")


def test_a_run_that_trains_from_nothing_has_no_start(tmp_path: Path) -> None:
    figures = RunFigures()
    figures.replay(read_events(two_rounds().write(tmp_path / "run") / "events.jsonl"))
    assert "gain" not in figures.result()
    assert "warning" not in verdict(figures.result())


GAIN = {"score": "top1", "value": 0.05, "interval": 0.02}


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"gain": GAIN}, "Training helped: +5.0 points"),
        ({"gain": {**GAIN, "value": -0.05}}, "Training did harm: −5.0 points"),
        ({"gain": {**GAIN, "value": 0.01}, "base": {"top1": 0.8}}, "No gain that the test samples show"),
        ({"gain": {**GAIN, "value": -0.01}, "base": {"top1": 0.8}}, "No gain that the test samples show"),
        ({"gain": {**GAIN, "value": 0.0}, "base": {"top1": 1.0}}, "Right from the start, nothing left to gain"),
        (
            {"gain": {"score": "perplexity", "value": -57.1}, "base": {"perplexity": 97.3}, "perplexity": 40.2},
            "Training helped: perplexity 97.3 → 40.2",
        ),
        ({"top1": 0.2, "majority": 0.3}, "It learned nothing: always naming the most frequent class is as good"),
        ({"top1": 0.2}, ""),
    ],
)
def test_the_headline(result: dict[str, Any], words: str) -> None:
    assert headline(result) == words
    whole: dict[str, Any] = {"devices": {}, "top1": 0.9, "base": {"top1": 0.9}, **result}
    below = result.get("gain", {}).get("value", 0) < 0 and "helped" not in words
    assert ("warning" in verdict(whole)) == below

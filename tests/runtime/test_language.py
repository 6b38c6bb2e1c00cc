"""Language models and answers in whole runs: what they are evaluated by, from the devices to the terminal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from cos2p.recipe import Recipe
from tests.runtime.test_embeddings import play
from tests.runtime.texts import texts


@pytest.mark.parametrize("task", ["language-modeling", "instruction"])
def test_perplexity_falls_and_is_told(task: str, tmp_path: Path) -> None:
    values = texts(tmp_path, task=task, lr=1e-2)
    values["data"] |= {"max_tokens": 24} | ({"prompt": "{text}:"} if task == "instruction" else {})
    values["schedule"] = {"rounds": 6, "mu": 1.0, "t_clk": 0.0, "evaluate_every": 1}
    values["method"] = {"name": "fedavg"}
    _, events = play(Recipe.parse(values))
    evaluated = [event["test"]["2"] for event in events if event["kind"] in ("evaluated", "finished")]
    assert evaluated[-1]["loss"] < evaluated[0]["loss"]
    assert evaluated[-1]["perplexity"] == pytest.approx(math.exp(evaluated[-1]["loss"]))
    assert ("answers" in evaluated[-1]) == (task == "instruction")
    merged = [event["report"] for event in events if event["kind"] == "merged"]
    assert all(report["local_perplexity"] > 1 for report in merged)

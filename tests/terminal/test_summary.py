from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cos2p.terminal.summary import DEVICES, coverage_text, staleness_text, summary


def device(**changes: Any) -> dict[str, Any]:
    plain = {
        "rate": 0.0625,
        "samples": 1200,
        "tasks": 4,
        "updates": 3,
        "busy_seconds": 53.5,
        "bytes_up": 332_944,
        "bytes_down": 2_251_528,
        "top1": 0.824,
    }
    return plain | changes


@pytest.fixture
def result() -> dict[str, Any]:
    return {
        "recipe": "quickstart",
        "method": "cos2p",
        "title": "Co-S²P",
        "finished": "rounds",
        "seed": 3,
        "rounds": 30,
        "updates": 171,
        "refused": 0,
        "wall_seconds": 81.4,
        "top1": 0.7142,
        "top5": 0.95,
        "f1": 0.7,
        "validation_top1": None,
        "chance": 0.1,
        "majority": 0.1135,
        "client_majority": 0.41,
        "exits": {"4": 0.7, "8": 0.7142},
        "best_exit": 8,
        "client_top1": 0.81,
        "client_top5": 0.99,
        "client_f1": 0.5,
        "ru": 0.934,
        "busy": 0.87,
        "virtual_seconds": 214.0,
        "bytes_up": 7_694_424,
        "bytes_down": 22_073_784,
        "n_star": 2,
        "staleness": {"0": 120, "1": 45, "10": 6},
        "devices": {"nx-1": device(), "orin-1": device(rate=0.5625, top1=None)},
    }


def shown(result: dict[str, Any], folder: Path, width: int = 120) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(summary(result, folder))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_every_figure_is_there(result: dict[str, Any], tmp_path: Path) -> None:
    assert shown(result, tmp_path / "run")[:10] == [
        "Co-S²P on quickstart, seed 3: 30 rounds, 171 updates, 1 min 21 s on this machine",
        "server        top-1 71.4 % · top-5 95.0 % · F1 70.0 % (chance 10.0 %, most frequent class 11.3 %)",
        "clients' own  top-1 81.0 % · top-5 99.0 % · F1 50.0 % (most frequent class 41.0 %)",
        "fleet         RU 93.4 % · busy 87.0 % of the time",
        "virtual time  3 min 34 s",
        "sent          22.1 MB down · 7.69 MB up",
        "coverage      N* 2: every head and unit was in at least 2 updates of every round",
        "staleness τ   0 █ 120 · 1 ▃ 45 · 10 ▁ 6",
        "device       R  samples  updates  busy     down      up  own top-1",
        "nx-1    0.0625    1,200        3  25 %  2.25 MB  333 kB     82.4 %",
    ]


def test_says_where_the_files_are(result: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "result.json").touch()
    (tmp_path / "model").mkdir()
    text = " ".join(shown(result, tmp_path, width=400))
    assert f"in {tmp_path}: result.json (the figures), model (the model, as a Hugging Face folder)" in text
    assert "checkpoint" not in text


def test_an_unplanned_end_and_refused_updates_are_told(result: dict[str, Any], tmp_path: Path) -> None:
    text = "\n".join(shown(result | {"finished": "no device is left that could answer", "refused": 2}, tmp_path))
    assert "ended by      no device is left that could answer" in text
    assert "refused       2 updates" in text


def test_a_run_over_the_budget_says_so(result: dict[str, Any], tmp_path: Path) -> None:
    over = {"over_budget": {"devices": 1, "needs": 357_000_000, "has": 60_000_000}}
    assert "memory        over the budget: needs 357 MB of 60.0 MB, 1 device has too little" in shown(
        result | over, tmp_path
    )


def test_a_run_without_figures_can_be_shown(result: dict[str, Any], tmp_path: Path) -> None:
    empty = {"ru": None, "n_star": None, "top1": None, "client_top1": None, "staleness": {}, "virtual_seconds": 0.0}
    text = "\n".join(shown(result | empty, tmp_path))
    assert "RU –" in text
    assert "N* –" in text


def test_few_classes_have_no_top_5_and_an_unknown_score_no_chance(result: dict[str, Any], tmp_path: Path) -> None:
    text = "\n".join(shown(result | {"top5": None, "client_top5": None, "client_top1": None}, tmp_path))
    assert "top-1 71.4 % · F1 70.0 % (chance" in text
    assert "clients' own" not in text


def test_a_shallower_exit_that_is_better_is_named(result: dict[str, Any], tmp_path: Path) -> None:
    better = {"exits": {"6": 0.783, "8": 0.7142}, "best_exit": 6}
    assert any(line.startswith("better exit   exit 6 of 8: top-1 78.3 %") for line in shown(result | better, tmp_path))
    assert not any("better exit" in line for line in shown(result, tmp_path))


def test_coverage_says_what_it_means() -> None:
    assert coverage_text(None) == "N* –: no round trained any block"
    assert coverage_text(0).endswith("stood still")
    assert coverage_text(1) == "N* 1: every head and unit was in at least 1 update of every round"


def test_a_large_fleet_is_told_by_its_kinds(result: dict[str, Any], tmp_path: Path) -> None:
    fleet = {f"pi-{number}": device() for number in range(DEVICES)} | {"orin-1": device(rate=0.5, top1=None)}
    lines = shown(result | {"devices": fleet}, tmp_path)
    assert [line.split() for line in lines if line.startswith(("kind", "pi", "orin"))] == [
        ["kind", "devices", "R", "samples", "updates", "busy", "down", "up", "own", "top-1"],
        ["pi", "20", "0.0625", "24,000", "60", "25", "%", "45.0", "MB", "6.66", "MB", "82.4", "%"],
        ["orin", "1", "0.5", "1,200", "3", "25", "%", "2.25", "MB", "333", "kB", "–"],
    ]


def test_a_name_cannot_write_markup(result: dict[str, Any], tmp_path: Path) -> None:
    lines = shown(result | {"devices": {"[bold]pi\x1b[0m": device()}}, tmp_path)
    assert any(line.startswith("[bold]pi?[0m") for line in lines)


def test_the_histogram_is_sorted_by_staleness_not_by_text() -> None:
    assert staleness_text({"10": 1, "2": 8}) == "2 █ 8 · 10 ▁ 1"
    assert staleness_text({}) == ""

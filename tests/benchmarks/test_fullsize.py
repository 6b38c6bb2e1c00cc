from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fullsize.__main__ import ratios
from benchmarks.fullsize.llama import run as run_llama
from benchmarks.fullsize.rounds import Round, Rounds, sums, table
from benchmarks.fullsize.tasks import Measured, Record
from benchmarks.fullsize.vision import synthetic
from cos2p.runtime.run_setup import build_run_setup

ENTRY = Measured("e1", "cos2p", "jetson", 3, 0.25, 4, (0, 2), predicted=100, peak=90, cpu_seconds=2.0, down=10, up=5)


def test_a_record_is_read_back_and_says_what_is_known(tmp_path: Path) -> None:
    record = Record(tmp_path / "runs" / "record.jsonl")
    assert not record.has(*ENTRY.key)
    record.add(ENTRY)
    record.add(replace(ENTRY, method="fedrolex", failure="out of memory"))
    again = Record(record.path)
    assert again.known == record.known
    assert again.has("e1", "cos2p", "jetson", 4, 0.25)
    assert not again.has("e1", "cos2p", "jetson", 8, 0.25)


def test_ratios_by_hand() -> None:
    """Three devices of one kind and one of another: (3·90 + 40) / (3·120 + 40) − 1."""
    other = replace(ENTRY, tier="pi", devices=1, rate=0.0625, peak=40)
    theirs = [replace(ENTRY, method="fedrolex", peak=120, cpu_seconds=4.0), replace(other, method="fedrolex")]
    found = ratios([ENTRY, other, *theirs])
    assert found["memory"] == pytest.approx(310 / 400 - 1)
    assert found["time"] == pytest.approx(8 / 14 - 1)
    assert ratios([ENTRY, other]) == {}
    assert ratios([ENTRY, replace(theirs[0], failure="killed")]) == {}


def test_the_synthetic_fleet_is_the_recipes(tmp_path: Path) -> None:
    run_setup = build_run_setup(synthetic("e1", "fedrolex", tmp_path, batch=2))
    assert len(run_setup.context.members) == 8
    assert run_setup.config.classes == 200
    assert {(member.batch, member.samples) for member in run_setup.context.members.values()} == {(2, 2)}
    assert sorted({member.rate for member in run_setup.context.members.values()}) == [0.0625, 0.5625]


def test_without_weights_the_language_model_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record(tmp_path / "record.jsonl")
    run_llama(record, tmp_path, tmp_path / "texts.csv", [0.25], ["cos2p"], 4, 0)
    assert "make weights" in capsys.readouterr().out
    assert record.known == []


def test_rounds_are_read_back(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path / "rounds.jsonl")
    rounds.add(Round("e1", "cos2p", (ENTRY, replace(ENTRY, tier="pi")), merged=2, n_star=1, server_seconds=0.5))
    again = Rounds(rounds.path)
    assert again.known == rounds.known
    assert again.has("e1", "cos2p", 4)
    assert not again.has("e1", "fedrolex", 4)


def test_a_rounds_table_by_hand() -> None:
    """Two devices of 90 and 70 bytes against two of 100: 160 / 200 is 20 % less; 2 + 2 against 4 + 4 seconds: half."""
    ours = Round("e1", "cos2p", (ENTRY, replace(ENTRY, peak=70)), 2, 1, 0.0)
    theirs = Round("e1", "fedrolex", (replace(ENTRY, peak=100, cpu_seconds=4.0),) * 2, 2, 1, 0.0)
    assert sums(ours.tasks) == (160.0, 4.0, 20.0, 10.0)
    shown = table("e1", [ours, theirs])
    cells = {str(column.header): list(column.cells) for column in shown.columns}
    assert cells["form"][-1] == "cos2p / fedrolex"
    assert (cells["peak MB"][-1], cells["CPU s"][-1], cells["down MB"][-1]) == ("-20%", "-50%", "+0%")
    assert cells["meas/pred"][0] == "0.70 to 0.90"

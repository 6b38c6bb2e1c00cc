"""cos2p from Python: what a user types first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cos2p
from cos2p.api import Table, _path_of
from cos2p.errors import ConfigError, Interrupted, RunError
from tests.models.test_hub_export import word_tokenizer

QUICK: dict[str, Any] = {"rounds": 1, "train_samples": 120, "test_samples": 60, "depth": 2, "workers": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cos2p.Run]:
    before, place = Path.cwd(), tmp_path_factory.mktemp("api")
    os.chdir(place)
    yield cos2p.run("quickstart", progress=False, lr=2e-3, **QUICK)
    os.chdir(before)


def test_a_run_has_figures_rounds_and_a_short_form(run: cos2p.Run) -> None:
    assert run.recipe.training.lr == 2e-3
    assert 0 <= run.result.top1 <= 1
    assert run.result["top1"] == run.result.top1
    assert len(run.rounds) >= 1
    assert len(repr(run)) < 400
    assert "<table>" in run._repr_html_()


def test_a_figure_that_is_not_there_is_named(run: cos2p.Run) -> None:
    with pytest.raises(AttributeError, match=r"no 'accuracy'.*top1"):
        _ = run.result.accuracy


def test_the_same_call_returns_the_same_run(run: cos2p.Run) -> None:
    began = (run.folder / "result.json").stat().st_mtime_ns
    again = cos2p.run("quickstart", progress=False, lr=2e-3, **QUICK)
    assert again.folder == run.folder
    assert (again.folder / "result.json").stat().st_mtime_ns == began


def test_another_recipe_of_the_name_gets_a_folder_of_its_own(run: cos2p.Run) -> None:
    other = cos2p.run("quickstart", progress=False, lr=1e-3, **QUICK)
    assert other.folder.name == f"{run.folder.name}-2"


def test_it_is_opened_evaluated_exported_and_reported(run: cos2p.Run, tmp_path: Path) -> None:
    opened = cos2p.open(run.folder)
    assert isinstance(opened, cos2p.Run)
    assert opened.result == run.result
    assert opened.evaluate().accuracy == run.result.top1
    out = opened.export(tmp_path / "out")
    assert (out / "config.json").is_file()
    with pytest.raises(RunError, match="overwrite=True"):
        opened.export(out)
    (out / "old.safetensors").touch()
    assert not (opened.export(out, overwrite=True) / "old.safetensors").exists()
    with pytest.raises(RunError, match="left alone"):
        opened.export(run.folder, overwrite=True)
    assert opened.report(tmp_path / "page.html").stat().st_size > 10_000


def test_a_curve_is_drawn(run: cos2p.Run) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    assert run.plot().get_xlabel() == "updates"
    with pytest.raises(ConfigError, match="nothing to plot against 'joy'"):
        run.plot("joy")


def test_a_folder_that_is_neither_run_nor_study(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="neither a run"):
        cos2p.open(tmp_path)


def test_changes_find_their_field() -> None:
    assert [_path_of(name) for name in ("lr", "rounds", "seed")] == ["training.lr", "schedule.rounds", "seed"]


def test_a_change_that_fits_no_field() -> None:
    with pytest.raises(ConfigError, match="no recipe field is called 'lrr'; did you mean 'lr'"):
        cos2p.run("quickstart", progress=False, lrr=1e-3)


@pytest.mark.parametrize(
    "stop", [Interrupted("stopped at virtual second 31; go on with --resume"), KeyboardInterrupt()]
)
def test_ctrl_c_ends_a_script_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, stop: BaseException
) -> None:
    def stopped(*given: Any, **named: Any) -> None:
        raise stop

    monkeypatch.setattr("cos2p.api.simulate", stopped)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(Interrupted, match=r"^stopped.*; the same call goes on with .*here$") as caught:
        cos2p.run("quickstart", tmp_path / "here", progress=False)
    with pytest.raises(SystemExit, match="130"):
        sys.excepthook(caught.type, caught.value, caught.tb)
    assert capsys.readouterr().err == f"{caught.value}\n"
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shell._showtraceback = lambda kind, value, shown: print(*shown)
    shell.showtraceback((caught.type, caught.value, caught.tb))
    assert capsys.readouterr().out == f"{caught.value}\n"


def test_devices_get_one_memory() -> None:
    with pytest.raises(cos2p.Cos2pError, match=r"has 1\.00 kB"):
        cos2p.run("quickstart", progress=False, memory="1kB")


def test_rows_without_pandas() -> None:
    table = Table([{"name": "a<b", "top1": 0.5}])
    assert repr(table) == "Table of 1 rows: name, top1"
    assert "a&lt;b" in table._repr_html_()


def test_wrap_writes_a_folder_that_a_recipe_reads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    folder = cos2p.wrap(transformers.ViTForImageClassification(config), folder=tmp_path / "model")
    assert cos2p.load_pretrained(folder)[0].depth == 2
    with pytest.raises(ConfigError, match="not str"):
        cos2p.wrap("vit")


@pytest.mark.slow
def test_a_comparison(tmp_path: Path) -> None:
    study = cos2p.compare(
        "quickstart", ["cos2p", "fedrolex"], seeds=[0], out=tmp_path / "study", updates=8, progress=False,
        train_samples=120, test_samples=60, depth=2,
    )  # fmt: skip
    assert len(study.table) == 2
    assert len(study.runs) == 2
    assert "<table>" in study._repr_html_()
    assert repr(cos2p.open(tmp_path / "study")) == repr(study)


def test_finetune_takes_a_checkpoint_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = cos2p.model_config("bert-nano", vocab=300, max_tokens=24, classes=2)
    cos2p.save_pretrained("bert", config, cos2p.init_weights(config, 0))
    word_tokenizer(Path("bert"))
    rows = "".join(f"{'good' if i % 2 else 'bad'} number {i},{i % 2}\n" for i in range(80))
    Path("mine.csv").write_text("text,label\n" + rows)
    done = cos2p.finetune(
        tmp_path / "bert", tmp_path / "mine.csv", memory="60MB", devices=2, rounds=3, progress=False, workers=1
    )
    assert done.recipe.data.max_tokens == 8
    card = done.export("out").joinpath("README.md").read_text("utf-8")
    assert "lr_decay" not in card
    assert 'train = "mine.csv"' in card
    assert str(tmp_path) not in card
    (label, _), *_ = done.predict(["good number 3"])[0].answers
    assert label in ("0", "1")
    assert done.folder == Path("runs/mine-0")

"""`cos2p run` in this process: every mistake is one line and an exit code, before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cos2p.runtime.simulation as runtime
from cos2p.cli.app import app
from cos2p.cli.run import default_folder
from cos2p.errors import TrainingError
from cos2p.recipe import Recipe
from tests.events import event


def cli(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["run", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def failed(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    code, out, err = cli(*arguments)
    assert out == ""
    assert err.count("\n") == 1, err
    return code, err


class FakeRun:
    """Stands for the simulator: remembers what it was asked for and answers with made-up figures."""

    def __init__(self) -> None:
        self.calls: list[tuple[Recipe, Path, dict[str, Any]]] = []
        self.error: BaseException | None = None

    def __call__(self, recipe: Recipe, out: Path, **options: Any) -> dict[str, Any]:
        self.calls.append((recipe, out, options))
        if options["listener"]:
            options["listener"](event("aggregated", 1.5, version=1))
        if self.error:
            raise self.error
        figures = dict.fromkeys(("top1", "ru", "busy", "n_star"))
        counts = dict.fromkeys(("rounds", "updates", "refused", "bytes_up", "bytes_down", "virtual_seconds"), 0)
        names = {"title": "Co-S²P", "recipe": recipe.name, "seed": recipe.seed}
        return {**figures, **counts, **names, "staleness": {}, "devices": {}, "finished": "rounds"}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    stand_in = FakeRun()
    monkeypatch.setattr(runtime, "run", stand_in)
    return stand_in


# ---------------------------------------------------------------- what is asked of the simulator


def test_options_become_the_recipe(fake: FakeRun, tiny: Path, tmp_path: Path) -> None:
    options = ["--set", "training.epochs=3", "--set", "schedule.rounds=7", "--seed", "5", "--workers", "2"]
    assert cli(tiny, "--out", tmp_path / "x", *options)[0] == 0
    ((recipe, out, called),) = fake.calls
    assert (recipe.training.epochs, recipe.schedule.rounds, recipe.seed, recipe.run.workers) == (3, 7, 5, 2)
    assert out == tmp_path / "x"
    assert (called["resume"], called["overwrite"]) == (False, False)


def test_another_method_keeps_the_settings_only_if_they_are_its_own(fake: FakeRun, tiny: Path) -> None:
    cli(tiny, "--method", "cos2p-sync")
    cli(tiny, "--method", "fedavg", "--set", "method.weights=samples")
    synchronous, average = (recipe.method for recipe, _, _ in fake.calls)
    assert synchronous["name"] == "cos2p-sync"
    assert synchronous["masks"]["rounds"] == 1
    assert average == {"name": "fedavg", "start": "fresh", "finish": "trained", "weights": "samples"}


def test_the_default_folder_names_recipe_method_and_seed() -> None:
    recipe = Recipe.load("quickstart", ["seed=4"])
    assert default_folder(recipe) == Path("runs/quickstart-4")
    assert default_folder(recipe, "fedavg") == Path("runs/quickstart-fedavg-4")


def test_resume_without_a_recipe_takes_the_one_in_the_folder(fake: FakeRun, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text(tiny.read_text().replace("rounds = 2", "rounds = 9"), encoding="utf-8")
    assert cli("--resume", "--out", folder)[0] == 0
    ((recipe, out, called),) = fake.calls
    assert (recipe.schedule.rounds, out, called["resume"]) == (9, folder, True)


# ---------------------------------------------------------------- what is said


def test_quiet_says_nothing_but_the_summary(fake: FakeRun, tiny: Path) -> None:
    code, out, err = cli(tiny, "-q")
    assert (code, err) == (0, "")
    assert out.startswith("Co-S²P on tiny, seed 0")
    assert fake.calls[0][2]["listener"] is None


def test_without_a_terminal_progress_goes_to_stderr(fake: FakeRun, tiny: Path) -> None:
    _, out, err = cli(tiny)
    assert err.startswith("round 1/")
    assert out.startswith("Co-S²P on tiny")


def test_json_gives_events_and_the_result_one_object_per_line(fake: FakeRun, tiny: Path, tmp_path: Path) -> None:
    code, out, err = cli(tiny, "--json", "--out", tmp_path / "x")
    assert (code, err) == (0, "")
    reported, result = (json.loads(line) for line in out.splitlines())
    assert (reported["kind"], reported["t"], reported["version"]) == ("aggregated", 1.5, 1)
    assert (result["kind"], result["recipe"], result["out"]) == ("result", "tiny", str(tmp_path / "x"))


def test_quiet_json_is_the_result_alone(fake: FakeRun, tiny: Path) -> None:
    assert json.loads(cli(tiny, "--json", "-q")[1])["kind"] == "result"


@pytest.mark.parametrize("stop", [runtime.Interrupted("stopped at virtual second 31; go on"), KeyboardInterrupt()])
def test_ctrl_c_says_how_to_go_on(fake: FakeRun, tiny: Path, tmp_path: Path, stop: BaseException) -> None:
    fake.error = stop
    code, _, err = cli(tiny, "-q", "--out", tmp_path / "my runs")
    assert code == 130
    assert err.endswith(f"; go on with:  cos2p run --resume --out '{tmp_path}/my runs'\n")


def test_an_error_of_the_run_is_one_line(fake: FakeRun, tiny: Path) -> None:
    fake.error = TrainingError("the loss became nan; lower training.lr (now 5)")
    assert failed(tiny, "-q") == (8, "error: the loss became nan; lower training.lr (now 5)\n")


def test_a_defect_names_the_run_folder(fake: FakeRun, tiny: Path) -> None:
    fake.error = ZeroDivisionError("a defect")
    result = CliRunner().invoke(app, ["run", str(tiny), "-q"])
    assert isinstance(result.exception, ZeroDivisionError)
    assert result.exception.__notes__ == ["run folder: runs/tiny-0"]


# ---------------------------------------------------------------- mistakes, found before anything is trained


def test_no_recipe_at_all() -> None:
    code, line = failed()
    assert code == 2
    assert "cos2p recipes ls" in line


def test_an_unknown_recipe() -> None:
    code, line = failed("quickstrat")
    assert code == 2
    assert "did you mean 'quickstart'?" in line


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("schedule.rounds", "write path.to.field=value"),
        ("schedule.rounds=0", "schedule.rounds: Input should be greater than or equal to 1 (got 0)"),
        ("schedule.round=3", "schedule.round: there is no such field"),
        ("name.first=x", "'name' is not a table"),
        ("fleet.devices.7.rate=0.5", "fleet.devices.7.rate"),
        ("method.name=cosp", "did you mean 'cos2p'?"),
        ("fleet.devices.0.memory=lots", "fleet.devices.0"),
    ],
)
def test_a_bad_change(tiny: Path, tmp_path: Path, change: str, said: str) -> None:
    code, line = failed(tiny, "--out", tmp_path / "run", "--set", change)
    assert code == 2
    assert said in line
    assert not (tmp_path / "run").exists()


def test_an_unknown_method(tiny: Path) -> None:
    code, line = failed(tiny, "--method", "fedavgg")
    assert code == 2
    assert "did you mean 'fedavg'?" in line


def test_missing_data(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COS2P_DATA", raising=False)
    changes = ["data.source=idx", "data.path=nowhere", "data.train=train-images-idx3-ubyte"]
    options = [part for change in changes for part in ("--set", change)]
    code, line = failed(tiny, "-q", "--out", tmp_path / "run", *options)
    assert code == 6
    assert "COS2P_DATA" in line


def test_a_file_where_the_folder_should_be(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        code, line = failed(tiny, "-q", "--out", out)
        assert code == 7
        assert str(out) in line
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


def test_a_folder_that_holds_something_is_left_alone(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine", encoding="utf-8")
    code, line = failed(tiny, "-q", "--out", tmp_path / "run")
    assert code == 7
    assert "--overwrite" in line
    code, line = failed(tiny, "-q", "--out", tmp_path / "run", "--overwrite")
    assert code == 7
    assert (tmp_path / "run" / "thesis.txt").read_text(encoding="utf-8") == "mine"


def test_resume_where_there_is_no_run(tmp_path: Path) -> None:
    code, line = failed("--resume", "--out", tmp_path / "nothing")
    assert code == 2
    assert "no run to resume" in line

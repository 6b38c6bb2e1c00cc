"""`cos2p compare`, `ablate` and `sweep`: what they ask for, what they say, how they end. The runs are made up."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

import cos2p.studies.runner as runner
from cos2p.cli.app import app
from cos2p.errors import Interrupted
from cos2p.studies.grid import Cell, CellOutcomes
from cos2p.studies.progress import StudyProgress
from tests.studies.fakes import TINY, Answer, FakeExecute, figures


class FakeRunner:
    """Stands for the runner of cells: tells the view and makes figures up."""

    answer: Answer = staticmethod(lambda cell: figures(0.5))
    error: Exception | None = None
    made: ClassVar[list[FakeRunner]]

    def __init__(
        self, folder: Path, view: StudyProgress, jobs: int, retry: bool, engine: Mapping[str, str], figures_only: bool
    ) -> None:
        self.figures_only = figures_only
        self.folder, self.view, self.jobs, self.retry, self.engine = folder, view, jobs, retry, engine
        self.execute = FakeExecute(type(self).answer)
        self.made.append(self)

    def __call__(
        self, cells: Sequence[Cell], after: Callable[[CellOutcomes], None] | None = None, later: int = 0
    ) -> CellOutcomes:
        if self.error:
            raise self.error
        self.view.begin(cells, {}, later)
        outcomes = self.execute(cells, after, later)
        for cell in cells:
            self.view.ended(cell, outcomes[cell.name])
        return outcomes


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeRunner]:
    class Fresh(FakeRunner):
        made: ClassVar[list[FakeRunner]] = []

    monkeypatch.setattr(runner, "Runner", Fresh)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    return Fresh


def cli(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def recipes(fake: type[FakeRunner]) -> list[tuple[str, str, int]]:
    (made,) = fake.made
    return [(cell.row, cell.recipe.method["name"], cell.seed) for cell in made.execute.cells]


def test_compare(fake: type[FakeRunner], tmp_path: Path) -> None:
    options = ["--methods", "fedavg,cos2p", "--seeds", "0,2", "--jobs", "2", "--out", "out", "--retry"]
    code, out, err = cli("compare", "tiny.toml", *options, "--set", "training.epochs=2", "--updates", "6")
    assert (code, len(err.splitlines())) == (0, 5)
    assert recipes(fake) == [
        ("fedavg", "fedavg", 0),
        ("cos2p", "cos2p", 0),
        ("fedavg", "fedavg", 2),
        ("cos2p", "cos2p", 2),
    ]
    (made,) = fake.made
    assert (made.folder, made.jobs, made.retry) == (Path("out"), 2, True)
    assert {(cell.recipe.training.epochs, cell.recipe.schedule.updates) for cell in made.execute.cells} == {(2, 6)}
    assert out.startswith("tiny: methods at equal budget")
    assert "FedAvg (full) *" in out
    table = (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    command = "cos2p compare tiny.toml --methods fedavg,cos2p --seeds 0,2 --updates 6 --set training.epochs=2"
    assert f"`{command}`" in table


def test_what_is_kept_of_runs(fake: type[FakeRunner]) -> None:
    for options in ([], ["--keep", "all"], ["--keep", "figures"]):
        assert cli("compare", "tiny.toml", "--methods", "cos2p", "--seeds", "0", "-q", *options)[0] == 0
    assert [made.figures_only for made in fake.made] == [False, False, True]
    code, _, err = cli("compare", "tiny.toml", "--keep", "nothing")
    assert (code, "all, figures" in err) == (2, True)


def test_compare_with_tuning_writes_the_choice(fake: type[FakeRunner], tmp_path: Path) -> None:
    options = [
        "--methods",
        "cos2p",
        "--seeds",
        "0",
        "--tune",
        "--lrs",
        "0.001,0.002",
        "--tune-updates",
        "2",
        "--tune-finalists",
        "1",
    ]
    assert cli("compare", "tiny.toml", *options, "-q")[0] == 0
    folder = tmp_path / "runs" / "compare-tiny"
    tuning = json.loads((folder / "study.json").read_text(encoding="utf-8"))["tuning"]
    assert (tuning["seed"], tuning["updates"], tuning["rows"]["cos2p"]["lr"]) == (1000, 2, 0.002)
    assert [entry["updates"] for entry in tuning["rows"]["cos2p"]["tried"]][-1] == 4
    assert "--tune --lrs 0.001,0.002 --tune-updates 2 --tune-finalists 1" in (folder / "table.md").read_text(
        encoding="utf-8"
    )


def test_compare_takes_shorter_trials_for_one_method(fake: type[FakeRunner], tmp_path: Path) -> None:
    options = ["--methods", "fedavg,cos2p", "--seeds", "0", "--tune", "--lrs", "0.001"]
    assert cli("compare", "tiny.toml", *options, "--tune-updates", "fedavg:1", "-q")[0] == 0
    folder = tmp_path / "runs" / "compare-tiny"
    rows = json.loads((folder / "study.json").read_text(encoding="utf-8"))["tuning"]["rows"]
    assert (rows["fedavg"]["updates"], rows["cos2p"]["updates"]) == (1, 4)
    assert "--tune-updates fedavg:1" in (folder / "table.md").read_text(encoding="utf-8")
    for wrong in ("many", "0", "fedavg:", "fedavg:-1"):
        code, _, err = cli("compare", "tiny.toml", *options, "--tune-updates", wrong)
        assert (code, f"cannot read --tune-updates {wrong!r}" in err) == (2, True)


def test_ablate(fake: type[FakeRunner], tmp_path: Path) -> None:
    code, out, _ = cli("ablate", "tiny.toml", "--rows", "synchronous,balanced", "--seeds", "0", "--out", "out")
    assert code == 0
    assert [row for row, _, _ in recipes(fake)] == ["synchronous", "all-parts", "balanced"]
    assert "Rows of our own" in out
    assert (tmp_path / "out" / "own-differences.csv").exists()


def test_a_study_ends_with_its_page(fake: type[FakeRunner], tmp_path: Path) -> None:
    code, out, _ = cli(
        "sweep", "tiny.toml", "--over", "mu=0.5,1", "--over", "t_clk=0,10", "--seeds", "0", "--out", "out"
    )
    assert code == 0
    assert "report.html" in out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="view">(.*?)</script>', page)
    assert match is not None
    (study,) = json.loads(match[1])["studies"]
    assert (study["kind"], study["done"], len(study["tables"][0]["rows"])) == ("sweep", 4, 4)
    panels = {(panel["axis"], panel["column"]["key"]) for panel in study["sweep"]}
    assert panels == {(axis, key) for axis in ("mu", "t_clk") for key in ("top1", "client_top1", "ru")}


def test_frontier(fake: type[FakeRunner], tmp_path: Path) -> None:
    code, out, _ = cli(
        "frontier", "tiny.toml", "--methods", "fedavg,fedlora", "--memory", "5MB,100MB", "--seeds", "0", "--out", "out"
    )
    assert code == 0
    assert recipes(fake) == [
        ("fedavg@100MB", "fedavg", 0),
        ("fedlora@5MB", "fedlora", 0),
        ("fedlora@100MB", "fedlora", 0),
    ]
    assert "FedAvg (full) is absent at 5.00 MB: its smallest task needs" in " ".join(out.split())
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"by_budget.csv", "report.html", "table.md"} <= files
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    match = re.search(r'<script type="application/json" id="view">(.*?)</script>', page)
    assert match is not None
    (study,) = json.loads(match[1])["studies"]
    assert {(p["axis"], p["column"]["key"]) for p in study["sweep"]} == {
        ("memory (MB)", key) for key in ("top1", "client_top1", "ru")
    }
    lines = next(p for p in study["sweep"] if p["column"]["key"] == "top1")["lines"]
    assert [(line["name"], line["x"]) for line in lines] == [
        ("method FedAvg (full)", [100.0]),
        ("method FedLoRA", [5.0, 100.0]),
    ]


def test_chance_is_told_in_the_terminal(fake: type[FakeRunner]) -> None:
    fake.answer = staticmethod(lambda cell: figures(0.5, chance=0.1, majority=0.2))
    _, out, _ = cli("compare", "tiny.toml", "--methods", "cos2p", "--seeds", "0", "-q")
    assert "chance 10.0 %, always the most frequent class 20.0 %" in " ".join(out.split())


def test_json_is_one_object_per_line(fake: type[FakeRunner]) -> None:
    code, out, err = cli("compare", "tiny.toml", "--methods", "cos2p", "--seeds", "0", "--json")
    assert (code, err) == (0, "")
    cell, study = (json.loads(line) for line in out.splitlines())
    assert (cell["kind"], cell["cell"]) == ("cell", "cos2p-s0")
    assert (study["kind"], study["out"]) == ("study", "runs/compare-tiny")
    assert study["tables"][0]["rows"][0]["figures"]["top1"]["mean"] == 0.5


def test_failed_cells_make_a_failed_study_with_a_table(fake: type[FakeRunner], tmp_path: Path) -> None:
    def answer(cell: Cell) -> dict[str, Any] | str:
        return "the loss became nan" if cell.seed == 1 else figures(0.5)

    fake.answer = staticmethod(answer)
    code, out, err = cli("compare", "tiny.toml", "--methods", "cos2p", "--seeds", "0,1", "-q", "--out", "out")
    assert code == 1
    assert "Co-S²P †" in out
    assert err == "error: 1 of 2 runs failed; reasons are in out/table.md\n"
    assert "cos2p-s1: the loss became nan" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")


def test_ctrl_c_says_that_the_same_command_goes_on(fake: type[FakeRunner]) -> None:
    fake.error = Interrupted("stopped after 3 of 9 cells")
    code, _, err = cli("compare", "tiny.toml", "--methods", "cos2p", "-q", "--out", "my study")
    assert code == 130
    assert err == "stopped after 3 of 9 cells; the same command goes on with the study in 'my study'\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "tiny.toml", "--seeds", "zero"], "write 0,1,2 or 0-4"),
        (["compare", "tiny.toml", "--seeds", "1,1"], "seed 1 was given twice"),
        (["compare", "tiny.toml", "--methods", "fedavgg"], "did you mean 'fedavg'?"),
        (["compare", "tiny.toml", "--reference", "cosp"], "did you mean 'cos2p'?"),
        (["compare", "nowhere.toml"], "cannot read the recipe nowhere.toml"),
        (["compare", "tiny.toml", "--tune", "--lrs", "fast"], "write numbers with commas"),
        (["compare", "tiny.toml", "--methods", "cos2p", "--tune", "--tune-seed", "0"], "among the final seeds"),
        (["compare", "tiny.toml", "--methods", "cos2p", "--set", "training.lr=0"], "training.lr"),
        (["compare", "tiny.toml", "--methods", "cos2p", "--tune", "--tune-updates", "ramfed:2"], "its methods: cos2p"),
        (["compare", "tiny.toml", "--methods", "cos2p", "--lrs", "0.001"], "add --tune"),
        (["ablate", "tiny.toml", "--rows", "nothing"], "there is no row 'nothing'"),
        (["sweep", "tiny.toml", "--over", "nu=1"], "no such axis"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(fake: type[FakeRunner], arguments: list[str], said: str) -> None:
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err
    assert all(not made.execute.batches for made in fake.made)


def test_help_names_the_studies() -> None:
    out = cli("--help")[1]
    assert all(verb in out for verb in ("compare", "ablate", "sweep"))


@pytest.mark.parametrize(
    "study",
    [
        ["compare", "--methods", "fedavg"],
        ["ablate", "--rows", "paper"],
        ["sweep", "--over", "mu=0.5,1"],
        ["frontier", "--methods", "fedavg", "--memory", "100MB"],
        ["attack", "--attacks", "flip", "--defences", "none"],
    ],
    ids=lambda study: study[0],
)
def test_every_study_can_be_done_by_a_cluster(fake: type[FakeRunner], study: list[str]) -> None:
    kind, *options = study
    code, _, err = cli(kind, "tiny.toml", *options, "--seeds", "0", "--out", "out", "--engine", "ray", "-q")
    assert code == 0, err
    (made,) = fake.made
    assert made.engine == {"engine": "ray"}

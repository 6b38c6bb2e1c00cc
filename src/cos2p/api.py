"""cos2p from Python: begin a run or a study, open one of yesterday, look at what came out.

    run = cos2p.run("quickstart", rounds=2)
    run.result.top1
    run.predict(["digit.png"])

The commands do the same: `cos2p run`, `compare`, `predict`, `evaluate`, `export`, `report`.
"""

from __future__ import annotations

import hashlib
import html
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from cos2p.data import Bundle, DataConfig
from cos2p.drafting import draft_recipe
from cos2p.errors import ConfigError, Interrupted, MissingExtra, RunError
from cos2p.inference.evaluating import Evaluation, Split, evaluate, labelled
from cos2p.inference.exporting import export
from cos2p.inference.generating import Prompt, generate
from cos2p.inference.predicting import Item, Prediction, predict
from cos2p.inference.sources import Exit, Trained, open_trained
from cos2p.models.decoding import Sampling
from cos2p.recipe import Recipe, apply_change, recipe_values
from cos2p.runtime.run_folder import check_same_recipe, log_notes
from cos2p.runtime.simulation import run as simulate
from cos2p.studies.compare import comparison
from cos2p.studies.folder import study_folder
from cos2p.studies.folder import write_report as write_study
from cos2p.studies.grid import Base
from cos2p.studies.progress import StudyProgress
from cos2p.studies.report import StudyPlan, run_study
from cos2p.studies.runner import Runner
from cos2p.studies.target import read_curve
from cos2p.studies.views import showing
from cos2p.terminal.following import following
from cos2p.terminal.formatting import percent, print_line
from cos2p.tracking.events import Listener
from cos2p.tracking.files import read_json
from cos2p.view.frozen import write_report

Data = Bundle | Callable[[DataConfig, int], Bundle]
Rows = Any
"""A pandas DataFrame where pandas is installed, else a `Table`."""

SHOWN = ("top1", "perplexity", "client_top1", "virtual_seconds", "bytes_up", "bytes_down", "peak_memory")
"""Figures of a run that its short form shows, if it has them."""


class Table(list[dict[str, Any]]):
    """Rows by column name, with a short text and an HTML form."""

    def __repr__(self) -> str:
        columns = list(self[0]) if self else []
        return f"Table of {len(self)} rows: {', '.join(columns)}"

    def _repr_html_(self) -> str:
        columns = list(self[0]) if self else []
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_short(row.get(name)))}</td>" for name in columns) + "</tr>"
            for row in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class Result(dict[str, Any]):
    """The figures of `result.json`, by name: `result.top1` or `result["top1"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the result has no {name!r}; it has {', '.join(sorted(self))}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in self._shown().items())
        return f"Result({shown})"

    def _repr_html_(self) -> str:
        return Table({"figure": name, "value": value} for name, value in self._shown().items())._repr_html_()

    def _shown(self) -> dict[str, str]:
        """Scores in percent."""
        known = {name: self[name] for name in SHOWN if self.get(name) is not None}
        return {name: percent(value) if "top1" in name else _short(value) for name, value in known.items()}


@dataclass(frozen=True, repr=False)
class Run:
    """A run in its folder."""

    folder: Path

    @cached_property
    def result(self) -> Result:
        """The figures of a run that is over."""
        path = self.folder / "result.json"
        if not path.is_file():
            raise RunError(f"the run in {self.folder} is not over; go on with cos2p.run(..., out={str(self.folder)!r})")
        return Result(read_json(path))

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe with everything that the run decided."""
        return Recipe.load(self.folder / "recipe.toml")

    @cached_property
    def rounds(self) -> Rows:
        """A row for every evaluated version of the model: its score and everything spent until then."""
        return _frame(point.to_dict() for point in read_curve(self.folder))

    def model(self, exit: Exit = None, device: str = "") -> Trained:
        """The trained model: the server's at an exit, or a device's own."""
        return open_trained(self.folder, exit, device)

    def predict(self, inputs: Sequence[str | Path], top: int = 1) -> list[Prediction]:
        """Labels with probabilities for texts, or for image files."""
        trained = self.model()
        return list(predict(trained, list(_items(trained, inputs)), top))

    def generate(
        self, prompts: Sequence[Prompt], tokens: int = 128, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> list[str]:
        """The text that a language model writes behind each text or chat (a list of messages): greedily, or drawn."""
        *_, found = generate(self.model(), prompts, tokens, Sampling(temperature, top_p, seed))
        return [own.text for own in found]

    def evaluate(self, split: Split = "test", path: str = "") -> Evaluation:
        """The model on a part of its own data, or on the labelled data at `path`."""
        trained = self.model()
        return evaluate(trained, labelled(trained, path, split, {}))

    def export(self, out: str | Path, format: str = "hf", overwrite: bool = False) -> Path:
        """Write the model for other programs: `hf`, `onnx` or `peft`; `overwrite` replaces an earlier export."""
        return export(self.model(), Path(out), format, overwrite)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page of the run as one file."""
        file = Path(out) if out is not None else self.folder / "report.html"
        write_report([self.folder], file)
        return file

    def plot(self, x: str = "updates") -> Any:
        """The test score against `updates`, `virtual_seconds` or `bytes_up`; returns matplotlib's axes."""
        axes = _axes()
        points = [point.to_dict() for point in read_curve(self.folder)]
        if points and x not in points[0]:
            raise ConfigError(f"there is nothing to plot against {x!r}; take one of {', '.join(points[0])}")
        axes.plot([point[x] for point in points], [100 * point["top1"] for point in points], marker=".")
        axes.set(xlabel=x.replace("_", " "), ylabel="top-1 on test samples, %", title=self.recipe.name)
        return axes

    def __repr__(self) -> str:
        over = (self.folder / "result.json").is_file()
        return f"Run({str(self.folder)!r}, {self.result!r})" if over else f"Run({str(self.folder)!r}, not over)"

    def _repr_html_(self) -> str:
        over = (self.folder / "result.json").is_file()
        return f"<p>{html.escape(str(self.folder))}</p>" + (self.result._repr_html_() if over else "<p>not over</p>")


@dataclass(frozen=True, repr=False)
class Study:
    """A comparison in its folder: `runs/` of it are those of `cells`."""

    folder: Path

    @cached_property
    def values(self) -> dict[str, Any]:
        """Everything of `study.json`."""
        return read_json(self.folder / "study.json")

    @property
    def table(self) -> Rows:
        """A row for each method: means over the seeds, and half the width of their 95 % intervals."""
        return self.tables[self.values["tables"][0]["name"]]

    @cached_property
    def tables(self) -> dict[str, Rows]:
        """All tables of the study by name."""
        return {table["name"]: _frame(_table_rows(table)) for table in self.values["tables"]}

    @cached_property
    def runs(self) -> dict[str, Run]:
        """Runs that are over, by the name of their cell."""
        return {
            cell["name"]: Run(self.folder / cell["folder"]) for cell in self.values["cells"] if cell["state"] == "done"
        }

    def report(self, out: str | Path | None = None) -> Path:
        """Write the page of the study as one file."""
        file = Path(out) if out is not None else self.folder / "report.html"
        write_report([self.folder], file)
        return file

    def __repr__(self) -> str:
        cells = self.values["cells"]
        done = sum(cell["state"] == "done" for cell in cells)
        return f"Study({str(self.folder)!r}, {self.values['title']}, {done} of {len(cells)} runs)"

    def _repr_html_(self) -> str:
        tables = ((table["title"], Table(_table_rows(table))) for table in self.values["tables"])
        return "".join(f"<h4>{html.escape(title)}</h4>{table._repr_html_()}" for title, table in tables)


def run(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    method: str | None = None,
    resume: bool | None = None,
    overwrite: bool = False,
    progress: bool = True,
    listener: Listener | None = None,
    data: Data | None = None,
    **changes: Any,
) -> Run:
    """Simulate a recipe into the folder `out` and return the run.

    `changes` are recipe fields by their last name (`lr=1e-3`, `rounds=5`, `memory="60MB"`) or, where two fields share
    it, by their path with two underscores (`training__lr=1e-3`). Without `out` the run goes to `runs/RECIPE-SEED`; the
    same recipe goes on there where it stopped, or returns what it found. `listener` is called with every event. `data`
    takes the place of the recipe's data. Ctrl-C stops with a checkpoint; the same call goes on.
    """
    chosen = _chosen(recipe, method, changes)
    folder = _folder_for(chosen, method) if out is None else Path(out)
    resume = not overwrite if resume is None else resume
    with _stoppable(folder), _showing(progress and listener is None) as shown:
        simulate(chosen, folder, resume=resume, overwrite=overwrite, listener=listener or shown or log_notes, data=data)
    return Run(folder)


def finetune(
    model: str | Path,
    data: str | Path,
    *,
    memory: str = "",
    devices: int | str = 8,
    rounds: int = 20,
    text_column: str = "",
    label_column: str = "",
    out: str | Path | None = None,
    progress: bool = True,
    **changes: Any,
) -> Run:
    """Fine-tune a checkpoint on one's own data, dealt to simulated devices of so much memory each.

    The recipe that it writes is `recipe` of the run; `cos2p new` writes the same one to a file.
    """
    name = Path(data).name.partition(".")[0] or "mine"
    made = draft_recipe(
        str(data), str(model), str(devices), memory=memory, name=name, rounds=rounds, text_column=text_column,
        label_column=label_column,
    )  # fmt: skip
    console = _console()
    for fact in made.facts if progress else ():
        print_line(console, fact)
    return run(made.recipe, out, progress=progress, **changes)


def compare(
    recipe: str | Path,
    methods: Sequence[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    updates: int | None = None,
    jobs: int = 1,
    progress: bool = True,
    **changes: Any,
) -> Study:
    """Compare methods at equal budget over matched seeds; the same call goes on with a study that was stopped."""
    settings = tuple(f"{path}={_toml(value)}" for path, value in _paths(recipe_values(recipe), changes).items())
    folder = Path(out) if out is not None else Path("runs") / f"compare-{Path(recipe).name.removesuffix('.toml')}"
    names = tuple(methods)
    command = f"cos2p.compare({str(recipe)!r}, methods={list(names)!r})"
    plan = comparison(StudyPlan(Base(str(recipe), settings, updates).checked(), tuple(seeds), command), names, names[0])
    view: AbstractContextManager[StudyProgress] = nullcontext(StudyProgress(jobs))
    if progress:
        view = showing(_console(), f"compare {folder.name}", jobs, False)
    with _stoppable(folder), study_folder(folder, "compare") as place, view as shown:
        runner = Runner(place, shown, jobs)
        write_study(run_study(plan, runner, lambda so_far: write_study(so_far, place)), place)
    return Study(folder)


def open(folder: str | Path) -> Run | Study:
    """A run or a study that lies in a folder."""
    path = Path(folder)
    if (path / "study.json").is_file():
        return Study(path)
    if (path / "recipe.toml").is_file():
        return Run(path)
    raise RunError(f"{path} holds neither a run (recipe.toml) nor a study (study.json)")


def wrap(model: Any, tokenizer: Any = None, folder: str | Path | None = None) -> Path:
    """A loaded `transformers` model, with its tokenizer, as a folder that recipes and `finetune` take.

    Without `folder` it is written below `runs/models`, under a name that follows from its weights.
    """
    if not (hasattr(model, "save_pretrained") and hasattr(model, "state_dict")):
        raise ConfigError(f"wrap takes a model of transformers, not {type(model).__name__}")
    path = Path(folder) if folder is not None else Path("runs") / "models" / _digest(model)
    model.save_pretrained(path)
    if tokenizer is not None:
        tokenizer.save_pretrained(path)
    return path


def _chosen(recipe: Recipe | str | Path, method: str | None, changes: Mapping[str, Any]) -> Recipe:
    if isinstance(recipe, Recipe):
        if method is None and not changes:
            return recipe
        values = recipe.model_dump(mode="json", exclude_unset=True)
        if method is not None:
            raise ConfigError(
                "give the method with Recipe.load(..., method=...), or run the recipe by its name or file"
            )
        for path, value in _paths(values, changes).items():
            apply_change(values, f"{path}={_toml(value)}")
        return Recipe.parse(values, recipe.name)
    paths = _paths(recipe_values(recipe), changes)
    return Recipe.load(recipe, [f"{path}={_toml(value)}" for path, value in paths.items()], method)


def _paths(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes by the path of their field."""
    found: dict[str, Any] = {}
    for name, value in changes.items():
        if "__" in name:
            found[name.replace("__", ".")] = value
        elif name in DEVICE_FIELDS:
            groups = values.get("fleet", {}).get("devices", [])
            found.update({f"fleet.devices.{number}.{name}": value for number in range(len(groups))})
        else:
            found[_path_of(name)] = value
    return found


DEVICE_FIELDS = ("memory", "rate", "batch", "flops", "count")
"""Changes that every group of devices gets."""


def _path_of(name: str) -> str:
    """The one field of a recipe with this name."""
    if name in Recipe.model_fields:
        return name
    tables = {table: field.annotation for table, field in Recipe.model_fields.items()}
    paths = [f"{table}.{name}" for table, kind in tables.items() if name in getattr(kind, "model_fields", {})]
    if len(paths) == 1:
        return paths[0]
    if not paths:
        known = {field for kind in tables.values() for field in getattr(kind, "model_fields", {})} | set(DEVICE_FIELDS)
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no recipe field is called {name!r}; {hint}a field of a table is written table__field")
    written = " or ".join(path.replace(".", "__") for path in paths)
    raise ConfigError(f"several recipe fields are called {name!r}; write {written}")


def _toml(value: Any) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, Path):
        value = str(value)
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _folder_for(recipe: Recipe, method: str | None) -> Path:
    """`runs/RECIPE-SEED`, or with a number behind it where another recipe has run under this name."""
    name = "-".join([recipe.name, *([method] if method else []), str(recipe.seed)])
    for number in range(1, 1000):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not (folder / "recipe.toml").is_file():
            return folder
        try:
            check_same_recipe(recipe, folder)
        except RunError:
            continue
        return folder
    raise RunError(f"runs/ has a thousand runs of {name}; name a folder with out=...")


def _console() -> Console:
    return Console(stderr=True)


def _showing(wanted: bool) -> AbstractContextManager[Listener | None]:
    return following(_console()) if wanted else nullcontext(None)


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C ends a script that does not catch it as it ends a command: with one line and exit code 130."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        where = str(error).partition(";")[0] or "stopped"
        stop, others = Interrupted(f"{where}; the same call goes on with {folder}"), sys.excepthook

        def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if error is stop:
                print(stop, file=sys.stderr)
                sys.exit(stop.exit_code)
            others(kind, error, trace)

        sys.excepthook = end
        raise stop from None


def _items(trained: Trained, inputs: Sequence[str | Path]) -> Iterator[Item]:
    if isinstance(inputs, str | Path):
        raise ConfigError("predict takes a list of inputs, such as predict([text])")
    for entry in inputs:
        if trained.is_text:
            yield Item(str(entry), str(entry))
        else:
            yield Item(str(entry), Path(entry))


def _table_rows(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for line in table["rows"]:
        row: dict[str, Any] = {"name": line["title"]}
        for key, figure in line["figures"].items():
            row[key] = figure["mean"]
            if figure.get("half") is not None:
                row[f"{key} ±"] = figure["half"]
        yield row


def _frame(rows: Any) -> Rows:
    entries = list(rows)
    try:
        import pandas
    except ImportError:
        return Table(entries)
    return pandas.DataFrame(entries)


def _axes() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise MissingExtra("plot needs matplotlib; install cos2p[notebook], or look at run.report()") from None
    return pyplot.subplots()[1]


def _digest(model: Any) -> str:
    digest = hashlib.sha256(str(model.config).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).float().numpy().tobytes())
    return f"{type(model).__name__}-{digest.hexdigest()[:12]}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)

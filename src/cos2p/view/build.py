"""A run folder → its part of the document. Keeps what it has read, so that a live page costs only what is new."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from cos2p.checksums import check
from cos2p.errors import Cos2pError, RunError
from cos2p.older_python import tomllib
from cos2p.terminal.formatting import epsilon_text
from cos2p.terminal.progress import Pace
from cos2p.terminal.verdict import verdict
from cos2p.tracking.event_kinds import NOBODY_LEFT, Aggregated, Evaluated, Event, Finished, Merged, Started, Stopped
from cos2p.tracking.figure_parts import BASELINES
from cos2p.tracking.figures import RunFigures
from cos2p.tracking.files import MARKER, StopNote, read_stop_note
from cos2p.view.about import about
from cos2p.view.curves import EvaluationsBuilder, RoundsBuilder, Series, UpdatesBuilder, rounded
from cos2p.view.devices import DevicesBuilder, Roster, TroublesBuilder
from cos2p.view.lanes import LanesBuilder
from cos2p.view.log import LogReader, at_work, elapsed
from cos2p.view.segments import CoverageBuilder, MasksBuilder, no_masks


class RunBuilder:
    """The parts of a run's document. Each one is fed the events in order."""

    def __init__(self, deadline: float | None = None) -> None:
        self.roster = Roster()
        self.figures = RunFigures()
        self.rounds, self.evaluations, self.updates = RoundsBuilder(), EvaluationsBuilder(), UpdatesBuilder()
        self.lanes, self.devices, self.troubles = (
            LanesBuilder(self.roster, deadline),
            DevicesBuilder(),
            TroublesBuilder(self.roster),
        )
        self.coverage: CoverageBuilder | None = None
        self.masks: MasksBuilder | None = None
        self.stopped = ""
        """Why a fleet's server gave up, if that was the last thing it said."""

    def feed(self, event: Event) -> None:
        for part in (self.roster, self.lanes, self.troubles):
            part.feed(event)
        self.stopped = event.reason if isinstance(event, Stopped) else ""
        if isinstance(event, Merged):
            self._merged(event)
        self.figures(event)
        if isinstance(event, Started):
            self.coverage = CoverageBuilder(event.model)
            self.masks = MasksBuilder(self.coverage.tracks)
        elif isinstance(event, Aggregated):
            self._aggregated(event)
        elif isinstance(event, Evaluated | Finished):
            self.evaluations.evaluated(event)

    def _merged(self, event: Merged) -> None:
        client, version = self.roster.index(event.client), self.figures.version
        self.updates.merged(event, client, version)
        if self.coverage is not None and self.masks is not None:
            self.coverage.merged(event, client, version + 1)
            self.masks.merged(event, client, version + 1)

    def _aggregated(self, event: Aggregated) -> None:
        assert self.figures.last_round is not None
        self.rounds.add(self.figures.last_round, self.figures)
        self.evaluations.aggregated(event)
        if self.coverage is not None:
            self.devices.weigh(self.updates.weigh(self.coverage.aggregated()))


class RunSource:
    """One run folder, looked at again and again."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._reader = LogReader(self.folder / "events.jsonl")
        self._run = RunBuilder()
        self._pace = Pace()
        self._empty = True
        self._damaged = False
        """The last piece that was read could not be used; whatever comes next begins anew."""
        self._state: tuple[object, ...] = ()

    def refresh(self, on_progress: Callable[[float], None] = lambda share: None, seconds: float = math.inf) -> bool:
        """Read what is new; returns whether anything is. `on_progress` gets the share of the log that is read.

        After so many `seconds` the rest is left for the next time. A damaged log is a RunError.
        """
        deadline = time.monotonic() + seconds
        over = (self.folder / "result.json").exists()
        changed = self._read_piece()
        while self._reader.read_share < 1.0 and time.monotonic() < deadline:
            on_progress(self._reader.read_share)
            changed = self._read_piece() or changed
        if over and self._reader.read_share == 1.0 and self._run.figures.finished is None:
            raise RunError(f"{self.folder / 'events.jsonl'} ends before its run did; a part of the file is missing")
        before, self._state = self._state, self._outside()
        return changed or self._state != before

    def _read_piece(self) -> bool:
        anew, events = self._read()
        if anew or (self._empty and events):
            self._run = RunBuilder(self._deadline())
            self._empty = not events
        for number, event in enumerate(events, start=1):
            try:
                self._run.feed(event)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                self._reader, self._damaged = LogReader(self.folder / "events.jsonl"), True
                raise RunError(
                    f"{self.folder / 'events.jsonl'}: event {number} ({event.kind!r}) is not as cos2p writes it "
                    f"({type(error).__name__}: {error}); the file was damaged"
                ) from None
        if events:
            self._note_pace()
        return bool(anew or events)

    def _read(self) -> tuple[bool, list[Event]]:
        was_damaged, self._damaged = self._damaged, True
        anew, events = self._reader.read()
        self._damaged = False
        return anew or was_damaged, events

    def _outside(self) -> tuple[object, ...]:
        """The parts of the document that are not in the log."""
        result = self.folder / "result.json"
        return self.status(self._result()), self._stop(), result.stat().st_mtime_ns if result.exists() else 0

    def _stop(self) -> StopNote | None:
        """The words of the process, or of a fleet's server in the log, when it stopped before the run was over."""
        return read_stop_note(self.folder) or (StopNote(True, self._run.stopped) if self._run.stopped else None)

    def _note_pace(self) -> None:
        with suppress(OSError):
            self._pace.note(self._run.figures.share, (self.folder / "events.jsonl").stat().st_mtime)

    def _recipe(self) -> dict[str, Any]:
        """recipe.toml; empty if it cannot be read."""
        try:
            return tomllib.loads(check(self.folder / "recipe.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}

    def _deadline(self) -> float | None:
        try:
            seconds = self._recipe().get("schedule", {}).get("task_timeout")
            return float(seconds) if seconds else None
        except (ValueError, TypeError, AttributeError):
            return None

    def _about(self, shape: dict[str, Any] | None) -> list[tuple[str, str]]:
        try:
            return about(self._recipe(), self._run.figures, shape)
        except (ValueError, TypeError, AttributeError, LookupError):  # a recipe that cos2p did not write
            return []

    def document(self) -> dict[str, Any]:
        """The run as read so far."""
        parts, result = self._run, self._result()
        devices = parts.devices.document(parts.roster.names, parts.figures)
        shape = _model(parts.figures.started.model if parts.figures.started is not None else None)
        return {
            "header": self._header(result),
            "about": self._about(shape),  # (what, words): recipe, data, model, devices, baselines
            "model": shape,
            "devices": devices,
            "rounds": parts.rounds.rows,
            "evaluations": parts.evaluations.document(),
            # A class: its name, test samples, those named right, how often it was named.
            "by_class": _by_class(result.get("by_class") or parts.figures.by_class, result.get("classes") or ()),
            "updates": parts.updates.rows,
            "lanes": parts.lanes.document(),
            "coverage": None if parts.coverage is None else parts.coverage.document(),
            "masks": no_masks(len(devices)) if parts.masks is None else parts.masks.document(len(devices)),
            "troubles": parts.troubles.document(),
        }

    def series(self) -> Series:
        """The curves that a study averages: server's top-1 on the test samples, and the clients' own."""
        rounds = self._run.rounds.rows
        made = {0: (0, 0.0)} | {
            version: (updates, t)
            for version, updates, t in zip(rounds["version"], accumulate(rounds["updates"]), rounds["t"], strict=True)
        }
        top1 = [(v, *made[v], value) for v, value in self._run.evaluations.top1("test") if v in made]
        own = zip(rounds["version"], rounds["client_top1"], strict=True)
        return Series(tuple(top1), tuple((v, *made[v], value) for v, value in own if value is not None))

    def _result(self) -> dict[str, Any]:
        """result.json, if the run is over: the figures as the run itself counted them."""
        try:
            found = json.loads(check(self.folder / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def status(self, result: dict[str, Any]) -> str:
        """waiting: the folder or its log is not there yet. stopped: neither over nor at work; it can be resumed."""
        if self._run.figures.finished == NOBODY_LEFT:
            return "failed"
        if self._run.figures.finished is not None or result:
            return "finished"
        if at_work(self.folder / "events.jsonl"):
            return "running"
        stop = self._stop()
        if stop is not None:
            return "failed" if stop.failed else "stopped"
        return "waiting" if self._empty else "stopped"

    def _header(self, result: dict[str, Any]) -> dict[str, Any]:
        parts, run = self._run, self._run.figures
        facts: dict[str, Any] = vars(run.started) if run.started is not None else {}
        status = self.status(result)
        part = parts.evaluations.part
        scored, tested = parts.evaluations.top1(part), parts.evaluations.top1("test")
        best = max(scored, key=lambda entry: (entry[1], -entry[0]), default=(None, None))
        going_on, stop = status == "running", self._stop() if status in ("failed", "stopped") else None
        known: dict[str, Any] = (facts.get("data") or {}) | {
            name: result[name] for name in BASELINES if result.get(name) is not None
        }
        return {
            "name": self.folder.resolve().name,
            "recipe": str(facts.get("recipe", "")),
            "method": str(facts.get("method", "")),
            "title": str(facts.get("title", "")),
            "seed": facts.get("seed"),
            "kind": "fleet" if (self.folder / "fleet.json").exists() else "simulation",
            "status": status,
            "ending": run.finished or (stop.reason if stop else ""),  # in the words of who stopped it
            "round": run.version,
            "rounds": facts.get("rounds"),  # planned; null if updates or time decide
            "updates": run.merged,
            "updates_planned": facts.get("updates"),
            "share": 1.0 if status == "finished" else round(run.share, 4),
            "t": round(run.now, 3),
            "wall": _tenth(result.get("wall_seconds", elapsed(self.folder))),
            # An estimate from the last event to the end; null while there is too little to go by, and when it is over.
            "wall_left": _tenth(self._pace.left()) if going_on else None,
            "ru": run.ru,
            "bytes_up": run.total("bytes_up"),
            "bytes_down": run.total("bytes_down"),
            "part": part,  # the samples behind `last` and `best`
            "last": scored[-1][1] if scored else None,
            "best": best[1],
            "best_round": best[0],
            "test": tested[-1][1] if tested else None,
            # Top-1 without any training; `majority`: always the most frequent class of the test samples,
            # `client_majority`: each device its own.
            **{name: rounded(known.get(name)) for name in BASELINES},
            "best_exit": parts.evaluations.better_exit(),
            "verdict": _verdict(result or run.result() | {"method": facts.get("method")}),
            # Bytes to train the whole model.
            "full_memory": facts.get("full_memory", result.get("full_memory")),
            # Scores on the test samples before anything trained.
            "base": rounded(run.base.get(run.score_name)),
            # Top-1 of the clients' own submodels on their own test part, averaged over their samples.
            "clients": result.get("client_top1", rounded(run.client_mean("top1"))),
            "privacy": epsilon_text(None if run.spent is None else vars(run.spent)),
            "n_star": run.n_star,  # over all rounds; 0: some segment stood still in some round
            "refused": run.refused,
            "failed": run.total("failed") + run.total("lost"),
        }


def _by_class(counts: Mapping[str, list[int]], names: Sequence[object]) -> list[tuple[str, int, int, int]]:
    columns = [counts.get(name, []) for name in ("samples", "right", "named")]
    known = [*map(str, names), *(f"class {number}" for number in range(len(names), len(columns[0])))]
    return [(name, *row) for name, row in zip(known, zip(*columns, strict=True), strict=False)]


def _verdict(result: Mapping[str, Any]) -> dict[str, str]:
    try:
        return verdict(result)
    except (ValueError, TypeError, AttributeError, LookupError):  # a result that cos2p did not write
        return {}


def is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (MARKER, "events.jsonl"))


def _tenth(seconds: Any) -> float | None:
    return None if seconds is None else round(float(seconds), 1)


def _model(config: dict[str, Any] | None) -> dict[str, Any] | None:
    if config is None:
        return None
    return {
        "family": str(config.get("family", "")),
        "task": str(config.get("task", "")),
        "depth": int(config["depth"]),
        "heads": int(config.get("kv_heads") or config["heads"]),  # segments of a block that are kept or cut whole
        "units": int(config["mlp"]),
        "dim": int(config["dim"]),
        "parameters": _parameters(config),  # of the full model with all exits
    }


def _parameters(config: dict[str, Any]) -> int | None:
    """Null for a model that this version does not know."""
    # Only here: the layout brings torch along, which a page without masks does not need.
    from cos2p.models.config import ModelConfig
    from cos2p.models.layout import layout  # likewise

    try:
        return sum(math.prod(entry.shape) for entry in layout(ModelConfig.from_dict(config)).values())
    except (Cos2pError, LookupError, TypeError, ValueError, AttributeError):
        return None

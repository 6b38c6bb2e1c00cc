"""A run folder → its part of the document. Keeps what it has read, so that a live page costs only what is new."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from cos2p.errors import Cos2pError, RunError
from cos2p.older_python import tomllib
from cos2p.report.words import epsilon_words
from cos2p.tracking.event_kinds import NOBODY_LEFT, Event
from cos2p.tracking.files import MARKER
from cos2p.tracking.stop_note import StopNote, read_stop_note
from cos2p.view import model
from cos2p.view.about import about
from cos2p.view.bands import Series
from cos2p.view.curves import rounded
from cos2p.view.log import LogReader
from cos2p.view.masks import no_masks
from cos2p.view.pace import Pace, at_work, elapsed
from cos2p.view.story import Story

WORTH = ("chance", "majority", "client_majority")


class Worth(TypedDict):
    chance: float | None
    majority: float | None
    client_majority: float | None


class RunSource:
    """One run folder, looked at again and again."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._reader = LogReader(self.folder / "events.jsonl")
        self._story = Story()
        self._pace = Pace()
        self._empty = True
        self._damaged = False
        """What was read last could not be used; whatever comes next begins anew."""
        self._state: tuple[object, ...] = ()

    def refresh(self, told: Callable[[float], None] = lambda share: None) -> bool:
        """Read what is new, telling how much of the log is read; returns whether anything is new.

        A damaged log is a RunError.
        """
        changed = self._read_piece()
        while self._reader.read_share < 1.0:
            told(self._reader.read_share)
            changed = self._read_piece() or changed
        before, self._state = self._state, self._outside()
        return changed or self._state != before

    def _read_piece(self) -> bool:
        anew, events = self._read()
        if anew or (self._empty and events):
            self._story = Story(self._deadline())
            self._empty = not events
        for number, event in enumerate(events, start=1):
            try:
                self._story.feed(event)
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
        """What the document tells beside the log."""
        result = self.folder / "result.json"
        return self.status(self._result()), self._stop(), result.stat().st_mtime_ns if result.exists() else 0

    def _stop(self) -> StopNote | None:
        """What the process, or a fleet's server in the log, said when it stopped before the run was over."""
        return read_stop_note(self.folder) or (StopNote(True, self._story.stopped) if self._story.stopped else None)

    def _note_pace(self) -> None:
        with suppress(OSError):
            self._pace.note(self._story.figures.share, (self.folder / "events.jsonl").stat().st_mtime)

    def _recipe(self) -> dict[str, Any]:
        """recipe.toml; empty if it cannot be read."""
        try:
            return tomllib.loads((self.folder / "recipe.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def _deadline(self) -> float | None:
        try:
            seconds = self._recipe().get("schedule", {}).get("task_timeout")
            return float(seconds) if seconds else None
        except (ValueError, TypeError, AttributeError):
            return None

    def _about(self, shape: model.Model | None) -> list[tuple[str, str]]:
        try:
            return about(self._recipe(), self._story.figures, shape)
        except (ValueError, TypeError, AttributeError, LookupError):  # a recipe that cos2p did not write
            return []

    def document(self) -> model.Run:
        """The run as read so far."""
        story, result = self._story, self._result()
        devices = story.devices.document(story.roster.names, story.figures)
        _fill_from_result(devices, result)
        shape = _model(story.figures.started.model if story.figures.started is not None else None)
        return {
            "header": self._header(result),
            "about": self._about(shape),
            "model": shape,
            "devices": devices,
            "rounds": story.rounds.rows,
            "evaluations": story.evaluations.document(),
            "updates": story.updates.rows,
            "lanes": story.lanes.document(),
            "coverage": None if story.coverage is None else story.coverage.document(),
            "masks": no_masks(len(devices)) if story.masks is None else story.masks.document(len(devices)),
            "troubles": story.troubles.document(),
        }

    def series(self) -> Series:
        """The curves that a study averages: server's top-1 on the test samples, and the clients' own."""
        rounds = self._story.rounds.rows
        made = {0: (0, 0.0)} | {
            version: (updates, t)
            for version, updates, t in zip(rounds["version"], accumulate(rounds["updates"]), rounds["t"], strict=True)
        }
        top1 = [(v, *made[v], value) for v, value in self._story.evaluations.top1("test") if v in made]
        own = zip(rounds["version"], rounds["client_top1"], strict=True)
        return Series(tuple(top1), tuple((v, *made[v], value) for v, value in own if value is not None))

    def _result(self) -> dict[str, Any]:
        """result.json, if the run is over: the figures as the run itself counted them."""
        try:
            found = json.loads((self.folder / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def status(self, result: dict[str, Any]) -> model.Status:
        if self._story.figures.finished == NOBODY_LEFT:
            return "failed"
        if self._story.figures.finished is not None or result:
            return "finished"
        if at_work(self.folder / "events.jsonl"):
            return "running"
        stop = self._stop()
        if stop is not None:
            return "failed" if stop.failed else "stopped"
        return "waiting" if self._empty else "stopped"

    def _header(self, result: dict[str, Any]) -> model.Header:
        story, run = self._story, self._story.figures
        facts: dict[str, Any] = vars(run.started) if run.started is not None else {}
        status = self.status(result)
        part = story.evaluations.part
        judged, tested = story.evaluations.top1(part), story.evaluations.top1("test")
        best = max(judged, key=lambda entry: (entry[1], -entry[0]), default=(None, None))
        going_on, stop = status == "running", self._stop() if status in ("failed", "stopped") else None
        known: dict[str, Any] = facts.get("data") or {}
        return {
            "name": self.folder.resolve().name,
            "recipe": str(facts.get("recipe") or result.get("recipe") or ""),
            "method": str(facts.get("method") or result.get("method") or ""),
            "title": str(facts.get("title") or result.get("title") or ""),
            "seed": facts.get("seed", result.get("seed")),
            "kind": "fleet" if (self.folder / "fleet.json").exists() else "simulation",
            "status": status,
            "ending": run.finished or str(result.get("finished") or "") or (stop.reason if stop else ""),
            "round": run.version or int(result.get("rounds") or 0),
            "rounds": facts.get("rounds"),
            "updates": run.merged or int(result.get("updates") or 0),
            "updates_planned": facts.get("updates"),
            "share": 1.0 if status == "finished" else round(run.share, 4),
            "t": round(run.now or float(result.get("virtual_seconds") or 0.0), 3),
            "wall": _tenth(result.get("wall_seconds", elapsed(self.folder))),
            "wall_left": _tenth(self._pace.left()) if going_on else None,
            "ru": result.get("ru", run.ru),
            "bytes_up": run.total("bytes_up") or int(result.get("bytes_up") or 0),
            "bytes_down": run.total("bytes_down") or int(result.get("bytes_down") or 0),
            "part": part,
            "last": judged[-1][1] if judged else result.get("validation_top1", result.get("top1")),
            "best": best[1],
            "best_round": best[0],
            "test": tested[-1][1] if tested else result.get("top1"),
            **_worth(known | {name: result[name] for name in WORTH if result.get(name) is not None}),
            "best_exit": story.evaluations.better_exit(),
            "clients": result.get("client_top1", rounded(run.client_mean("top1"))),
            "privacy": epsilon_words(vars(run.spent) if run.spent is not None else result.get("privacy")),
            "n_star": run.n_star if run.n_star is not None else result.get("n_star"),
            "refused": run.refused or int(result.get("refused") or 0),
            "failed": run.total("failed") + run.total("lost"),
        }


def _worth(known: Mapping[str, Any]) -> Worth:
    return {
        "chance": rounded(known.get("chance")),
        "majority": rounded(known.get("majority")),
        "client_majority": rounded(known.get("client_majority")),
    }


def is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (MARKER, "events.jsonl", "result.json"))


def _tenth(seconds: Any) -> float | None:
    return None if seconds is None else round(float(seconds), 1)


def _fill_from_result(devices: list[model.Device], result: dict[str, Any]) -> None:
    """What only result.json knows: of older logs the predicted peak; of a folder without its log, everything."""
    known = result.get("devices") or {}
    if not devices:
        for name, found in known.items():
            devices.append(_device_of_result(str(name), found, float(result.get("virtual_seconds") or 0.0)))
    for device in devices:
        found = known.get(device["name"]) or {}
        if device["predicted"] is None:
            device["predicted"] = found.get("peak_memory")


def _device_of_result(name: str, found: dict[str, Any], seconds: float) -> model.Device:
    return {
        "name": name,
        "group": name,
        "rate": found.get("rate"),
        "memory": found.get("memory"),
        "predicted": found.get("peak_memory"),
        "measured": None,
        "doubted": 0,
        "samples": found.get("samples"),
        "batch": None,
        "flops": None,
        "bytes_up": int(found.get("bytes_up") or 0),
        "bytes_down": int(found.get("bytes_down") or 0),
        "tasks": int(found.get("tasks") or 0),
        "updates": int(found.get("updates") or 0),
        "refused": 0,
        "failed": 0,
        "staleness": None,
        "busy": round(float(found.get("busy_seconds") or 0.0) / seconds, 4) if seconds else 0.0,
        "weight": None,
        "top1": found.get("top1"),
    }


def _model(config: dict[str, Any] | None) -> model.Model | None:
    if config is None:
        return None
    return {
        "family": str(config.get("family", "")),
        "task": str(config.get("task", "")),
        "depth": int(config["depth"]),
        "heads": int(config.get("kv_heads") or config["heads"]),
        "units": int(config["mlp"]),
        "dim": int(config["dim"]),
        "parameters": _parameters(config),
    }


def _parameters(config: dict[str, Any]) -> int | None:
    """Null for a model that this version does not know."""
    import math

    # Only here: the layout brings torch along, which a page without masks does not need.
    from cos2p.models.config import ModelConfig
    from cos2p.models.layout import layout  # likewise

    try:
        return sum(math.prod(entry.shape) for entry in layout(ModelConfig.from_dict(config)).values())
    except (Cos2pError, LookupError, TypeError, ValueError, AttributeError):
        return None

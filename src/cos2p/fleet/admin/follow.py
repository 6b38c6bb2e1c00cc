"""`cos2p run RECIPE --fleet kits/admin`: start a run on the fleet, follow it, and bring its folder home.

The run itself goes on at the server whether somebody follows or not. Here its log is copied as it grows, every event is
given to the listener, and at the end the figures and the weights are fetched: the same folder a simulation leaves.
"""

from __future__ import annotations

import base64
import json
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch

import cos2p.errors
from cos2p.errors import CheckpointError, Cos2pError, Interrupted, RunError
from cos2p.fleet.kit import Kit
from cos2p.fleet.nvflare import require_nvflare
from cos2p.fleet.nvflare.admin_session import AdminSession
from cos2p.methods.registry import require_installed
from cos2p.models.config import ModelConfig
from cos2p.processes.children import on_interrupt
from cos2p.recipe import Recipe, tomllib_load
from cos2p.runtime.model_folder import save_model
from cos2p.runtime.run_folder import begin_folder, earlier_result, keep_recipe, log_notes
from cos2p.runtime.settled import settled_as
from cos2p.tracking.event_kinds import Resumed, Started, Waiting
from cos2p.tracking.events import Listener, mark_in_use, parse_event, read_events
from cos2p.tracking.files import read_json, write_json, write_noted

LOOK_SECONDS = 0.5
OUTAGE_SECONDS = 3600.0
"""How long a server may be away before the one who follows gives up. The run is not lost by that."""

CRASH_SECONDS = 60.0
"""How long a run whose server process ended may take to come back as a new one."""


def run_on_fleet(
    recipe: Recipe | str | Path,
    out: str | Path,
    kit: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener | None = None,
    expected: Iterable[str] = (),
) -> dict[str, Any]:
    """Run the recipe on the fleet of the admin kit `kit`, into the folder `out`; returns the figures.

    It begins when the devices that are `expected`, by default those connected now, are ready, or after two minutes.

    `resume` goes on with the run of that folder: one that is still going is followed again, one that was paused or
    whose server was lost goes on from its checkpoint, one that is over is fetched.
    """
    require_nvflare()
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    require_installed(recipe.method["name"])
    folder, admin = Path(out), Kit.open(kit, "admin")
    if resume and (known := earlier_result(recipe, folder)) is not None:
        return known
    recipe = begin_folder(recipe, folder, resume=resume, overwrite=overwrite)
    server = AdminSession(admin)
    try:
        follower = Follower(server, recipe, folder, _run_name(recipe, folder), listener or log_notes)
        return follower.follow(sorted(expected))
    finally:
        server.close()


def _run_name(recipe: Recipe, folder: Path) -> str:
    """The run's name at the server: the same every time this folder is resumed."""
    path = folder / "fleet.json"
    if not path.exists():
        stem = re.sub(r"[^a-z0-9]+", "-", recipe.name.lower()).strip("-") or "run"
        write_json(path, {"run": f"{stem}-{uuid.uuid4().hex[:8]}"})
    return str(read_json(path)["run"])


class Follower:
    def __init__(self, server: AdminSession, recipe: Recipe, folder: Path, run: str, listener: Listener) -> None:
        self.server, self.recipe, self.folder, self.run, self._listener = server, recipe, folder, run, listener
        self._log = folder / "events.jsonl"
        self._log.touch()
        self._life = ""
        self._pause_asked = False
        self._job = ""

    def follow(self, expected: list[str]) -> dict[str, Any]:
        self._begin(expected)
        self.server.patience = OUTAGE_SECONDS
        lost = 0.0
        with self._log.open("rb") as log, on_interrupt(self._ask_to_pause):
            mark_in_use(log.fileno())
            while True:
                if self._pause_asked:
                    self.server.ask(self._job, "pause")
                report = self.server.ask(self._job, "report", life=self._life, offset=self._log.stat().st_size)
                lost = self._look_for_the_job(lost) if report is None else 0.0
                if report is not None and report["state"] != "starting":
                    self._copy(report)
                    if report["end"] == self._log.stat().st_size and not report["lines"]:
                        if report["state"] == "finished":
                            return self._bring_home(report)
                        if report["state"] == "failed":
                            self.server.ask(self._job, "fetched")
                            raise _error(report.get("error", {}))
                time.sleep(LOOK_SECONDS if report is not None else 2 * LOOK_SECONDS)

    # ------------------------------------------------------------ the job at the server

    def _begin(self, expected: list[str]) -> None:
        known = self.server.job(self.run)
        if known is not None and not known[1].startswith("FINISHED"):
            self._job = known[0]
            return
        said = False
        while not (connected := self.server.clients()):
            if not said:
                self._listener(Waiting(reason="no device is connected yet (cos2p fleet join)"))
                said = True
            time.sleep(LOOK_SECONDS)
        self._job = self.server.submit(self.run, self.recipe, expected or connected)

    def _look_for_the_job(self, lost: float) -> float:
        """Not started yet, started again as another job after a crash, or ended. Returns since when it is lost."""
        known = self.server.job(self.run)
        if known is None:
            raise RunError(f"the server does not know the run {self.run}; start it again without --resume")
        job, status = known
        if job != self._job:
            self._job = job
            return 0.0
        if not status.startswith("FINISHED"):
            return 0.0
        if self._pause_asked:
            raise Interrupted("the run is paused; go on with --resume")
        if status == "FINISHED:COMPLETED":  # over while nobody looked: its folder is still at the server
            self._job = self.server.submit(self.run, self.recipe, self.server.clients())
            return 0.0
        lost = lost or time.monotonic()
        if time.monotonic() - lost > CRASH_SECONDS:
            raise RunError(f"the run ended at the server ({status}); see its log.txt, then go on with --resume")
        return lost

    # ------------------------------------------------------------ bringing things home

    def _copy(self, report: Mapping[str, Any]) -> None:
        """The log as far as it goes. A server that went on from a checkpoint has cut it back: the copy is cut too."""
        if report["life"] != self._life:
            with self._log.open("r+b") as log:
                log.truncate(report["start"])
            if (started := self._started()) is not None:
                done = {name: report.get(name, 0) for name in ("version", "merged")}
                self._listener(Resumed(**vars(started) | {"t": report.get("now", 0.0), "log": self._log, **done}))
            self._life = report["life"]
        with self._log.open("ab") as log:
            log.write(report["lines"].encode("ascii"))
        for line in report["lines"].encode("ascii").splitlines():
            if (event := parse_event(line)) is not None:
                self._listener(event)

    def _bring_home(self, report: Mapping[str, Any]) -> dict[str, Any]:
        for name, size in report["files"].items():
            if name != "result.json":
                write_noted(self.folder / name, self._fetch(name, size))
        stored = Recipe.parse(tomllib_load((self.folder / "recipe.toml").read_text(encoding="utf-8"), "recipe.toml"))
        self.recipe = settled_as(self.recipe, stored)  # the server settled it
        keep_recipe(self.recipe, self.folder)
        weights = safetensors.torch.load_file(self.folder / "weights.safetensors")
        result = json.loads(self._fetch("result.json", report["files"]["result.json"]))
        with suppress(CheckpointError):  # a model that has no form there; the weights are at hand
            save_model(self.folder / "model", self.recipe, self._config(), weights, result)
        write_trace(self.folder / "devices.csv", result["devices"])
        write_json(self.folder / "result.json", result, indent=2, sort_keys=True)
        self.server.ask(self._job, "fetched")
        return dict(result)

    def _started(self) -> Started | None:
        first = next(read_events(self._log), None)
        return first if isinstance(first, Started) else None

    def _config(self) -> ModelConfig:
        started = self._started()
        if started is None:
            raise RunError(f"{self._log} does not say how the run began; try again with --resume")
        return ModelConfig.from_dict(started.model)

    def _fetch(self, name: str, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            answer = self.server.ask(self._job, "fetch", name=name, offset=len(data))
            piece = base64.b64decode(answer["data"]) if answer and "data" in answer else b""
            if not piece:
                raise RunError(f"{name} could not be fetched from the server; try again with --resume")
            data += piece
        return bytes(data)

    def _ask_to_pause(self) -> None:
        """The first Ctrl-C asks the server to pause with a checkpoint; the second one leaves the run to itself."""
        if self._pause_asked:
            raise KeyboardInterrupt
        self._pause_asked = True


def write_trace(path: Path, devices: Mapping[str, Mapping[str, Any]]) -> None:
    """The devices whose links were measured, as `fleet.devices.trace` of a recipe reads them: the fleet, simulated."""
    rows = [(name, own["memory"], *own["link"]) for name, own in devices.items() if "link" in own]
    lines = [",".join(map(str, row)) for row in (("device", "memory", "down", "up"), *rows)]
    if rows:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _error(sent: Mapping[str, Any]) -> Cos2pError:
    """The error that ended the run at the server, as what it was."""
    kind = getattr(cos2p.errors, str(sent.get("kind")), RunError)
    return (kind if issubclass(kind, Cos2pError) else RunError)(str(sent.get("message", "the run failed")))

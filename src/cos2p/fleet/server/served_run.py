"""The server's side of one run: its folder, its checkpoints, and what the user who started it may ask.

    kits/server/runs/ID/recipe.toml, events.jsonl, checkpoint.safetensors, result.json, weights.safetensors

The folder outlives the process. A server that was killed finds the checkpoint and goes on; a run that was over while
nobody listened still has its figures to give.
"""

from __future__ import annotations

import base64
import ctypes
import gc
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cos2p.data import Bundle, load
from cos2p.errors import Cos2pError, RunError
from cos2p.fleet.server.driver import Driver, Port
from cos2p.fleet.server.transfers import Transfers
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.processes.pool import ProcessPool
from cos2p.recipe import Recipe
from cos2p.runtime.evaluation import Classes, score_model
from cos2p.runtime.run_folder import RunFolder, begin_folder, keep_recipe
from cos2p.runtime.run_setup import model_config
from cos2p.runtime.settled import settle
from cos2p.tracking.event_kinds import Event, Merged, Stopped
from cos2p.tracking.events import read_events
from cos2p.tracking.figure_parts import DeviceFigures
from cos2p.tracking.files import StopNote, explained, write_stop_note

FETCHABLE = ("result.json", "weights.safetensors", "recipe.toml")
PAGE_BYTES = 128 * 2**10
"""Share of the event log in one answer; a file has three times as much."""

GATHER_SECONDS = 120.0
"""How long a run waits for the devices that are expected."""

PICKUP_SECONDS = 300.0
"""How long a finished run waits for its user to fetch the figures before it ends; they stay in the folder."""


class ServedRun:
    def __init__(self, folder: Path, recipe: Recipe, expected: set[str]) -> None:
        self.folder, self.recipe, self.expected = folder, recipe, expected
        self.state = "starting"
        self.error: Cos2pError | None = None
        self.life = uuid.uuid4().hex
        """Name of this process: a new one means that the log was cut back to `base`."""
        self.base = 0
        self.driver: Driver | None = None
        self.classes = Classes()
        self._open: RunFolder | None = None
        self._version = 0
        self._merged: Counter[str] = Counter()
        """Updates of each device that an earlier process merged, those after its last checkpoint included."""
        self._fetched = threading.Event()

    # ------------------------------------------------------------ the run

    def host(
        self, port: Port, transfers: Transfers, ready: Callable[[Driver], None], stopped: Callable[[], bool]
    ) -> None:
        """Run to the end, or until paused or stopped. `ready` is called when clients can be let in."""
        evaluator = None
        try:
            if (self.folder / "result.json").exists():
                self.state = "finished"
                return
            self.recipe = begin_folder(self.recipe, self.folder, resume=True)
            self._merged = _merged_so_far(self.folder / "events.jsonl")  # before the log is cut back
            self._open = folder = RunFolder(self.folder, self.recipe, Driver.kind, as_often_as_cheap=True)
            self.base = folder.base
            bundle = load(self.recipe.data, self.recipe.seed, self.recipe.model.pretrained)
            settled = settle(self.recipe, bundle, model_config(self.recipe, bundle))
            self.recipe = folder.recipe = settled.recipe
            keep_recipe(self.recipe, self.folder)
            self.classes = Classes.of(bundle)
            del bundle
            evaluator = Evaluator(self.recipe, settled.config, self.folder)
            self.driver = Driver(self.recipe, settled.config, port, transfers, evaluator, self._notify)
            self.driver.classes, self.driver.notes = self.classes, settled.notes
            if folder.checkpoint is not None:
                self.driver.restore(folder.checkpoint.values["session"], folder.checkpoint)
                self.driver.figures.replay(read_events(folder.log.path))
            ready(self.driver)
            with explained(self.folder):
                self._play(self.driver, folder, stopped)
        except Cos2pError as error:
            self.error, self.state = error, "failed"
            write_stop_note(self.folder, StopNote(True, str(error)))
            with suppress(RunError):  # the disk may be what is wrong; whoever follows learns it all the same
                self._notify(Stopped(t=self.driver.now if self.driver else 0.0, reason=str(error)))
        finally:
            transfers.close()
            if evaluator is not None:
                evaluator.close()

    def _play(self, driver: Driver, folder: RunFolder, stopped: Callable[[], bool]) -> None:
        if not driver.begun:
            self.state = "gathering"
            driver.gather(self.expected, GATHER_SECONDS, stopped)
        privacy = driver.server.aggregator.privacy
        if privacy is not None and self._merged:
            privacy.account.at_least(self._merged)
            folder.save(driver)
        self.state = "running"
        driver.play(lambda: self._between(driver, folder), stopped)
        if driver.finished is not None:
            folder.finish(driver, driver.now)
            self.state = "finished"
        else:
            if driver.begun:
                folder.save(driver)
            self.state = "paused"

    def _between(self, driver: Driver, folder: RunFolder) -> None:
        if driver.server.versions.current != self._version:
            self._version = driver.server.versions.current
            _give_back_memory()
        folder.save_if_due(driver)

    def wait_for_pickup(self, stopped: Callable[[], bool]) -> None:
        """Stay a while for the user to fetch what came out."""
        deadline = time.monotonic() + PICKUP_SECONDS
        while not self._fetched.wait(0.1) and time.monotonic() < deadline and not stopped():
            pass

    def _notify(self, event: Event) -> None:
        if self._open is not None:
            self._open.log.write(event)

    # ------------------------------------------------------------ what the user asks

    def report(self, life: str, offset: int) -> dict[str, Any]:
        """How it goes, and the log from `offset` on; the state alone while the log is not cut back yet."""
        if self.state == "starting":
            return {"state": self.state}
        start = offset if life == self.life else min(offset, self.base)
        lines, end = self._page(start)
        answer: dict[str, Any] = {
            "state": self.state,
            "life": self.life,
            "start": start,
            "end": end,
            "lines": lines,
            "files": {name: (self.folder / name).stat().st_size for name in FETCHABLE if (self.folder / name).exists()},
        }
        if self.error is not None:
            answer["error"] = {"kind": type(self.error).__name__, "message": str(self.error)}
        if self.driver is not None and self.driver.begun:
            answer["clients"] = self.clients()
            answer["now"] = self.driver.now
            answer["version"] = self.driver.server.coordinator.version
            answer["merged"] = self.driver.server.coordinator.merged
        return answer

    def clients(self) -> dict[str, dict[str, Any]]:
        """Each client's part: what it trains, whether it is heard, what its link carried."""
        driver = self.driver
        assert driver is not None
        ages, in_flight = driver.presence.ages(), driver.server.coordinator.in_flight()
        figures = {name: driver.figures.devices.get(name, DeviceFigures()) for name in driver.server.context.members}
        return {
            name: {
                "rate": member.rate,
                "samples": member.samples,
                "memory": member.device.memory,
                "task": in_flight[name].task if name in in_flight else "",
                "silent": round(ages.get(name, 0.0), 1),
                "updates": figures[name].updates,
                "link": figures[name].link,
                **driver.transfers.traffic.of(name),
            }
            for name, member in driver.server.context.members.items()
        }

    def chunk(self, name: str, offset: int) -> dict[str, Any]:
        """A piece of a file, as base64: the admin's link carries JSON."""
        if name not in FETCHABLE or offset < 0:
            raise RunError(f"{name!r} cannot be fetched; there are {', '.join(FETCHABLE)}")
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            return {"data": base64.b64encode(file.read(3 * PAGE_BYTES)).decode()}

    def fetched(self) -> None:
        self._fetched.set()

    def _page(self, start: int) -> tuple[str, int]:
        """Whole lines of the log from a byte on."""
        path = self.folder / "events.jsonl"
        if not path.exists():
            return "", start
        with path.open("rb") as file:
            file.seek(start)
            page = file.read(PAGE_BYTES)
            if b"\n" not in page:  # one long line
                page += file.readline()
        whole = page[: page.rfind(b"\n") + 1]
        return whole.decode("ascii"), start + len(whole)


def _give_back_memory() -> None:
    """Messages leave cycles and holes in the heap; collected after each round, the process stays as large as it is."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _merged_so_far(log: Path) -> Counter[str]:
    if not log.exists():
        return Counter()
    return Counter(event.client for event in read_events(log) if isinstance(event, Merged))


def read_recipe(path: Path) -> Recipe:
    return Recipe.parse(json.loads(path.read_text(encoding="utf-8")), str(path))


# ---------------------------------------------------------------- evaluation, in a process of its own


class Evaluator:
    """Scores versions of the model on the recipe's validation and test samples."""

    def __init__(self, recipe: Recipe, config: ModelConfig, folder: Path) -> None:
        """`folder`: where a version lies while it is scored; as bytes on the way it would be in memory three times."""
        self._pool = ProcessPool(1, _start, recipe.model_dump(mode="json"), config.to_dict())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evaluation")
        self._file = folder / ".evaluated.cos2p-tmp"

    def evaluate(self, weights: Weights, everything: bool = False) -> Future[dict[str, Any]]:
        return self._thread.submit(self._score, weights, everything)

    def _score(self, weights: Weights, everything: bool) -> dict[str, Any]:
        try:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, self._file)
            return self._pool.submit(_evaluate, str(self._file), everything).result()
        finally:
            self._file.unlink(missing_ok=True)

    def close(self) -> None:
        self._pool.close()
        self._thread.shutdown(cancel_futures=True)


_recipe: Recipe
_config: ModelConfig
_bundle: Bundle


def _start(recipe: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    global _recipe, _config, _bundle
    torch.set_num_threads(1)
    _recipe, _config = Recipe.parse(recipe), ModelConfig.from_dict(dict(config))
    _bundle = load(_recipe.data, _recipe.seed, _recipe.model.pretrained)


def _evaluate(file: str, everything: bool) -> dict[str, Any]:
    return score_model(_recipe, _config, _bundle, dict(sorted(load_file(file).items())), everything)

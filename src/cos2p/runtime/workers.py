"""Worker processes that do the devices' real training and the server's evaluation.

A job is a pure function of its bytes: which worker runs it, and when, cannot change its result. Every worker computes
with one thread, so that sums are added in the same order on every machine and with any number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from cos2p.accelerator import capped, is_out_of_memory, peak_bytes
from cos2p.aggregation.privacy.clipping import as_it_leaves
from cos2p.devices.attacks import corrupt
from cos2p.errors import TrainingError
from cos2p.messages import Task, Update, load_tensors
from cos2p.messages.packing import Packet
from cos2p.methods import Trainer, make_trainer
from cos2p.models.layout import Weights
from cos2p.numerics.optimizers import leave_compiler_out
from cos2p.processes.children import keep_freed_pages
from cos2p.processes.pool import ProcessPool
from cos2p.processes.ray_pool import GpuWish, RayPool
from cos2p.recipe import Recipe
from cos2p.runtime.evaluation import score_model
from cos2p.runtime.own_models import OwnModels
from cos2p.runtime.run_setup import Place, RunSetup, build_run_setup
from cos2p.seeding import torch_rng
from cos2p.training.client_cache import ClientCache, disk_limit
from cos2p.training.contract import as_it_travels
from cos2p.training.masks import Remembered
from cos2p.training.shard import Shard
from cos2p.units import format_bytes


@dataclass(frozen=True)
class TaskOutcome:
    """A device's answer: an update, or why there is none."""

    update: bytes | None
    memory: bytes
    failure: str = ""
    out_of_memory: bool = False
    """Its accelerator had no room: the next task is to be smaller."""
    own_model: str = ""
    """File with the device's own submodel, for the caller to take; empty: none is kept."""


class NoRoom(TrainingError):
    """A task took more than its device has of an accelerator."""


class Workers:
    def __init__(self, recipe: Recipe, client_cache: Path | None = None, own_models: Path | None = None) -> None:
        """`client_cache`: the folder of the devices' cache (see `training.client_cache`); `own_models`: a folder for
        their own submodels, if these are to be kept."""
        run, values = recipe.run, recipe.model_dump(mode="json")
        self.client_cache = (
            None if client_cache is None or run.engine == "ray" else ClientCache(client_cache, parts=False)
        )
        self._pool: ProcessPool | RayPool
        if run.engine == "ray":  # other machines have no part in this one's folders
            self._pool = RayPool(os.environ.get("RAY_ADDRESS", ""), run.workers, _start, values, gpus=gpu_wish(recipe))
        else:
            self._pool = ProcessPool(run.workers or os.cpu_count() or 1, _start, values, client_cache, own_models)

    def train(self, task: Packet, memory: Remembered) -> Future[TaskOutcome]:
        return self._pool.submit(_train, task.head, b"".join(task.bodies), pack_memory(memory))

    def evaluate(self, weights: Weights, everything: bool = False) -> Future[dict[str, Any]]:
        return self._pool.submit(_evaluate, safetensors.torch.save(weights), everything)

    def close(self) -> None:
        """Stop at once: a task in progress is worth nothing any more, or is done again on resume."""
        self._pool.close()


def gpu_wish(recipe: Recipe) -> GpuWish:
    """Whether a worker has to have a GPU: for its devices' tasks, or to evaluate the model."""
    named = {group.accelerator for group in recipe.fleet.devices} | {recipe.run.accelerator}
    if any(name.startswith("cuda") for name in named):
        return "needed"
    return "any" if "auto" in named else "none"


# ---------------------------------------------------------------- inside a worker

_run_setup: RunSetup | None = None
_client_cache: ClientCache | None = None
_own_models: OwnModels | None = None


def _start(recipe: Mapping[str, Any], client_cache: Path | None = None, own_models: Path | None = None) -> None:
    global _run_setup, _client_cache, _own_models
    torch.set_num_threads(1)
    keep_freed_pages()
    leave_compiler_out()
    # On another machine nothing is kept: features are computed again, and the update says what it would say here.
    folder, limit = (Path(os.devnull), 1) if client_cache is None else (client_cache, disk_limit(client_cache))
    _client_cache = ClientCache(folder, limit, parts=False)
    _run_setup = build_run_setup(Recipe.parse(recipe, own=True))
    _own_models = OwnModels.of(_run_setup, own_models) if own_models is not None else None


def _train(head: bytes, body: bytes, memory: bytes) -> TaskOutcome:
    assert _run_setup is not None
    task = Task.unpack(head, body)
    trainer = make_trainer(_run_setup.config, task.order)
    try:
        shard = _run_setup.shards[task.order.client]
        update, remembered = _run(trainer, task, shard, unpack_memory(memory), _run_setup.places[task.order.client])
        update = as_it_leaves(update, _run_setup.context.privacy, partial(torch_rng, _run_setup.recipe.seed))
    except TrainingError as error:
        return TaskOutcome(None, memory, str(error), out_of_memory=isinstance(error, NoRoom))
    if task.order.client in _run_setup.malicious:
        update = corrupt(update, task.order, _run_setup.recipe.attack)
    kept = _own_models.keep(trainer) if _own_models is not None else ""
    answer = bytes(as_it_travels(update, task.order).packet())
    return TaskOutcome(answer, pack_memory(remembered), own_model=kept)


def _run(trainer: Trainer, task: Task, shard: Shard, memory: Remembered, place: Place) -> tuple[Update, Remembered]:
    """On the device's accelerator, of which it gets as much as it has."""
    try:
        with capped(place.device, place.memory):
            return trainer.run(task, shard, memory, _client_cache, place.device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        peak, cap = format_bytes(peak_bytes(place.device)), format_bytes(place.memory)
        raise NoRoom(f"out of memory on {place.device}: the cap is {cap} and {peak} were in use") from None


def _evaluate(weights: bytes, everything: bool) -> dict[str, Any]:
    assert _run_setup is not None
    return score_model(_run_setup.recipe, _run_setup.config, _run_setup.bundle, load_tensors(weights), everything)


def pack_memory(memory: Remembered) -> bytes:
    return safetensors.torch.save(memory) if memory else b""


def unpack_memory(data: bytes) -> Remembered:
    return load_tensors(data) if data else {}

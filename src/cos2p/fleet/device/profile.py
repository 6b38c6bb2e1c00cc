"""The speed of this device and the memory of a task, measured: one task of a recipe, trained as a fleet's device does.

What it trains is the recipe's plan for its memory. Needs the recipe's data on this device, and no server.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import tomli_w
import torch

from cos2p.accelerator import free_bytes, resolve
from cos2p.devices.clock import task_flops
from cos2p.errors import ConfigError, TrainingError
from cos2p.fleet.device.jobs import Job, Setup
from cos2p.fleet.device.training import TrainingProcess
from cos2p.memory.plan import plan_of
from cos2p.methods import make_contract
from cos2p.older_python import tomllib
from cos2p.recipe import Recipe
from cos2p.runtime.rehearsal import first_training_orders
from cos2p.runtime.run_setup import build_run_setup, first_weights
from cos2p.server.server import Server
from cos2p.units import format_bytes

NAME = "this-device"


@dataclass(frozen=True)
class Profile:
    trains: str
    """The part that trains by the plan, in words."""
    memory: int
    """Bytes training may take."""
    peak: int
    """Bytes over the idle process, measured."""
    predicted: int
    """Bytes as the ledger says."""
    samples: int
    seconds: float
    """Wall time of the task."""
    flops: float
    """FLOP/s in training."""
    accelerator: str
    """The processor or GPU that was measured."""


def profile(
    recipe: str,
    changes: Iterable[str] = (),
    method: str | None = None,
    *,
    memory: int = 0,
    samples: int = 64,
    threads: int = 0,
    accelerator: str = "cpu",
) -> Profile:
    """Train one task of so many samples. `memory` 0 means four fifths of what this machine, or the accelerator, has
    free now; `threads` 0 as many as torch takes."""
    device = resolve(accelerator)
    memory = memory or free_memory(device)
    batch = Recipe.load(recipe, changes, method).fleet.devices[0].batch
    one = f'fleet.devices=[{{name = "{NAME}", preset = "laptop", batch = {batch}, memory = {memory}}}]'
    own = [one, f"data.train_samples={samples}", "data.validation_fraction=0", "partition.kind=iid"]
    own += ["partition.local_test=0", "training.lr=1e-3", "run.device_models=0"]
    run_setup = build_run_setup(Recipe.load(recipe, [*changes, *own], method))
    server = Server(run_setup.context, run_setup.method(), first_weights(run_setup.recipe, run_setup.config))
    (member,) = run_setup.context.members.values()
    order = first_training_orders(server, member.name)[0]
    contract, plan = make_contract(run_setup.config, order), plan_of(server.method, member, server.weights)
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(
            name=member.name,
            recipe=run_setup.recipe.model_dump(mode="json"),
            config=run_setup.config.to_dict(),
            classes=list(run_setup.bundle.class_names),
            trust_paths=True,
            memory=memory,
            threads=threads,
            accelerator=str(device),
            kit=folder,  # an account of local privacy is not the device's own
            run="profile",
        )
        files = Job(*(str(Path(folder, "run", name)) for name in ("task", "update", "remembered")))
        Path(files.task).parent.mkdir()
        server.orders.write_task(order, Path(files.task))
        process = TrainingProcess(setup, Path(folder, "log"))
        try:
            answer = process.train(files)
        finally:
            process.stop()
    if answer.failure:
        raise TrainingError(f"{plan.trains} in {format_bytes(memory)}: {answer.failure}")
    seconds = float(answer.numbers["seconds"])
    work = task_flops(contract, member.samples, member.test_samples, run_setup.shards[member.name].widths)
    predicted = contract.memory(member.samples).total
    peak, flops = int(answer.numbers["peak"]), (work.prefix + work.masks + work.training) / seconds
    return Profile(plan.trains, memory, peak, predicted, member.samples, seconds, flops, str(device))


def free_memory(device: torch.device) -> int:
    """Four fifths of what is free now, of an accelerator's memory if it has its own: the rest is for everybody else."""
    own = free_bytes(device)
    return int(0.8 * (psutil.virtual_memory().available if own is None else own))


# ---------------------------------------------------------------- device.toml


def write_device(found: Profile, path: Path) -> None:
    """The figures for a recipe's [[fleet.devices]] and for `cos2p fleet join --device`, and what they come from."""
    head = "# Measured by `cos2p profile`. Seconds are wall time, bytes are over the idle process.\n\n"
    try:
        path.write_text(head + tomli_w.dumps(dict(vars(found))), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def read_device(path: Path) -> dict[str, Any]:
    """The figures of a device.toml; ConfigError unless it has a memory and a speed."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for field in ("memory", "flops"):
        if not isinstance(values.get(field), int | float) or values[field] <= 0:
            raise ConfigError(f"{path}: {field} is {values.get(field)!r}; make the file with: cos2p profile")
    return values

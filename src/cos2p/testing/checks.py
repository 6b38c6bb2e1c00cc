"""The contract that every method keeps, as checks: `check_method("my_module:FedProx")` runs them all in seconds.

With pytest, a test for each:

    @pytest.mark.parametrize("check", CHECKS)
    def test_fedprox(check: str) -> None:
        check_method("my_module:FedProx", only=check)

A check that fails raises an AssertionError that names what the method, its trainer or its contract does wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cos2p.aggregation.settings import ScheduleSettings
from cos2p.errors import BudgetError
from cos2p.messages import Order, Task, Update, tensor_bytes
from cos2p.methods.base import RunContext
from cos2p.methods.registry import import_method, make_contract, method_class, run_task, trainer_class
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup
from cos2p.testing.fleet import Fleet, same
from cos2p.testing.gpu import peak_allocated, stand_in_gpu
from cos2p.tracking.event_kinds import Refused
from cos2p.training.contract import as_it_travels
from cos2p.training.settings import MemoryOptimizations

SMALL = {"depth": 2, "dim": 16, "heads": 4, "mlp": 32, "patch": 4}
LARGE = {"depth": 2, "dim": 128, "heads": 4, "mlp": 1024, "patch": 4}
"""So that a copy of the weights which nobody counted is larger than the ledger's slack."""

EXACT = {"step_in_backward": True, "recompute": "yes"}
CLOSE = {"micro_batch": 3, "eight_bit": True}
"""Memory optimizations that give the same bits, and those that round."""
CLOSE_ENOUGH = {"micro_batch": 0.1, "eight_bit": 0.5}
"""Largest distance of such an update from the plain one, as a share of its length: adan's and adamw's steps follow
signs, so that a little rounding makes a large difference."""


@dataclass(frozen=True)
class Subject:
    """A method with its settings, on three devices of rates 1/8, 1/4 and 1/2 with a few digits each."""

    settings: Mapping[str, Any]

    def fleet(self, context: RunContext | None = None, **schedule: Any) -> Fleet:
        return Fleet(context or self.context(**schedule), self.settings, _digits().shards)

    def context(self, **schedule: Any) -> RunContext:
        plan = ScheduleSettings.model_validate({"redispatch": "at-once", **(schedule or {"updates": 8})})
        return replace(_digits().context, schedule=plan, as_bound=True)

    def each_task(self) -> Iterator[tuple[Fleet, Order]]:
        """A fleet whose server has the order open, for the first order of every trainer."""
        seen: set[str] = set()
        fleet = self.fleet()
        for _ in range(8):
            for order in [order for order in fleet.server.orders.values() if order.trainer not in seen]:
                seen.add(order.trainer)
                yield fleet, order
            if fleet.done is not None:
                return
            fleet.answer()


def check_method(name: str, settings: Mapping[str, Any] | None = None, only: str = "") -> None:
    """Run all checks, or the one named, on a method: one that is installed, or `module:Class` of a file in this folder.

    `settings` are those of the recipe's `[method]`.
    """
    if ":" in name:
        import_method(name, (Path.cwd(),))
    if only and only not in CHECKS:
        raise ValueError(f"there is no check {only!r}; there are {', '.join(CHECKS)}")
    subject = Subject({"name": name, **(settings or {})})
    for check in [only] if only else CHECKS:
        CHECKS[check](subject)


def check_restart(subject: Subject) -> None:
    """A server that stops after every answer and goes on from its checkpoint ends with the same bits."""
    straight, broken = subject.fleet().run(), subject.fleet()
    with tempfile.TemporaryDirectory() as folder:
        while broken.done is None:
            broken.restart(Path(folder))
            broken.answer()
    ends = "the run ends otherwise after restarts: keep what decides in state() and load_state(), or in self.remembered"
    assert [order.spec for order in broken.orders] == [order.spec for order in straight.orders], ends
    assert same(broken.server.weights, straight.server.weights), ends


def check_promised(subject: Subject) -> None:
    """The tensors of the contract travel, and the same task gives the same update."""
    for fleet, order in subject.each_task():
        contract, update = make_contract(fleet.context.config, order), _trained(fleet, order)
        found = {name: tuple(tensor.shape) for name, tensor in update.delta.items()}
        assert found == dict(contract.answer(update.spec)), f"{order.trainer}: answer() names other tensors than came"
        size = tensor_bytes(update.delta, update.extras)
        assert size <= contract.upload(), (
            f"{order.trainer}: {size} bytes came back, upload() counts {contract.upload()}"
        )
        again = _trained(fleet, order).to_bytes()
        assert again == update.to_bytes(), f"{order.trainer}: the same task gave another update; draw from self.rng"


def check_hostile(subject: Subject) -> None:
    """An update with wrong names, types, shapes or values is refused, and the model stays as it was."""
    first = subject.fleet()
    order = first.orders[0]
    honest = as_it_travels(_trained(first, order), order)
    for harm, update in _hostile(honest):
        fleet = subject.fleet()
        before = fleet.server.weights
        effects = fleet.server.receive(order.client, update.to_bytes())
        assert any(isinstance(effect, Refused) for effect in effects), f"an update with {harm} was let in"
        assert same(before, fleet.server.weights), f"an update with {harm} changed the model"


def _hostile(honest: Update) -> Iterator[tuple[str, Update]]:
    yield "another task's name", replace(honest, task=honest.task + "0")
    yield "no samples", replace(honest, samples=0)
    yield "more samples than the device has", replace(honest, samples=10**9)
    yield "a tensor that nobody asked for", replace(honest, extras={**honest.extras, "more": torch.zeros(1)})
    for part in ("delta", "extras"):
        tensors: Mapping[str, Tensor] = getattr(honest, part)
        name = next((n for n, t in tensors.items() if t.numel() and t.is_floating_point()), "")
        if not name:
            continue
        tensor = tensors[name]
        for harm, changed in (
            ("values that are not finite", torch.full_like(tensor, torch.nan)),
            ("huge values", torch.full_like(tensor, 1e30)),
            ("another type", tensor.double()),
            ("another shape", tensor[None]),
        ):
            other: dict[str, Any] = {part: {**tensors, name: changed}}
            yield f"{harm} in {name}", replace(honest, **other)
        if part == "delta":
            yield f"{name} missing", replace(honest, delta={n: t for n, t in tensors.items() if n != name})


def check_memory(subject: Subject) -> None:
    """A task takes no more memory than its contract says, whatever optimizations its trainer supports."""
    for way in ({}, *({name: value} for name, value in {**EXACT, **CLOSE}.items())):
        context, shards = _large().context, _large().shards
        training = context.training.model_copy(update={"memory_optimizations": MemoryOptimizations.model_validate(way)})
        fleet = Fleet(replace(context, training=training, as_bound=True), subject.settings, shards)
        order = fleet.orders[0]
        if way and not trainer_class(order.trainer).supports & way.keys():
            continue
        task = fleet.server.orders.task(order)
        promised = make_contract(context.config, order).memory(len(shards[order.client].train)).total
        real = tensor_bytes(task.weights) + peak_allocated(lambda: _trained(fleet, order, task))  # noqa: B023
        how = f" with {next(iter(way))}" if way else ""
        assert real <= promised, (
            f"{order.trainer}{how} takes {real} bytes, its contract's memory() says {promised}: count what is held "
            "with held_bytes(), or declare less in `supports`"
        )


def check_budget(subject: Subject) -> None:
    """No task is given to a device that has too little memory for it."""
    plain = replace(subject.context(), as_bound=False)
    members = {
        name: replace(member, device=member.device.model_copy(update={"memory": 1000}))
        for name, member in plain.members.items()
    }
    try:
        fleet = subject.fleet(replace(plain, members=members))
    except BudgetError:
        return
    assert not fleet.orders, "a device with a kilobyte of memory was given a task"


def check_declarations(subject: Subject) -> None:
    """With every optimization that a trainer declares in `supports`, a task ends where it ends without."""
    for fleet, order in subject.each_task():
        trainer = trainer_class(order.trainer)
        plain = _trained(fleet, order)
        for name, value in {**EXACT, **CLOSE}.items():
            if name not in trainer.supports:
                continue
            key = "local" if "local" in order.settings else ""
            local = {**(order.settings[key] if key else order.settings), "memory_optimizations": {name: value}}
            changed = replace(order, settings={**order.settings, key: local} if key else local)
            _compare(order.trainer, name, plain, _trained(fleet, changed, fleet.server.orders.task(order)))


def _compare(trainer: str, name: str, plain: Update, other: Update) -> None:
    wrong = f"{trainer} declares {name!r} in `supports`, and trains otherwise with it"
    if name in EXACT:
        assert same(plain.delta, other.delta), wrong
        return
    length = sum(float(tensor.double().square().sum()) for tensor in plain.delta.values()) ** 0.5
    apart = sum(float((plain.delta[n] - t).double().square().sum()) for n, t in other.delta.items()) ** 0.5
    assert apart <= CLOSE_ENOUGH[name] * length, f"{wrong}: {apart / max(length, 1e-12):.2g} of the update's length"


def check_placement(subject: Subject) -> None:
    """A task runs on a GPU: no tensor is left on the host. (A stand-in; it needs a torch that `testing.gpu` knows.)"""
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 13):
        return
    for fleet, order in subject.each_task():
        task = fleet.server.orders.task(order)
        with stand_in_gpu() as gpu:
            run_task(fleet.context.config, task, fleet.shards[order.client], {}, device=gpu.device)


def check_names(subject: Subject) -> None:
    """Names, titles and settings are there, and every task is for a trainer that the method lists."""
    method = method_class(str(subject.settings["name"]))
    assert method.title, "a method has a title, as it stands in tables"
    fields = method.settings_type.model_fields.items()
    silent = [n for n, field in fields if not (field.description or hasattr(field.annotation, "model_fields"))]
    assert not silent, f"settings without a description: {', '.join(silent)}"
    known = {trainer.name for trainer in method.trainers} | {"statistics"}
    for _, order in subject.each_task():
        assert order.trainer in known, f"assign() asks for the trainer {order.trainer!r}, which is not in `trainers`"


CHECKS: Mapping[str, Callable[[Subject], None]] = {
    "names": check_names,
    "restart": check_restart,
    "promised": check_promised,
    "hostile": check_hostile,
    "memory": check_memory,
    "budget": check_budget,
    "declarations": check_declarations,
    "placement": check_placement,
}


def _trained(fleet: Fleet, order: Order, task: Task | None = None) -> Update:
    given = replace(task or fleet.server.orders.task(order), order=order)
    return run_task(fleet.context.config, given, fleet.shards[order.client], fleet.memories[order.client])[0]


@cache
def _digits() -> RunSetup:
    return _run_setup(SMALL)


@cache
def _large() -> RunSetup:
    return _run_setup(LARGE)


def _run_setup(model: Mapping[str, int]) -> RunSetup:
    device = {"preset": "laptop", "batch": 16, "flops": 1e9}
    return build_run_setup(
        Recipe.parse(
            {
                "name": "digits for methods",
                "model": {"size": "vit-nano", **model},
                "data": {"source": "digits", "train_samples": 120, "test_samples": 40},
                "fleet": {"devices": [{**device, "rate": rate} for rate in (0.125, 0.25, 0.5)]},
                "training": {"epochs": 1},
                "schedule": {"rounds": 2},
            }
        )
    )

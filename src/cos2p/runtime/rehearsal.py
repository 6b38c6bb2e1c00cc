"""A run up to its first tasks, of which none is trained: data are read and dealt out, budgets are kept or not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from cos2p.aggregation.triggers import Trigger
from cos2p.data import Bundle
from cos2p.data.config import DataConfig
from cos2p.data.paths import find
from cos2p.errors import BudgetError, DataError
from cos2p.memory.plan import Plan, kinds, plan_of
from cos2p.messages import Order, Update
from cos2p.models.config import ModelConfig
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.server.protocol import ClientJoined, Dispatch, Send
from cos2p.server.server import Server

MOST = 64
"""Kinds of devices that are looked at."""
_EFFICIENCY = 0.45
"""The share of a large matrix product's speed that training reaches; roughly."""
START, _TASK = 4.0, 0.06
"""Seconds until the processes have begun, and seconds that a task takes next to its arithmetic."""


@dataclass(frozen=True)
class DevicePlan:
    """The plan of devices that are equal."""

    devices: tuple[str, ...]
    samples: int
    """The most that one of them has."""
    plan: Plan


@dataclass(frozen=True, eq=False)
class Rehearsal:
    recipe: Recipe
    config: ModelConfig
    bundle: Bundle
    devices: int
    plans: tuple[DevicePlan, ...]
    """Plans of the first `MOST` kinds of devices."""
    splits: tuple[str, ...]
    """Which folder or file became which split."""
    notes: tuple[str, ...] = ()
    """Notes for the user on data and model."""
    statistics_rounds: float = 0.0
    """Rounds in which devices report statistics and do not train."""
    share: float = 1.0
    """The share of the devices whose updates a round has."""

    @property
    def seconds_of_a_round(self) -> float:
        """On this machine, roughly: all tasks once, on the run's workers."""
        planned = sum(len(entry.devices) for entry in self.plans)
        if not planned:
            return 0.0
        work = sum(entry.plan.flops * len(entry.devices) for entry in self.plans) * self.devices / planned
        return work / (_machine_flops() * _EFFICIENCY * self._workers) + _TASK * self.devices / self._workers

    @property
    def _workers(self) -> int:
        return min(self.recipe.run.workers or os.cpu_count() or 1, os.cpu_count() or 1)

    @property
    def rounds(self) -> float:
        """Tasks of all devices that the run is long."""
        schedule = self.recipe.schedule
        by_updates = schedule.updates / max(1, self.devices) if schedule.updates else float("inf")
        return min((schedule.rounds or float("inf")) * self.share, by_updates)

    @property
    def seconds(self) -> float:
        """Seconds of the whole run on this machine, roughly. Statistics take a pass forward, a third of a step."""
        statistics = min(self.statistics_rounds, self.rounds)
        return START + self.seconds_of_a_round * (self.rounds - 2 / 3 * statistics)


def rehearse(recipe: Recipe) -> Rehearsal:
    """Everything that can go wrong before the first step does so here, with the same error."""
    run_setup = build_run_setup(recipe)
    recipe = run_setup.recipe
    server = Server(run_setup.context, run_setup.method(), first_weights(recipe, run_setup.config))
    plans = tuple(_plans(run_setup, server))
    splits = tuple(_splits(recipe.data))
    devices = len(run_setup.context.members)
    return Rehearsal(
        recipe, run_setup.config, run_setup.bundle, devices, plans, splits, run_setup.notes,
        server.method.statistics_updates / max(1, devices), share_of_a_round(server.method.rules()[0], devices),
    )  # fmt: skip


def share_of_a_round(trigger: Trigger, devices: int) -> float:
    """The share of so many devices that report until the server aggregates; while it goes on listening, half of the
    rest."""
    least = min(trigger.threshold(devices), devices)
    return (least + (devices if trigger.t_clk else least)) / (2 * max(1, devices))


def _plans(run_setup: RunSetup, server: Server) -> Iterator[DevicePlan]:
    refused = []
    for kind in kinds(run_setup.context.members.values())[:MOST]:
        member = kind[0]
        try:
            first_training_orders(server, member.name)
        except BudgetError as error:
            refused.append(str(error))
            continue
        plan = plan_of(server.method, member, server.weights)
        yield DevicePlan(tuple(other.name for other in kind), member.samples, plan)
    if refused:
        more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
        raise BudgetError("; ".join(refused[:3]) + more)


def first_training_orders(server: Server, client: str) -> list[Order]:
    """The client's first orders that train: they take the memory. BudgetError if they do not fit."""
    effects = server.handle(ClientJoined(client))
    return [_that_trains(server, effect.order) for effect in effects if isinstance(effect, Send)]


def _that_trains(server: Server, order: Order) -> Order:
    """The order itself, or the next one if it only asks for sums of features."""
    if server.orders.contract(order).trains:
        return order
    server.method.accepted(order, Update(order.client, order.task, order.version, order.spec, {}, 1, {}, {}))
    return server.order(Dispatch(order.client, f"{order.client}#1", order.version, order.cycle + 1, 1))


def _splits(data: DataConfig) -> Iterator[str]:
    """Where the splits come from, as far as that is not the recipe's own word."""
    if data.source != "folder":
        for name in ("train", "validation", "test"):
            if getattr(data, name):
                yield f"{name} {getattr(data, name)}"
        return
    try:
        root = find(data.path)
    except DataError:
        return
    folders = {child.name for child in Path(root).iterdir() if child.is_dir()}
    usual = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
    if not folders & {"train", data.train or "train"}:
        return
    for name, names in usual.items():
        chosen = getattr(data, name) or next((n for n in names if n in folders), "")
        if chosen:
            yield f"{name} {root / chosen}"


def _machine_flops() -> float:
    """FLOP per second of one thread on a matrix product, measured in a tenth of a second."""
    threads, a = torch.get_num_threads(), torch.ones(256, 256)
    torch.set_num_threads(1)
    try:
        began, count = time.process_time(), 0
        while time.process_time() - began < 0.1:
            a @ a
            count += 1
        return 2 * 256**3 * count / (time.process_time() - began)
    finally:
        torch.set_num_threads(threads)

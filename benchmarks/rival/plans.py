"""What a task costs by the cost model, at every window position and at the recipe's own batch; nothing is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch

from benchmarks.rival.forms import EPOCHS, FORMS, RIVAL, ROUNDS
from cos2p.messages import Order, tensor_bytes
from cos2p.methods import build_method, make_contract
from cos2p.methods.base import Member, Method, RunContext
from cos2p.methods.cos2p import Cos2p
from cos2p.models.layout import Weights, layout
from cos2p.models.sizes import model_config
from cos2p.recipe import Recipe, apply_change, recipe_values, switch_method
from cos2p.runtime.run_setup import fleet_devices
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server
from cos2p.training.contract import packed_bytes

SAMPLES = 512
"""A device's samples: FLOPs are in proportion to them; peak and bytes do not depend on them."""


@dataclass(frozen=True)
class Tier:
    """Devices of a recipe that train the same share of the model."""

    recipe: str
    rate: float
    clients: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.recipe} R={self.rate:.4g}"


@dataclass(frozen=True)
class Plan:
    """One task by the cost model. `peak` is the mean over the tier's devices, whose batches differ."""

    start: int
    flops: float
    mask_flops: float
    peak: float
    down: int
    up: int


def context(recipe_name: str, changes: tuple[str, ...] = (), method: str = "cos2p") -> tuple[Recipe, RunContext]:
    values = recipe_values(recipe_name)
    values["fleet"]["enforce_memory"] = False
    values["training"]["epochs"] = values["method"]["masks"]["epochs"] = EPOCHS
    switch_method(values, method)
    for change in changes:
        apply_change(values, change)
    recipe = Recipe.parse(values, recipe_name)
    members = {
        device.name: Member(device.name, device, 1.0 if group.rate == "auto" else group.rate, group.batch, SAMPLES)
        for device, group in fleet_devices(recipe)
    }
    config = model_config(recipe.model.size)
    return recipe, RunContext(config, members, recipe.training, recipe.schedule, recipe.seed, enforce_memory=False)


def tiers(recipe_name: str) -> Iterator[Tier]:
    members = context(recipe_name)[1].members
    for rate in sorted({member.rate for member in members.values()}):
        yield Tier(recipe_name, rate, tuple(name for name, member in members.items() if member.rate == rate))


def order_at(server: Server, client: str, start: int) -> Order:
    """The client's first task, its window at `start` (of a method with windows that roll)."""
    if isinstance(server.method, Cos2p):
        server.method.offsets[client] = start
    return next(effect.order for effect in server.handle(ClientJoined(client)) if isinstance(effect, Send))


@cache
def positions(tier: Tier, form: str) -> dict[int, float]:
    """The share of a run's tasks that this tier does at each window position."""
    recipe, around = context(tier.recipe, FORMS[form].wire)
    method = build_method(recipe.method, around)
    assert isinstance(method, Cos2p)
    seen = Counter[int]()
    for cycle in range(ROUNDS):
        for name, member in around.members.items():
            blocks = method.next_blocks(member, cycle)
            for block in blocks:
                method.dispatched[block] += 1
            if name in tier.clients:
                seen[blocks.start] += 1
    return {start: count / seen.total() for start, count in sorted(seen.items())}


@cache
def plan(tier: Tier, form: str, trains_masks: bool, start: int, wire: tuple[str, ...] = ()) -> Plan:
    """By the cost model; `form` is that of Co-S²P or the rival's name, `wire` changes of how what trains travels."""
    changes, method = _task(form, trains_masks)
    recipe, around = context(tier.recipe, changes + wire, method)
    weights: Weights = {name: torch.empty(entry.shape, device="meta") for name, entry in layout(around.config).items()}
    built: Method = build_method(recipe.method, around)
    server = Server(around, built, weights)
    peaks = dict[int, int]()
    batches = [around.members[client].batch for client in tier.clients]
    for client, batch in zip(tier.clients, batches, strict=True):
        if batch not in peaks:
            order = order_at(server, client, start)
            trainer = make_contract(around.config, order)
            peaks[batch] = trainer.memory(SAMPLES).total
    work = trainer.flops(SAMPLES, 0)
    frozen = trainer.sent_frozen(weights)
    sent = {name: tuple(tensor.shape) for name, tensor in trainer.sent(weights).items()}
    return Plan(
        start,
        work.prefix + work.masks + work.training,
        work.masks,
        sum(peaks[batch] for batch in batches) / len(batches),
        tensor_bytes(frozen) + packed_bytes(sent, order.wire.down),
        trainer.wire_upload(),
    )


def _task(form: str, trains_masks: bool) -> tuple[tuple[str, ...], str]:
    if form == RIVAL:
        return (), RIVAL
    return FORMS[form].changes(trains_masks) + FORMS[form].wire, "cos2p"

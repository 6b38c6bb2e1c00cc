"""A server of every kind with an open task, an honest answer to it, and what must hold whatever comes instead."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cos2p.messages import Order, Update
from cos2p.messages.forms import TensorForm
from cos2p.methods import build_method, make_trainer, methods, run_task
from cos2p.models.layout import Weights, init_weights
from cos2p.runtime.decisions import ClientJoined, Stop
from cos2p.runtime.server import Effect, Server
from cos2p.seeding import torch_rng
from cos2p.tracking.event_kinds import Event, Merged, Refused
from cos2p.training.statistics import StatisticsTrainer
from tests.fuzz.mutations import mutate
from tests.runtime.played import trained_spec
from tests.tiny import VIT, context, shard

CLIENT = "pi-0"
LARGEST_MOVE = 10.0
"""The schedule's max_update_rms: no weight moves further by one update."""

FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "fedmezo": ({"wire": "seeds"}, {"wire": "tensors"}),
    "fedmezo-full": ({"wire": "seeds"},),
    "fedavg-qvit": ({"wire": "codes"}, {"wire": "float32"}),
    "fedpm": ({"variant": "elements"}, {"variant": "segments"}),
}
"""Settings that change what travels; of all other methods their own defaults."""


@dataclass(frozen=True, eq=False)
class Arena:
    title: str
    server: Server
    honest: bytes
    """What the client would send."""


@dataclass(frozen=True)
class Verdict:
    """What became of one update."""

    fate: str
    """refused or merged"""
    harm: str = ""
    """Why it should not have been merged; empty if it is harmless."""


def arenas() -> Iterator[str]:
    """One for every method and form, installed ones too."""
    for name in sorted(methods()):
        yield from (f"{name} {number}" for number in range(len(FORMS.get(name, ({},)))))


@cache
def arena(title: str) -> Arena:
    name, number = title.split()
    house = context(VIT, rates=(0.25, 0.5, 1.0), rounds=3, max_update_rms=LARGEST_MOVE)
    settings = FORMS.get(name, ({},))[int(number)]
    server = Server(house, build_method({"name": name, **settings}, house), init_weights(VIT, 0))
    for client in house.members:
        server.handle(ClientJoined(client))
    (order,) = (order for order in server.orders.values() if order.client == CLIENT)
    if order.trainer == StatisticsTrainer.name:  # what it tells has to add up
        honest, _ = run_task(VIT, server.task(order), shard(VIT, house.members[CLIENT].samples), {})
    else:
        honest = answer(order)
    return Arena(title, server, honest.to_bytes())


def answer(order: Order) -> Update:
    """As an honest device would send it, with made-up numbers of an honest size."""
    spec, trainer = trained_spec(order), make_trainer(VIT, order)
    rng = torch_rng(0, "honest", order.trainer)
    delta = {name: 0.01 * torch.randn(shape, generator=rng) for name, shape in trainer.answer(spec).items()}
    extras = {name: _filled(form, rng) for name, form in (trainer.beside(spec) or {}).items()}
    report = {"loss": 1.5, "local_samples": 4, "local_top1": 0.25}
    return Update(order.client, order.task, order.version, spec, delta, 10, report, extras)


def _filled(form: TensorForm, rng: torch.Generator) -> Tensor:
    if form.dtype == torch.uint8:
        return torch.full(form.shape, 128, dtype=torch.uint8)  # codes of eight bits: zero
    if not form.dtype.is_floating_point:
        return torch.randint(1000, form.shape, generator=rng, dtype=form.dtype)
    low, high = max(form.low, -0.01), min(form.high, 0.01)
    return low + (high - low) * torch.rand(form.shape, generator=rng)


def play(place: Arena, data: bytes) -> Verdict:
    """Give the server these bytes, end the round, and look at the model. Raises whatever the server raises."""
    server = copy.deepcopy(place.server)
    before = dict(server.weights)
    effects = server.receive(CLIENT, data)
    merged, refused = _count(effects, Merged), _count(effects, Refused)
    assert merged + refused == 1, "an update is merged or refused, and it is told once"
    server.handle(Stop("the end"))
    return Verdict("merged" if merged else "refused", harm(before, server.weights))


def _count(effects: list[Effect], kind: type[Event]) -> int:
    return sum(isinstance(effect, kind) for effect in effects)


def harm(before: Weights, after: Weights) -> str:
    """What is wrong with the next model; empty if nothing is."""
    for name, old in before.items():
        new = after[name]
        if new is old or not new.numel():
            continue
        if not bool(torch.isfinite(new).all()):
            return f"{name} is not finite"
        moved = float((new - old).abs().max())
        if moved > LARGEST_MOVE * 1.001:
            return f"{name} moved by {moved:.3g}"
    return ""


def attempt(title: str, seed: int) -> tuple[str, Verdict]:
    """One mutated update, by its number; and how it was made."""
    rng = random.Random(f"{title} {seed}")
    name, data = mutate(arena(title).honest, rng)
    return name, play(arena(title), data)

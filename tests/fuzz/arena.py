"""A server of every kind with an open task, an honest answer to it, and what must hold whatever comes instead."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cos2p.aggregation.settings import PrivacySettings, RobustSettings
from cos2p.messages import Order, Update
from cos2p.messages.envelope import TensorForm
from cos2p.methods import build_method, make_contract, methods, run_task
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, init_weights
from cos2p.models.spec import to_bits
from cos2p.seeding import torch_rng
from cos2p.server.protocol import ClientJoined, Effect, Stop
from cos2p.server.server import Server
from cos2p.tracking.event_kinds import Event, Merged, Refused
from cos2p.training.contract import as_it_travels
from cos2p.training.statistics import StatisticsTrainer
from tests.fuzz.mutations import mutate
from tests.runtime.played import trained_spec
from tests.submodel.strategies import CONFIGS
from tests.tiny import context, shard

CLIENT = "pi-0"
LARGEST_MOVE = 10.0
"""The schedule's max_update_rms: no weight moves further by one update."""

ROBUST = {"bound": 2.0, "suspicion": "exclude", "combine": "median"}
ROWS = to_bits(range(0, 20, 2))
"""Tokens of a device's texts."""


@dataclass(frozen=True)
class Kind:
    """A server to be tried: its method, and whatever changes what travels or who reads it."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = "vit"
    training: Mapping[str, Any] = field(default_factory=dict)
    robust: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    company: bool = False
    """The others of its round have answered already, honestly."""


OTHERS: dict[str, Kind] = {
    "seeds": Kind("fedmezo", {"wire": "seeds"}),
    "codes": Kind("fedavg-qvit", {"wire": "codes"}),
    "codes as numbers": Kind("fedavg-qvit", {"wire": "float32"}),
    "masks of segments": Kind("fedpm", {"variant": "segments"}),
    "closed-form exits": Kind("cos2p", {"exits": {"start": "discriminant"}}),
    "class means": Kind("cos2p", {"exits": {"start": "means"}}),
    "closed-form exits in company": Kind("cos2p", {"exits": {"start": "discriminant"}}, company=True),
    "closed-form head of LoRA": Kind("fedlora", {"start": "discriminant"}),
    "pretrained form": Kind("cos2p", {"form": "pretrained", "exits": {"start": "fresh"}}),
    "rows of texts": Kind("cos2p", model="bert", training={"embeddings": "rows"}),
    "frozen rows": Kind("fedavg", model="bert", training={"embeddings": "frozen"}),
    "rows of a language model": Kind("cos2p", model="llama untied", training={"embeddings": "rows"}),
    "rows with LoRA": Kind("fedlora", model="bert", training={"embeddings": "rows"}),
    "by samples": Kind("fedavg", {"weights": "samples"}, company=True),
    "in company": Kind("cos2p", company=True),
    "median and bench": Kind("cos2p", robust=ROBUST, company=True),
    "median and bench of FedAvg": Kind("fedavg", robust=ROBUST, company=True),
    "median of LoRA": Kind("fedlora", robust=ROBUST, company=True),
    "geometric median": Kind("heterofl", robust={"bound": 2.0, "combine": "geometric"}, company=True),
    "16 bits": Kind("cos2p", training={"wire": {"down": "float16", "up": "float16"}}),
    "8 bits": Kind("cos2p", training={"wire": {"down": "int8", "up": "int8"}}),
    "8 bits in company": Kind("fedavg", training={"wire": {"up": "int8"}}, company=True),
    "private": Kind("fedavg", privacy={"noise": "central", "clip": 0.5, "multiplier": 0.01}, company=True),
}
"""Besides every method with its own defaults."""


@dataclass(frozen=True, eq=False)
class Arena:
    title: str
    server: Server
    honest: bytes
    """What the client would send."""

    def fresh(self) -> Server:
        """As it was. What is never changed in place all copies share: the model's tensors, orders, the context."""
        server = self.server
        shared = (server.context, *server.weights.values(), *server.orders.values())
        return copy.deepcopy(server, {id(one): one for one in shared})


@dataclass(frozen=True)
class Verdict:
    """What became of one update."""

    fate: str
    """refused or merged"""
    harm: str = ""
    """Why it should not have been merged; empty if it is harmless."""


def kinds() -> dict[str, Kind]:
    """Every method, installed ones too, and the others."""
    return {name: Kind(name) for name in sorted(methods())} | OTHERS


@cache
def arena(title: str) -> Arena:
    kind = kinds()[title]
    config = CONFIGS[kind.model]
    rules = {"rounds": 3, "max_update_rms": LARGEST_MOVE}
    house = context(config, rates=(0.25, 0.5, 1.0), training=kind.training, **rules)
    members = {name: replace(member, rows=ROWS if config.vocab else "") for name, member in house.members.items()}
    house = replace(
        house,
        members=members,
        robust=RobustSettings.model_validate(kind.robust),
        privacy=PrivacySettings.model_validate(kind.privacy),
    )
    server = Server(house, build_method({"name": kind.method, **kind.settings}, house), init_weights(config, 0))
    for client in house.members:
        server.handle(ClientJoined(client))
    answers = {order.client: honest_answer(server, order) for order in server.orders.values()}
    if kind.company:
        for client in house.members:
            if client != CLIENT:
                assert _count(server.receive(client, answers[client]), Merged) == 1
    return Arena(title, server, answers[CLIENT])


def honest_answer(server: Server, order: Order) -> bytes:
    if order.trainer != StatisticsTrainer.name:
        return as_it_travels(answer(server.context.config, order), order).to_bytes()
    config, samples = server.context.config, server.context.members[order.client].samples
    update, _ = run_task(config, server.orders.task(order), shard(config, samples), {})  # what it tells has to add up
    return update.to_bytes()


def answer(config: ModelConfig, order: Order) -> Update:
    """As an honest device would send it, with made-up numbers of an honest size."""
    spec, contract = trained_spec(order), make_contract(config, order)
    rng = torch_rng(0, "honest", order.trainer)
    delta = {name: 0.01 * torch.randn(shape, generator=rng) for name, shape in contract.answer(spec).items()}
    extras = {name: _filled(form, rng) for name, form in contract.extra_tensors(spec).items()}
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
    server = place.fresh()
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


def mutated(title: str, seed: int) -> tuple[str, bytes]:
    """How it was made, and one mutated update, by its number."""
    return mutate(arena(title).honest, random.Random(f"{title} {seed}"))


def attempt(title: str, seed: int) -> tuple[str, Verdict]:
    how, data = mutated(title, seed)
    return how, play(arena(title), data)

"""A server played by hand: made-up answers to its tasks, and what it holds, to be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cos2p.messages import Order, Update
from cos2p.messages.envelope import Buffer
from cos2p.methods import build_method, make_contract
from cos2p.methods.base import RunContext
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.server.protocol import ClientJoined, Effect, Send
from cos2p.server.server import Server
from cos2p.server.update_reader import UpdateReader
from cos2p.tracking.event_kinds import Event
from cos2p.training.contract import as_it_travels
from tests.aggregation.brute import random_delta
from tests.submodel.strategies import random_weights
from tests.tiny import context, copy


class Played(Server):
    """A server to which an update may be given as it is: it is sent as its task asks."""

    def receive(self, sender: str, data: Buffer | Update) -> list[Effect]:
        if isinstance(data, Update):
            order = next((order for order in self.orders.values() if order.task == data.task), None)
            data = (data if order is None else as_it_travels(data, order)).to_bytes()
        return super().receive(sender, data)


def check_update(
    update: Update, order: Order, config: ModelConfig, max_rms: float = math.inf, max_samples: float = math.inf
) -> float:
    """What a server that gave the order says of the update: UpdateRefused, or its root mean square."""
    reader = UpdateReader(order, config, make_contract(config, order), max_samples, max_rms)
    return reader.read(reader.open(as_it_travels(update, order).to_bytes()))[1]


def server(
    given: RunContext | None = None, method: str = "cos2p", settings: Mapping[str, Any] | None = None, **schedule: Any
) -> Server:
    given = given or context(**{"mu": 0.5, "t_clk": 10.0, "redispatch": "at-once", **schedule})
    return Played(given, build_method({"name": method, **(settings or {})}, given), random_weights(given.config, 0))


def join_all(played: Server) -> list[Effect]:
    return [effect for name in played.context.names for effect in played.handle(ClientJoined(name))]


def trained_spec(order: Order) -> SubmodelSpec:
    """What the device keeps: the order's spec, or the first candidates that the quotas allow."""
    if order.quotas is None:
        return order.spec
    window = tuple(
        BlockKeep(keep.heads[: quota.heads], keep.units[: quota.units])
        for keep, quota in zip(order.spec.window, order.quotas, strict=True)
    )
    return replace(order.spec, window=window)


def answer(played: Server, client: str, **changes: Any) -> Update:
    """A good update to the client's open task, with fields changed."""
    order = next(order for order in played.orders.values() if order.client == client)
    spec = trained_spec(order)
    seed = len(client) * 1000 + order.attempt * 10 + order.version
    good = Update(client, order.task, order.version, spec, random_delta(played.context.config, spec, seed), 10)
    return replace(good, **changes)


def sent(effects: list[Effect]) -> list[Order]:
    return [effect.order for effect in effects if isinstance(effect, Send)]


def notes(effects: list[Effect], kind: str) -> list[Mapping[str, Any]]:
    """What is to be written down, of this kind."""
    return [effect.to_dict() for effect in effects if isinstance(effect, Event) and effect.kind == kind]


def snapshot(played: Server) -> tuple[dict[str, Any], dict[str, Weights]]:
    """The whole state, as it would be written."""
    values, groups = played.state()
    return json.loads(json.dumps(values)), {name: copy(group) for name, group in groups.items()}


def restored(played: Server, *, fresh: Server) -> Server:
    """Another server that goes on from what this one would write."""
    fresh.load_state(*snapshot(played))
    return fresh

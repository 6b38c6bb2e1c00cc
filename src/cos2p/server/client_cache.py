"""`ClientCaches`: what the server believes every client has kept of the frozen parts, each by the name of its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from torch import Tensor

from cos2p.messages import CachedParts, Order
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.slicing import frozen_slices, take
from cos2p.training.client_cache import chain, part_name
from cos2p.training.prefix import encode, part_of


def kept_parts(config: ModelConfig, spec: SubmodelSpec) -> list[str]:
    """The frozen parts of a task that are the same for every task: what a mask has cut is not."""
    below = ["embed."] if spec.has_prefix else []
    return below + [f"blocks.{block}." for block in (*range(spec.frozen), *spec.above(config))]


Kept = dict[str, str]


@dataclass
class _Client:
    held: Kept = field(default_factory=dict)
    """By part: the name of what it has."""
    open: Kept = field(default_factory=dict)
    """Likewise of the task it is at: its own once it answers."""
    features: tuple[int, str] = (0, "")
    """How many blocks its features went through, and the chain of parts."""


class ClientCaches:
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._clients: dict[str, _Client] = {}
        self._names: dict[tuple[str, str], tuple[list[ref[Tensor]], str]] = {}

    @property
    def used(self) -> bool:
        return bool(self._clients)

    def plan(self, order: Order, weights: Weights) -> CachedParts:
        """What the client has for this task and what it is to keep. The last plan stands until it answers."""
        client = self._clients.setdefault(order.client, _Client())
        client.open = {part: self._name(part, order, weights) for part in kept_parts(self.config, order.spec)}
        held = frozenset(part for part, name in client.open.items() if client.held.get(part) == name)
        cached = CachedParts(client.open, held)
        return CachedParts(cached.parts, cached.held, self._known_features(client, order.spec, cached))

    def _known_features(self, client: _Client, spec: SubmodelSpec, cached: CachedParts) -> int:
        depth, way = client.features
        if not 0 < depth <= spec.frozen:
            return 0
        return depth if chain(cached.through(depth)) == way else 0

    def answered(self, order: Order, features_kept: bool) -> None:
        """The client has done its task: it has all that came with it."""
        client = self._clients.get(order.client)
        if order.cached is None or client is None:
            return
        client.held |= client.open
        client.open = {}
        if features_kept and order.spec.frozen:
            client.features = order.spec.frozen, chain(order.cached.through(order.spec.frozen))

    def forget(self, client: str) -> None:
        """It does not have what was thought: it will be sent everything."""
        self._clients.pop(client, None)

    def in_use(self) -> tuple[set[str], set[str]]:
        """The names of all parts that some client has or is being sent, and the chains of all features."""
        clients = self._clients.values()
        parts = {name for client in clients for name in (*client.held.values(), *client.open.values())}
        return parts, {client.features[1] for client in clients}

    def _name(self, part: str, order: Order, weights: Weights) -> str:
        """By the bytes as they travel; worked out once for a version of the part."""
        cuts = {name: cut for name, cut in frozen_slices(self.config, order.spec).items() if name.startswith(part)}
        tensors = [weights[name] for name in cuts]
        key = part, f"{order.prefix_precision} {order.spec.rows}"
        known = self._names.get(key)
        if known is not None and _same(known[0], tensors):
            return known[1]
        name = part_name(part_of(encode(take(weights, cuts), order.prefix_precision), part))
        self._names[key] = [ref(tensor) for tensor in tensors], name
        return name

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Any]:
        return {"clients": {name: [c.held, c.open, list(c.features)] for name, c in self._clients.items()}}

    def load_state(self, values: Mapping[str, Any]) -> None:
        self._clients = {}
        for name, (held, open_, (depth, way)) in values["clients"].items():
            self._clients[name] = _Client(dict(held), dict(open_), (int(depth), str(way)))


def _same(known: list[ref[Tensor]], tensors: list[Tensor]) -> bool:
    return len(known) == len(tensors) and all(one() is other for one, other in zip(known, tensors, strict=True))

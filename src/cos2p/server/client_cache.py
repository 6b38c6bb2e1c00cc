"""`ClientCaches`: what the server believes every client has kept of the frozen parts, each by the name of its bytes.

It is a belief. A client that lacks a part says so, and is sent everything (`forget`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any
from weakref import ref

from torch import Tensor

from cos2p.messages import CachedParts, Order
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, layout
from cos2p.submodel.slicing import Slice, part_key, take
from cos2p.training.client_cache import chain, part_name
from cos2p.training.contract import FrozenParts, TaskContract
from cos2p.training.prefix import encode

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
        self._names: dict[tuple[object, ...], tuple[list[ref[Tensor]], str]] = {}

    def plan(self, contract: TaskContract, weights: Weights) -> CachedParts | None:
        """The parts that the client has for this task and those that it is to keep; None if nothing of the task
        outlives it.

        The last plan stands until the client answers.
        """
        order = contract.order
        client = self._clients.setdefault(order.client, _Client())
        client.open, parts, held = {}, {}, set()
        for part, tensors in _by_part(contract.frozen()).items():
            whole = {name: cut for sent, (name, cut) in tensors.items() if sent == name}
            if len(whole) == len(tensors):
                parts[part] = client.open[part] = self._name(part, whole, order, weights)
            elif order.prefix_precision != "int8" and part in client.held:  # rows in 8 bits have one scale each
                every: dict[str, Slice | None] = {name: None for name in layout(self.config) if name.startswith(part)}
                parts[part] = self._name(part, every, order, weights)
            if part in parts and client.held.get(part) == parts[part]:
                held.add(part)
            elif part not in client.open:  # some of it is frozen, and comes with this task alone
                parts.pop(part, None)
        if not parts:
            return None
        cached = CachedParts(parts, frozenset(held))
        known, keep = self._features(client, order, cached) if contract.trains else (0, 0)
        return replace(cached, features=known, keep=keep)

    def _features(self, client: _Client, order: Order, cached: CachedParts) -> tuple[int, int]:
        """Behind how many blocks the client has valid features, and behind how many it is to keep them.

        It keeps them behind what has not changed since its last task, or since the run began.
        """
        below = [f"blocks.{block}." for block in range(order.spec.frozen)]
        if not order.spec.frozen or not {"embed.", *below} <= cached.parts.keys():
            return 0, 0
        depth, way = client.features
        known = depth if 0 < depth <= order.spec.frozen and chain(cached.through(depth)) == way else 0
        lasting = order.spec.frozen
        if order.version:
            lasting = len(list(takewhile(cached.held.__contains__, below))) if "embed." in cached.held else 0
        return known, lasting if lasting > known else 0

    def answered(self, order: Order, *, stored: bool, features_kept: bool) -> None:
        """The client has done its task: it has all that came with it, if it says so."""
        client, cached = self._clients.get(order.client), order.cached
        if cached is None or client is None:
            return
        if not stored:
            self.forget(order.client)
            return
        client.held |= client.open
        client.open = {}
        if features_kept and cached.keep:
            client.features = cached.keep, chain(cached.through(cached.keep))

    def claim(self, client: str, parts: Mapping[str, str]) -> None:
        """It joins and has these in files of its own. Parts that it was sent since are newer."""
        known = self._clients.setdefault(client, _Client())
        known.held = {**parts, **known.held}

    def forget(self, client: str) -> None:
        """It does not have what was thought: it will be sent everything."""
        self._clients.pop(client, None)

    def chains(self) -> set[str]:
        """The chains of all features that some client has."""
        return {client.features[1] for client in self._clients.values()}

    def _name(self, part: str, cuts: Mapping[str, Slice | None], order: Order, weights: Weights) -> str:
        """By the bytes as they travel; worked out once for a version of the part."""
        tensors, cut = [weights[name] for name in cuts], any(cuts.values())
        key = part, order.prefix_precision, order.spec.rows if cut else None
        known = self._names.get(key)
        if known is not None and _same(known[0], tensors):
            return known[1]
        name = part_name(encode(take(weights, cuts), order.prefix_precision))
        if not (cut and part.startswith("blocks.")):  # tables are cut by rows, blocks by a method's own choice
            self._names[key] = [ref(tensor) for tensor in tensors], name
        return name

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Any]:
        return {"clients": {name: [c.held, c.open, list(c.features)] for name, c in self._clients.items()}}

    def load_state(self, values: Mapping[str, Any]) -> None:
        self._clients = {}
        for name, (held, open_, (depth, way)) in values["clients"].items():
            self._clients[name] = _Client(dict(held), dict(open_), (int(depth), str(way)))


def _by_part(frozen: FrozenParts) -> dict[str, FrozenParts]:
    parts: dict[str, dict[str, tuple[str, Slice | None]]] = {}
    for sent, entry in frozen.items():
        parts.setdefault(part_key(entry[0]), {})[sent] = entry
    return dict(parts)


def _same(known: list[ref[Tensor]], tensors: list[Tensor]) -> bool:
    return len(known) == len(tensors) and all(one() is other for one, other in zip(known, tensors, strict=True))

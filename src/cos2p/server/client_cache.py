"""`Shelves`: what the server believes every client has kept of the frozen parts, and how far each part has moved since.

How far is told by the length of a part's way: the steps it took, each as a share of its norm, added up. That is at
least how far it is from where it was, needs no old version, and is one number for each part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from torch import Tensor

from cos2p.messages import Order, Shelved
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.slicing import frozen_slices, take
from cos2p.training.prefix import encode, part_of
from cos2p.training.shelf import chain, part_name


def kept_parts(config: ModelConfig, spec: SubmodelSpec) -> list[str]:
    """The frozen parts of a task that are the same for every task: what a mask has cut is not."""
    below = ["embed."] if spec.has_prefix else []
    if spec.prefix is None:
        below += [f"blocks.{block}." for block in range(spec.frozen)]
    return below + [f"blocks.{block}." for block in spec.above(config)]


Kept = dict[str, tuple[str, float]]


@dataclass
class _Client:
    held: Kept = field(default_factory=dict)
    """By part: the name of what it has, and the part's way when that was cut."""
    open: Kept = field(default_factory=dict)
    """Likewise of the task it is at: its own once it answers."""
    features: tuple[int, str] = (0, "")
    """How many blocks its features went through, and the chain of parts."""


class Shelves:
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._clients: dict[str, _Client] = {}
        self._ways: dict[str, float] = {}
        self._names: dict[tuple[str, str], tuple[list[ref[Tensor]], str]] = {}

    @property
    def used(self) -> bool:
        return bool(self._clients)

    def moved(self, before: Weights, after: Weights) -> None:
        """A new version: every part that changed has gone a step."""
        if not self.used:
            return
        for part, names in _by_part(after).items():
            changed = [name for name in names if after[name] is not before[name]]
            if not changed:
                continue
            step = sum(float((after[name] - before[name]).square().sum()) for name in changed)
            norm = sum(float(after[name].square().sum()) for name in names)
            self._ways[part] = self._ways.get(part, 0.0) + math.sqrt(step / norm if norm else step)

    def plan(self, order: Order, weights: Weights, drift: float) -> Shelved:
        """What the client has for this task and what it is to keep. The last plan stands until it answers."""
        client = self._clients.setdefault(order.client, _Client())
        parts: Kept = {}
        held = set()
        for part in kept_parts(self.config, order.spec):
            way = self._ways.get(part, 0.0)
            known = client.held.get(part)
            if known is not None and way - known[1] <= drift:
                parts[part] = known
                held.add(part)
            else:
                parts[part] = self._name(part, order, weights), way
                held |= {part} if known is not None and known[0] == parts[part][0] else set()
        client.open = parts
        shelved = Shelved({part: name for part, (name, _) in parts.items()}, frozenset(held))
        return Shelved(shelved.parts, shelved.held, self._known_features(client, order.spec, shelved))

    def _known_features(self, client: _Client, spec: SubmodelSpec, shelved: Shelved) -> int:
        depth, way = client.features
        if not 0 < depth <= spec.frozen or spec.prefix is not None:
            return 0
        return depth if chain(shelved.through(depth)) == way else 0

    def answered(self, order: Order, features_kept: bool) -> None:
        """The client has done its task: it has all that came with it."""
        client = self._clients.get(order.client)
        if order.shelved is None or client is None:
            return
        client.held |= client.open
        client.open = {}
        if features_kept and order.spec.frozen and order.spec.prefix is None:
            client.features = order.spec.frozen, chain(order.shelved.through(order.spec.frozen))

    def forget(self, client: str) -> None:
        """It does not have what was thought: it will be sent everything."""
        self._clients.pop(client, None)

    def in_use(self) -> tuple[set[str], set[str]]:
        """The names of all parts that some client has or is being sent, and the chains of all features."""
        clients = self._clients.values()
        parts = {name for client in clients for name, _ in (*client.held.values(), *client.open.values())}
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
        return {
            "ways": self._ways,
            "clients": {name: [c.held, c.open, list(c.features)] for name, c in self._clients.items()},
        }

    def load_state(self, values: Mapping[str, Any]) -> None:
        self._ways = dict(values["ways"])
        self._clients = {}
        for name, (held, open_, (depth, way)) in values["clients"].items():
            self._clients[name] = _Client(_kept(held), _kept(open_), (int(depth), str(way)))


def _kept(values: Mapping[str, Any]) -> Kept:
    return {part: (str(name), float(way)) for part, (name, way) in values.items()}


def _same(known: list[ref[Tensor]], tensors: list[Tensor]) -> bool:
    return len(known) == len(tensors) and all(one() is other for one, other in zip(known, tensors, strict=True))


def _by_part(weights: Weights) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for name in weights:
        pieces = name.split(".")
        if pieces[0] == "embed":
            parts.setdefault("embed.", []).append(name)
        elif pieces[0] == "blocks":
            parts.setdefault(f"blocks.{pieces[1]}.", []).append(name)
    return parts

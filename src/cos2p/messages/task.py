"""`Order`, `Task`, `Update`: the messages, and how they are written and read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from torch import Tensor

from cos2p.messages.envelope import TASK_HEADER_BYTES, Envelope
from cos2p.messages.packing import Packet, pack, place, write_file
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockSize, SubmodelSpec

Precision = Literal["float32", "float16", "int8"]
"""How tensors travel."""


@dataclass(frozen=True)
class Wire:
    """How what trains travels (see `training.contract`): the weights to a device, and its update back."""

    down: Precision = "float32"
    up: Precision = "float32"


LabelSkew = Literal["ignored", "logit-adjustment"]
"""A device's answer to the unequal shares of its labels (`training.label_skew`)."""


@dataclass(frozen=True)
class CachedParts:
    """The parts that a device has or is to keep in its cache (see `training.client_cache`) for a task."""

    parts: Mapping[str, str]
    """The frozen parts that are kept, `embed.` and `blocks.3.`, by their names."""
    held: frozenset[str]
    """Those of them that do not come with the task: the device has them."""
    features: int = 0
    """The device has its samples' features behind so many blocks, through just these parts; 0: none that are valid."""
    keep: int = 0
    """The device is to keep the features behind so many blocks; 0: none."""

    def to_dict(self) -> dict[str, Any]:
        """Without what is empty: bytes count."""
        values = {"parts": dict(self.parts), "held": sorted(self.held), "features": self.features, "keep": self.keep}
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CachedParts:
        given = (values.get("features", 0), values.get("keep", 0))
        return cls(dict(values["parts"]), frozenset(values.get("held", ())), *map(int, given))

    def through(self, depth: int) -> tuple[str, ...]:
        """The names of the parts below so many blocks, in their order."""
        return tuple(self.parts[key] for key in ("embed.", *(f"blocks.{block}." for block in range(depth))))


@dataclass(frozen=True)
class Order:
    """Everything about a task but its tensors: small, JSON, kept by the server until the answer comes."""

    client: str
    task: str
    version: int
    """Version of the model the weights are cut from."""
    cycle: int
    attempt: int
    seed: int
    """Seed of the run; a device derives its own from it, its name and `attempt`."""
    trainer: str
    """Which local trainer does the work (see `methods.trainers`)."""
    settings: Mapping[str, Any]
    """The trainer's settings, as JSON."""
    lr: float
    """Learning rate of this task, after the run's schedule."""
    spec: SubmodelSpec
    """The submodel that is sent. With quotas its width is that of the candidates."""
    quotas: tuple[BlockSize, ...] | None = None
    """Per block of the window, how much the device may keep: train the masks first. None: train `spec` as it is."""
    prefix_precision: Precision = "float32"
    """How the frozen part travels."""
    label_skew: LabelSkew = "ignored"
    """Whether the device takes the shares of its own labels into account (see `training.label_skew`)."""
    cached: CachedParts | None = None
    """Frozen parts that outlive the task; None: all come with it and go with it."""
    wire: Wire = Wire()
    """How the trainable tensors travel."""
    rates: tuple[float, ...] = ()
    """Learning rates to try before the training, ascending (see `training.rate_trial`); empty: none, `lr` is set."""

    @property
    def known_features(self) -> int:
        """Through how many blocks the device has features of earlier tasks."""
        return 0 if self.cached is None else self.cached.features

    def to_dict(self) -> dict[str, Any]:
        values = {
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "settings": dict(self.settings),
            "spec": self.spec.to_dict(),
            "quotas": None if self.quotas is None else [[q.heads, q.units] for q in self.quotas],
        }
        # left out where they say nothing: bytes count
        cached, wire, rates = values.pop("cached"), values.pop("wire"), values.pop("rates")
        if cached is not None:
            values["cached"] = cached.to_dict()
        if wire != Wire():
            values["wire"] = asdict(wire)
        if rates:
            values["rates"] = list(rates)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Order:
        quotas, cached = values["quotas"], values.get("cached")
        return cls(
            **{
                **values,
                "spec": SubmodelSpec.from_dict(values["spec"]),
                "quotas": None if quotas is None else tuple(BlockSize(*q) for q in quotas),
                "cached": None if cached is None else CachedParts.from_dict(cached),
                "wire": Wire(**values.get("wire", {})),
                "rates": tuple(values.get("rates", ())),
            }
        )


@dataclass(frozen=True, eq=False)
class Task:
    """An order with its tensors: train this submodel on your data."""

    order: Order
    weights: Weights
    """The trainable part, compact, as packed by `training.contract`."""
    prefix: Weights = field(default_factory=dict)
    """The frozen part, as encoded by `training.prefix.encode`."""

    def to_bytes(self) -> bytes:
        return bytes(self.packet())

    def packet(self) -> Packet:
        return pack(self.order.to_dict(), w=self.weights, p=self.prefix)

    @classmethod
    def from_bytes(cls, data: bytes) -> Task:
        return cls._of(Envelope.open(data, TASK_HEADER_BYTES))

    @classmethod
    def unpack(cls, head: bytes, body: bytes) -> Task:
        """From a packet's head and bodies, sent by who is trusted."""
        return cls._of(Envelope.of(head, body))

    @classmethod
    def _of(cls, envelope: Envelope) -> Task:
        envelope.check_parts("w", "p")
        return cls(Order.from_dict(envelope.meta), weights=envelope.part("w"), prefix=envelope.part("p"))


NEEDED_REPORT = ("prefix_recomputed", "uncached", "trial_")
"""Beginnings of figures in a report that the server acts on: whether features were recomputed and parts could be
kept, and the losses of the rates that `training.lr = "auto"` asks a device to try."""


@dataclass(frozen=True, eq=False)
class Update:
    """The change that a device learned: only what it trained, as the difference to what it received.

    A server, which knows the task, reads it with `server.update_reader` and compares first.
    """

    client: str
    task: str
    version: int
    spec: SubmodelSpec
    """The trained submodel: the task's spec, narrowed to the final mask."""
    delta: Weights
    """w_start − w_end of every held trainable tensor, compact; on its way as `training.contract` packs it."""
    samples: int
    report: Mapping[str, Any] = field(default_factory=dict)
    """Losses, the personal submodel's scores on the local test part, seconds: numbers for the log."""
    extras: Weights = field(default_factory=dict)

    def without_figures(self) -> Update:
        """The same with nothing in its report but what the server needs."""
        kept = {name: value for name, value in self.report.items() if name.startswith(NEEDED_REPORT)}
        return replace(self, report=kept)

    def to_bytes(self) -> bytes:
        return bytes(self.packet())

    def packet(self) -> Packet:
        return pack(self._meta(), d=self.delta, x=self.extras)

    def write(self, path: Path) -> None:
        """The same into a file, straight from the tensors' memory: bytes would be the update once or twice more."""
        _write(path, self._meta(), d=pieces_of(self.delta), x=pieces_of(self.extras))

    def _meta(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "task": self.task,
            "version": self.version,
            "spec": self.spec.to_dict(),
            "samples": self.samples,
            "report": dict(self.report),
        }


def tensor_bytes(*parts: Mapping[str, Tensor]) -> int:
    """Bytes of the values, without headers."""
    return sum(tensor.nbytes for part in parts for tensor in part.values())


def load_tensors(data: bytes) -> Weights:
    """Tensors by name, in memory of their own.

    safetensors gives them in another order every time, and at any address: sums over them, and matrix kernels, may
    round differently, and a result would depend on which process got the bytes.
    """
    return {name: tensor.clone() for name, tensor in sorted(safetensors.torch.load(data).items())}


@dataclass(frozen=True, eq=False)
class Piece:
    """A tensor of a message that is made only when it is written."""

    like: Tensor
    """Its shape and type, without values."""
    make: Callable[[], Tensor]


def pieces_of(tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
    """Pieces of tensors that are there already."""
    return {name: Piece(tensor, partial(tensors.__getitem__, name)) for name, tensor in tensors.items()}


def write_task(path: Path, order: Order, weights: Mapping[str, Piece], prefix: Mapping[str, Piece]) -> None:
    """The bytes of `Task.to_bytes`, into a file, tensor by tensor: no two of them are in memory at a time."""
    _write(path, order.to_dict(), w=weights, p=prefix)


def _write(path: Path, meta: Mapping[str, Any], **parts: Mapping[str, Piece]) -> None:
    pieces = [(f"{label}/{name}", piece) for label, part in parts.items() for name, piece in part.items()]
    pieces.sort(key=lambda entry: place(entry[0], entry[1].like.dtype))
    forms = [(name, piece.like.dtype, piece.like.shape) for name, piece in pieces]
    write_file(path, {"cos2p": json.dumps(meta)}, forms, (piece.make() for _, piece in pieces))

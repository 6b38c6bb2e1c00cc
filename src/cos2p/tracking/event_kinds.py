"""Every kind of event, as a value: what the server returns, `events.jsonl` holds, listeners and readers get.

The reference of the log is generated from here; tests hold runs to it. `t` is seconds since the run began, virtual in a
simulation, the wall's on a real fleet; the server has no clock, so who logs an event says when it was (`Event.at`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, cast

from typing_extensions import Self, dataclass_transform

ByClass = Annotated[
    dict[str, list[int]],
    "of every class of the test samples: `samples`, how many were named `right`, how often `named`",
]
Scores = Annotated[dict[str, dict[str, float]], "by exit (its depth): `top1`, `top5`, `f1`, between 0 and 1"]
Client = Annotated[str, "name of the device"]
Task = Annotated[str, "name of the task, `CLIENT#NUMBER`"]
Reason = Annotated[str, "why, in words"]
Version = Annotated[int, "number of the model: aggregations so far"]
Window = Annotated[
    list[int],
    "first block that trains, and the one after the last; equal: none does, the device reports sums of features",
]

NOBODY_LEFT = "no device is left that could answer"
"""Why a run ended before its rounds or updates were done, if that is why."""

BUDGET_SPENT = "the privacy budget is spent"
"""Why a device leaves, and why a run ended, if that is why."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened. A field that is None by default is left out of the log when it is None."""

    kind: ClassVar[str]
    """The name that it has in the file."""
    names: ClassVar[tuple[str, ...]]
    """Names of its fields, as are the next two."""
    required: ClassVar[tuple[str, ...]]
    optional: ClassVar[frozenset[str]]

    t: Annotated[float, "seconds since the run began"] = 0.0

    def at(self, t: float) -> Self:
        """The same, at this second."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, t=t)
        return copy

    def to_dict(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.names}
        return {"kind": self.kind, **{n: v for n, v in found.items() if v is not None or n not in self.optional}}


KINDS: dict[str, type[Event]] = {}
"""Events of the file by the name that `kind` has there."""

_E = TypeVar("_E", bound=type[Event])


@dataclass_transform(kw_only_default=True, frozen_default=True)
def event(kind: _E) -> _E:
    """A kind that listeners get."""
    kind = cast("_E", dataclass(frozen=True, kw_only=True)(kind))
    kind.kind = kind.__name__.lower()
    kind.names = tuple(field.name for field in fields(kind))
    kind.required = tuple(field.name for field in fields(kind) if field.default is MISSING)
    kind.optional = frozenset(field.name for field in fields(kind) if field.default is None)
    return kind


@dataclass_transform(kw_only_default=True, frozen_default=True)
def logged(kind: _E) -> _E:
    """A kind that also stands in the file."""
    KINDS[event(kind).kind] = kind
    return kind


@dataclass(frozen=True, kw_only=True)
class DeviceEvent(Event):
    """Something that happened to one device."""

    client: Client


@logged
class Started(Event):
    """The run begins."""

    recipe: Annotated[str, "name of the recipe"]
    method: Annotated[str, "name of the method"]
    title: Annotated[str, "the method as it stands in tables"] = ""
    seed: Annotated[int, "of the run"]
    rounds: Annotated[int | None, "aggregations until the end, if the recipe says so"]
    updates: Annotated[int | None, "client updates until the end, if the recipe says so"]
    model: Annotated[dict[str, Any], "shape of the model"]
    data: Annotated[
        dict[str, Any] | None,
        "samples of `train`, `validation`, `test`; number of `classes`, and what needs no training: `chance`, "
        "`majority` (the most frequent class of the test samples), `client_majority` (of each device's own)",
    ] = None
    full_memory: Annotated[int | None, "bytes to train the whole model with the fleet's smallest batch"] = None
    notes: Annotated[
        list[str] | None, "what a user should know of data and model, such as a pooling that was chosen"
    ] = None
    devices: Annotated[
        dict[str, dict[str, Any]],
        "by name: `rate`, `samples`, `batch`, `memory` (bytes), `flops`; in words its `plan`, and `why`",
    ]


@logged
class Joined(DeviceEvent):
    """A device is here and ready for work: at the start, late, or back."""

    rate: Annotated[float | None, "R_n; real fleets"] = None
    samples: Annotated[int | None, "training samples it has; real fleets"] = None
    memory: Annotated[int | None, "bytes for training; real fleets"] = None


@logged
class Dispatched(DeviceEvent):
    """A device was given a task."""

    task: Task
    version: Version
    cycle: Annotated[int, "updates accepted from this device so far; it moves the window"]
    window: Window
    exits: Annotated[list[int], "depths at which the submodel has an exit"]
    masks: Annotated[bool, "whether the device trains masks first"]
    lr: Annotated[float, "learning rate of the task"]
    bytes: Annotated[int, "size of the task as sent"]
    peak_memory: Annotated[int | None, "predicted bytes of training it"] = None
    seconds: Annotated[
        dict[str, float] | None, "simulation: how long `download`, `prefix`, `masks`, `training`, `upload` will take"
    ] = None


@logged
class Arrived(DeviceEvent):
    """An update came in. The next event says whether it is let in: `merged`, `refused` or `dropped`."""

    task: Task
    bytes: Annotated[int, "size of the update as sent"]
    measured: Annotated[dict[str, Any] | None, "real fleets: seconds and peak memory of the task on the device"] = None


@logged
class Merged(DeviceEvent):
    """An update was added to the running sums of this round."""

    task: Task
    version: Version
    staleness: Annotated[int, "τ: aggregations between the task and now"]
    window: Window
    kept: Annotated[list[Any] | None, "per block of the window: the heads and the units that were trained"] = None
    size: Annotated[float, "root mean square of the update"]
    weight: Annotated[
        dict[str, float] | None,
        "γ: mean weight of its `heads`, its `units`, its `shared` tensors, not normalised",
    ] = None
    report: Annotated[
        dict[str, Any], "what the device says: `loss`, `mask_loss`, `local_top1`, `local_samples` and the method's own"
    ]


@logged
class Aggregated(Event):
    """A round closed: there is a new version of the model."""

    round: Annotated[int, "number of the round, from 0"]
    version: Version
    clients: Annotated[list[str], "who reported, in the order of their first update"]
    updates: Annotated[int, "updates merged in this round"]
    n_star: Annotated[int, "N*: fewest updates that held any one head or unit"]
    heads: Annotated[list[list[int]], "per block and head: how many updates held it"]
    units: Annotated[list[list[float]], "per block: how many updates held a unit, at least and on average"]


@logged
class Rated(Event):
    """The learning rate of the run is found (`training.lr = "auto"`)."""

    lr: Annotated[float, "the rate at the start of the run, before its schedule and the method's factor"]
    tried: Annotated[list[float], "the rates that devices tried"]
    losses: Annotated[
        list[float], "of each: the loss on held-out samples over the loss before, the median of the devices"
    ]
    devices: Annotated[int, "how many could try; 0: none, and a low rate is taken"]


@logged
class Spent(Event):
    """The run's cost in privacy so far, after each round of a private run."""

    epsilon: Annotated[float | None, "ε of the device that took part most; null: infinite, there is no noise"]
    delta: Annotated[float, "δ"]
    budget: Annotated[float | None, "ε that no device goes beyond; null: none"]
    noise: Annotated[str, "`central` or `local`"]
    clip: Annotated[float, "C: largest norm of an update"]
    multiplier: Annotated[float, "σ: noise in units of C"]
    devices: Annotated[dict[str, dict[str, float | None]], "by name: `updates` so far, and what they cost, `epsilon`"]


@logged
class Evaluated(Event):
    """Scores of the server's model. They come a little later than their version."""

    version: Version
    validation: Scores | None = None
    test: Scores | None = None
    classes: ByClass | None = None


@logged
class Traffic(DeviceEvent):
    """Bytes that a device's link carried in the whole run, just before its end (real fleets)."""

    tensors_down: Annotated[int, "bytes of tensors to the device"]
    tensors_up: Annotated[int, "bytes of tensors from it"]
    wire_down: Annotated[int, "bytes of all messages to the device"]
    wire_up: Annotated[int, "bytes of all messages from it"]


@logged
class Finished(Event):
    """The run is over. Scores are on the whole test set."""

    reason: Reason
    version: Version
    validation: Scores | None = None
    test: Scores | None = None
    classes: ByClass | None = None


@logged
class Refused(DeviceEvent):
    """An update was not let in; the model is unchanged."""

    task: Annotated[str, "name of the task; empty if the device had none"]
    reason: Reason


@logged
class Dropped(DeviceEvent):
    """An update was let in and thrown away, because training was over by then, or its task was closed."""

    task: Task
    reason: Reason


@logged
class Failed(DeviceEvent):
    """A task came to nothing on the device."""

    task: Task
    reason: Reason
    measured: Annotated[dict[str, Any] | None, "real fleets: what was measured until then"] = None


@logged
class Excluded(DeviceEvent):
    """A device failed too often in a row and gets no more tasks until it joins anew. It gets no more in this run if it
    sent a message that no device may send or, where the recipe says so, if its updates kept pointing elsewhere."""

    task: Annotated[str, "empty"]
    reason: Reason


@logged
class Doubted(DeviceEvent):
    """An update did not count in full: it points elsewhere than those of the others (`robust.suspicion`)."""

    task: Task
    agreement: Annotated[float, "about the mean cosine between its updates and those of who agree, −1 to 1"]
    trust: Annotated[float, "how much of the update counted, 0 to 1"]
    reason: Reason


@logged
class Lowered(DeviceEvent):
    """A device ran out of memory; its next task is smaller (real fleets, simulated GPUs)."""

    was: Annotated[float, "its rate until now"]
    rate: Annotated[float, "its rate from now on"]
    memory: Annotated[int, "bytes it has for training"]


@logged
class Unfit(DeviceEvent):
    """A device cannot take part: its data are missing or do not fit the model (real fleets)."""

    reason: Reason


@logged
class Lost(DeviceEvent):
    """A device restarted in the middle of a task (simulation: `drop_rate`)."""

    task: Task


@logged
class Left(DeviceEvent):
    """The server takes a device for gone: it said goodbye, or was silent for `fleet.heartbeat_seconds`."""

    reason: Reason | None = None
    until: Annotated[float | None, "simulation: when its next session begins, if it has sessions"] = None


@logged
class Unevaluated(Event):
    """A version has no scores: the evaluating process was killed (real fleets)."""

    version: Version
    reason: Reason


@logged
class Stopped(Event):
    """The run ended with an error (real fleets)."""

    reason: Reason


# ---------------------------------------------------------------- for listeners alone


@event
class Resumed(Started):
    """A run goes on from its checkpoint. Its log has what happened until then; those events do not come again."""

    log: Annotated[Path, "its log, cut back to the checkpoint"]
    version: Version
    merged: Annotated[int, "updates merged so far"]


@event
class Waiting(Event):
    """Nothing can begin yet (real fleets)."""

    reason: Reason


# ---------------------------------------------------------------- in the file


def event_of(values: Mapping[str, Any]) -> Event | None:
    """The event of a line of the file; None if this version knows no such kind. ValueError if it is damaged."""
    kind = KINDS.get(values.get("kind", ""))
    if kind is None:
        return None
    missing = [name for name in kind.required if name not in values]
    if missing:
        raise ValueError(f"an event {kind.kind!r} without {missing[0]!r}")
    return kind(**{name: values[name] for name in kind.names if name in values})

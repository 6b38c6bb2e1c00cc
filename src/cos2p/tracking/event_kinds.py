"""Every kind of event in `events.jsonl`, and what it says. The reference is generated from here; tests hold runs to it.

All have `kind` and `t`: seconds since the run began, virtual in a simulation, the wall's on a real fleet.
"""

from __future__ import annotations

from typing import (
    Annotated,
    Any,
    NotRequired,  # pydantic, whose dependency it is, asks for this one
)

from typing_extensions import TypedDict

Scores = Annotated[dict[str, dict[str, float]], "by exit (its depth): `top1`, `top5`, `f1`, between 0 and 1"]
Client = Annotated[str, "name of the device"]
Task = Annotated[str, "name of the task, `CLIENT#NUMBER`"]
Reason = Annotated[str, "why, in words"]
Version = Annotated[int, "number of the model: aggregations so far"]
Window = Annotated[list[int], "first block that trains, and the one after the last"]


class _Event(TypedDict):
    t: Annotated[float, "seconds since the run began"]


class Started(_Event):
    """The run begins."""

    recipe: Annotated[str, "name of the recipe"]
    method: Annotated[str, "name of the method"]
    title: Annotated[str, "the method as it stands in tables"]
    seed: Annotated[int, "of the run"]
    rounds: Annotated[int | None, "aggregations until the end, if the recipe says so"]
    updates: Annotated[int | None, "client updates until the end, if the recipe says so"]
    model: Annotated[dict[str, Any], "shape of the model"]
    devices: Annotated[dict[str, dict[str, Any]], "by name: `rate`, `samples`, `batch`, `memory` (bytes), `flops`"]


class Joined(_Event):
    """A device is here and ready for work: at the start, late, or back."""

    client: Client
    rate: NotRequired[Annotated[float, "R_n; real fleets"]]
    samples: NotRequired[Annotated[int, "training samples it has; real fleets"]]
    memory: NotRequired[Annotated[int, "bytes for training; real fleets"]]


class Dispatched(_Event):
    """A device was given a task."""

    client: Client
    task: Task
    version: Version
    cycle: Annotated[int, "updates accepted from this device so far; it moves the window"]
    window: Window
    exits: Annotated[list[int], "depths at which the submodel has an exit"]
    masks: Annotated[bool, "whether the device trains masks first"]
    lr: Annotated[float, "learning rate of the task"]
    bytes: Annotated[int, "size of the task as sent"]
    peak_memory: NotRequired[Annotated[int, "predicted bytes of the largest task given to this device so far"]]
    seconds: NotRequired[
        Annotated[
            dict[str, float], "simulation: how long `download`, `prefix`, `masks`, `training`, `upload` will take"
        ]
    ]


class Arrived(_Event):
    """An update came in. Whether it is let in is told next: `merged`, `refused` or `dropped`."""

    client: Client
    task: Task
    bytes: Annotated[int, "size of the update as sent"]
    measured: NotRequired[Annotated[dict[str, Any], "real fleets: seconds and peak memory of the task on the device"]]


class Merged(_Event):
    """An update was added to the running sums of this round."""

    client: Client
    task: Task
    version: Version
    staleness: Annotated[int, "τ: aggregations between the task and now"]
    window: Window
    kept: NotRequired[Annotated[list[Any], "per block of the window: the heads and the units that were trained"]]
    size: Annotated[float, "root mean square of the update"]
    gamma: Annotated[dict[str, float], "γ: smallest, mean and largest weight of its segments"]
    report: Annotated[
        dict[str, Any], "what the device says: `loss`, `mask_loss`, `local_top1`, `local_samples` and the method's own"
    ]


class Aggregated(_Event):
    """A round closed: there is a new version of the model."""

    round: Annotated[int, "number of the round, from 0"]
    version: Version
    clients: Annotated[list[str], "who reported, in the order of their first update"]
    updates: Annotated[int, "updates merged in this round"]
    n_star: Annotated[int, "N*: fewest updates that held any one head or unit"]
    heads: Annotated[list[list[int]], "per block and head: how many updates held it"]
    units: Annotated[list[list[float]], "per block: how many updates held a unit, at least and on average"]


class Evaluated(_Event):
    """Scores of the server's model. They are told a little later than the version they are of."""

    version: Version
    validation: NotRequired[Scores]
    test: NotRequired[Scores]


class Unevaluated(_Event):
    """A version has no scores: the evaluating process was killed (real fleets)."""

    version: Version
    reason: Reason


class Traffic(_Event):
    """What a device's link carried in the whole run, just before its end (real fleets)."""

    client: Client
    tensors_down: Annotated[int, "bytes of tensors to the device"]
    tensors_up: Annotated[int, "bytes of tensors from it"]
    wire_down: Annotated[int, "bytes of all messages to the device"]
    wire_up: Annotated[int, "bytes of all messages from it"]


class Finished(_Event):
    """The run is over. Scores are on the whole test set."""

    reason: Reason
    version: Version
    validation: NotRequired[Scores]
    test: NotRequired[Scores]


class Stopped(_Event):
    """The run ended with an error (real fleets)."""

    reason: Reason


class Refused(_Event):
    """An update was not let in; the model is unchanged."""

    client: Client
    task: Annotated[str, "name of the task; empty if the device had none"]
    reason: Reason


class Dropped(_Event):
    """An update was let in and thrown away, because it was too old (`schedule.max_staleness`)."""

    client: Client
    task: Task
    reason: Reason


class Failed(_Event):
    """A task came to nothing on the device."""

    client: Client
    task: Task
    reason: Reason
    measured: NotRequired[Annotated[dict[str, Any], "real fleets: what was measured until then"]]


class Benched(_Event):
    """A device failed too often in a row and gets no more tasks until it joins anew."""

    client: Client
    task: Annotated[str, "empty"]
    reason: Reason


class Lowered(_Event):
    """A device ran out of memory; its next task is smaller (real fleets)."""

    client: Client
    was: Annotated[float, "its rate until now"]
    rate: Annotated[float, "its rate from now on"]
    memory: Annotated[int, "bytes it has for training"]


class Unfit(_Event):
    """A device cannot take part: its data are missing or do not fit the model (real fleets)."""

    client: Client
    reason: Reason


class Lost(_Event):
    """A device restarted in the middle of a task (simulation: `drop_rate`)."""

    client: Client
    task: Task


class Died(_Event):
    """A device fell silent (simulation: `dies_at`). The server does not know yet."""

    client: Client


class Left(_Event):
    """The server takes a device for gone: it said goodbye, or was silent for `fleet.heartbeat_seconds`."""

    client: Client
    reason: NotRequired[Reason]


KINDS: dict[str, type[Any]] = {
    kind.__name__.lower(): kind
    for kind in (
        Started,
        Joined,
        Dispatched,
        Arrived,
        Merged,
        Aggregated,
        Evaluated,
        Traffic,
        Finished,
        Refused,
        Dropped,
        Failed,
        Benched,
        Lowered,
        Unfit,
        Lost,
        Died,
        Left,
        Unevaluated,
        Stopped,
    )
}
"""By the name that `kind` has in the file."""

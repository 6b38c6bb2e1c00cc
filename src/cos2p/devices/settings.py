"""The `[fleet]` table of a recipe: groups of equal devices, and what the server expects of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cos2p.accelerator import Accelerator
from cos2p.devices.device import LINKS, Device, device, network_figures
from cos2p.settings import Settings

_TIME = r"([01]?\d|2[0-3]):[0-5]\d"
Hours = Annotated[str, Field(pattern=rf"^{_TIME}-({_TIME}|24:00)$")]


Spread = dict[Literal["flops", "memory", "network"], Annotated[float, Field(ge=0, le=2)]]


class DeviceGroup(Settings):
    """`count` devices of one kind."""

    preset: str = Field(default="laptop", description="Named device; any of its figures can be changed below.")
    count: int = Field(default=1, ge=1, le=1_000_000, description="How many of them.")
    name: str = Field(default="", description="Name of the devices (numbered); empty: the preset's.")
    rate: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] = Field(
        default="auto",
        description="R_n: share of the model a device trains. `auto`: it trains what learns most in its memory "
        "(`cos2p plan`).",
    )
    batch: int = Field(default=32, ge=1, description="Samples per step on this kind of device.")
    share: float | None = Field(default=None, gt=0, description="Share of the data, relative; empty: the batch.")
    accelerator: Accelerator = Field(
        default="cpu",
        description="What it trains with in a simulation: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, the GPU if "
        "there is one. A real device says so itself: `cos2p fleet join --accelerator`.",
    )
    base: bool = Field(
        default=False,
        description="They have the checkpoint of `model.pretrained` in their own files: it is not sent. A real device "
        "says so itself: `cos2p fleet join --base`.",
    )
    flops: float | None = Field(default=None, gt=0, description="Training FLOP/s (peak × utilisation).")
    memory: str | int | None = Field(default=None, description="Bytes for training: 600MB, 2GiB.")
    down: str | float | None = Field(default=None, description="Download, bytes per second or 100Mbit/s.")
    up: str | float | None = Field(default=None, description="Upload, bytes per second or 50Mbit/s.")
    link: Literal["", "3g", "edge", "flaky"] = Field(
        default="",
        description="What connects it, in place of the preset's network: `down` and `up`, unless given, and the delay.",
    )
    drop_rate: float | None = Field(default=None, ge=0, le=1, description="Chance that a task is lost, 0 to 0.2.")

    spread: Spread = Field(
        default={},
        description="How unequal they are: `flops`, `memory`, `network` (downloads and, drawn apart, uploads), each "
        "the group's times a log-normal factor with median 1. The deviation of its logarithm; 0.5: two of three have "
        "0.6 to 1.6 times the group's.",
    )
    trace: str = Field(
        default="",
        description="CSV of measured devices, a row each (flops, memory, down, up, latency, jitter, drop_rate, "
        "downtime; any of them), below $COS2P_DATA; devices are drawn from it by the seed.",
    )
    online: tuple[Hours, ...] | str = Field(
        default=(),
        description="When the devices are there: hours of the day, such as `22:00-07:00`, of a run that begins at "
        "midnight; or a CSV: device, from, to (virtual seconds). Empty: always.",
    )
    online_spread: float = Field(
        default=0.0, ge=0, le=12, description="Hours (deviation) by which each device's day is earlier or later."
    )

    def changes(self) -> dict[str, Any]:
        """The figures that are given here and take the place of the preset's."""
        own = {"preset", "count", "name", "rate", "batch", "share", "accelerator", "base", "link"}
        own |= {"spread", "trace", "online", "online_spread"}
        given = {key: value for key, value in self.model_dump(exclude=own).items() if value is not None}
        return network_figures(LINKS[self.link]) | given if self.link else given

    def device(self, name: str) -> Device:
        """As the group says, without what is drawn for each device (`cos2p.devices.draw`)."""
        return device(self.preset, name=name, **self.changes())


class FleetSettings(Settings):
    devices: tuple[DeviceGroup, ...] = Field(min_length=1, description="Groups of equal devices.")
    heartbeat_seconds: float = Field(
        default=60.0, ge=0, description="Seconds of silence after which the server takes a device for gone."
    )
    reports: Literal["minimal", "full"] = Field(
        default="minimal",
        description="What a real fleet's devices report next to their updates: nothing more than the run needs; or "
        "losses and the scores of their own submodels too, unless their owners say no. A simulation has them all.",
    )
    enforce_memory: bool = Field(
        default=True,
        description="Refuse a task that does not fit a device's memory. false: train over it; figures say so.",
    )

"""The `[fleet]` table of a recipe: groups of equal devices, and what the server expects of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cos2p.devices.device import Device, device
from cos2p.settings import Settings


class DeviceGroup(Settings):
    """`count` devices of one kind."""

    preset: str = Field(default="laptop", description="Named device; any of its figures can be changed below.")
    count: int = Field(default=1, ge=1, description="How many of them.")
    name: str = Field(default="", description="Name of the devices (numbered); empty: the preset's.")
    rate: float | None = Field(
        default=None, gt=0, le=1, description="R_n: share of the model a device trains. Empty: chosen by its memory."
    )
    batch: int = Field(default=32, ge=1, description="Samples per step on this kind of device.")
    share: float | None = Field(default=None, gt=0, description="Share of the data, relative; empty: the batch.")
    flops: float | None = Field(default=None, gt=0, description="Training FLOP/s (peak × utilisation).")
    memory: str | int | None = Field(default=None, description="Bytes for training: 600MB, 2GiB.")
    down: str | float | None = Field(default=None, description="Download, bytes per second or 100Mbit/s.")
    up: str | float | None = Field(default=None, description="Upload, bytes per second or 50Mbit/s.")
    jitter: float | None = Field(default=None, ge=0, le=2, description="Spread of durations, 0 to 0.3.")
    latency: float | None = Field(default=None, ge=0, description="Seconds added to every transfer.")
    joins_at: float | None = Field(default=None, ge=0, description="Virtual second at which it joins.")
    leaves_at: float | None = Field(default=None, ge=0, description="Virtual second at which it leaves for good.")
    dies_at: float | None = Field(default=None, ge=0, description="Virtual second at which it falls silent.")
    drop_rate: float | None = Field(default=None, ge=0, le=1, description="Chance that a task is lost, 0 to 0.2.")
    downtime: float | None = Field(default=None, ge=0, description="Seconds until it is back after a lost task.")

    def device(self, name: str) -> Device:
        own = {"preset", "count", "name", "rate", "batch", "share"}
        changes = {key: value for key, value in self.model_dump(exclude=own).items() if value is not None}
        return device(self.preset, name=name, **changes)


class FleetSettings(Settings):
    devices: tuple[DeviceGroup, ...] = Field(min_length=1, description="Groups of equal devices.")
    target_seconds: float = Field(
        default=0.0, ge=0, description="Wanted seconds per task where no rate is given; 0: only memory decides."
    )
    heartbeat_seconds: float = Field(
        default=60.0, ge=0, description="Seconds of silence after which the server takes a device for gone."
    )
    reports: Literal["minimal", "full"] = Field(
        default="minimal",
        description="What a real fleet's devices tell beside their updates: nothing more than the run needs; or losses "
        "and the scores of their own submodels too, unless their owners say no. A simulation has them all.",
    )
    enforce_memory: bool = Field(default=True, description="Refuse a submodel that does not fit a device's memory.")

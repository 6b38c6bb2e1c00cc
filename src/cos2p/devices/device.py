"""Devices: how fast, how large, how well connected, and when they are there. All times are virtual seconds.

The presets are estimates from public figures, good for comparing fleets; `cos2p profile` measures a real device.

FLOP/s. Those of the Jetson boards are their GPU's, those of a Raspberry Pi and of the laptop their processor's; the
`source` says which. A real fleet trains on the processor by default, where a Jetson is far slower than its
preset: to simulate that, give `flops` as `cos2p profile` measures it on the board. Peak single precision (one fused
multiply-add = 2 FLOP per lane and cycle) times a utilisation of 30 %.
Published utilisations of transformer training are 21 % (GPT-3), 30 % (MT-NLG), 33 % (Gopher) and 46 % (PaLM) of
peak (Chowdhery et al. 2022, PaLM, table 3), with far larger matrices than a small device ever sees.

Memory. Jetson boards share one memory between system and GPU; an idle one shows 2.8 GB in use (tegrastats), so
3 GB are taken off. A Raspberry Pi keeps 1 GB for its system, a laptop half of its memory for its owner.

Network. A wired gigabit port carries 941 Mbit/s of TCP (iperf3 on a Raspberry Pi 4 and others). For Wi-Fi we
assume 100 Mbit/s down and 50 up for a Pi with its one small antenna, 300 and 150 for a laptop: an assumption,
not a measurement. Latency: 1 ms on a wire, 5 ms by radio. Jitter: 5 % where cooling is good, 10 to 15 % where
it is not: an assumption too.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cos2p.errors import ConfigError
from cos2p.units import parse_bytes, parse_rate

UTILISATION = 0.30

Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Rate = Annotated[float, BeforeValidator(parse_rate), Field(gt=0.0, allow_inf_nan=False)]


class Device(BaseModel):
    """One device of the fleet.

    >>> pi = device("raspberry-pi-4", name="kitchen", memory="2GB", sessions=((60, 600),))
    >>> pi.memory, pi.present_at(59.0), pi.present_at(60.0)
    (2000000000, False, True)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=64, pattern=r"^[\w][\w .#@:-]*$", description="Unique in the fleet.")
    flops: float = Field(
        gt=0.0,
        allow_inf_nan=False,
        description="FLOP per second in training: peak times utilisation, 1e10 (Pi) to 2e12 (AGX Orin).",
    )
    memory: Annotated[int, BeforeValidator(parse_bytes)] = Field(
        gt=0, description="Bytes available to training, such as 600MB or 2GiB; what the system keeps is taken off."
    )
    down: Rate = Field(description="Download, bytes per second; 12.5MB/s or 100Mbit/s.")
    up: Rate = Field(description="Upload, bytes per second; often a half to a tenth of `down`.")
    jitter: float = Field(
        default=0.0,
        ge=0.0,
        le=2.0,
        description="Spread of durations: sigma of a log-normal factor with median 1. 0: exact; 0.1: about 10 %.",
    )
    latency: Seconds = Field(default=0.0, description="Seconds added to every transfer, 0.001 to 0.1.")

    drop_rate: float = Field(
        default=0.0, ge=0.0, le=1.0, description="Chance that a task is lost because the device restarts, 0 to 0.2."
    )
    downtime: Seconds = Field(default=60.0, description="Seconds from a lost task until the device is back, 10 to 600.")
    sessions: tuple[tuple[Seconds, Seconds], ...] = Field(
        default=(), description="When it is there, from and to in virtual seconds, ascending; none: always."
    )
    session_period: Seconds | None = Field(default=None, description="Seconds after which the sessions begin again.")
    source: str = Field(default="", description="Where the figures come from.")

    def present_at(self, time: float) -> bool:
        session = self.session_at(time)
        return session is not None and session[0] <= time

    def session_at(self, time: float) -> tuple[float, float] | None:
        """(from, to) of the session at this second, or of the next one; None if there is none any more.

        >>> night = device("raspberry-pi-4", sessions=((79_200, 111_600),), session_period=86_400)
        >>> night.session_at(3600.0), night.session_at(40_000.0)
        ((-7200.0, 25200.0), (79200.0, 111600.0))
        """
        if not self.sessions:
            return 0.0, math.inf
        turn = 0.0 if self.session_period is None else self.session_period
        now = math.floor(time / turn) if turn else 0
        for cycle in (now - 1, now, now + 1) if turn else (0,):
            for begin, end in self.sessions:
                if end + cycle * turn > time:
                    return begin + cycle * turn, end + cycle * turn
        return None

    def compute_seconds(self, flops: float) -> float:
        """Duration of `flops` operations, without jitter."""
        return flops / self.flops

    def download_seconds(self, nbytes: int) -> float:
        return self.latency + nbytes / self.down

    def upload_seconds(self, nbytes: int) -> float:
        return self.latency + nbytes / self.up

    def jitter_factor(self, rng: np.random.Generator) -> float:
        """The factor of a duration: log-normal, median 1."""
        return float(np.exp(self.jitter * rng.standard_normal()))


def device(name_or_preset: str, **overrides: Any) -> Device:
    """A preset by its name with some fields changed, or a device of your own with all figures given.

    >>> device("raspberry-pi-4").flops
    14400000000.0
    >>> device("toaster", flops=1e9, memory="256MB", down="1MB/s", up="1MB/s").name
    'toaster'
    """
    fields = {"name": name_or_preset} | overrides
    if name_or_preset in PRESETS:
        fields = PRESETS[name_or_preset].model_dump() | fields
    elif missing := [key for key in ("flops", "memory", "down", "up") if key not in overrides]:
        raise ConfigError(
            f"unknown device {name_or_preset!r}; known: {', '.join(sorted(PRESETS))}; "
            f"or describe your own: {', '.join(missing)} missing"
        )
    try:
        return Device.model_validate(fields)
    except ValidationError as error:
        problems = "; ".join(_problem(detail["loc"], detail["msg"], detail["input"]) for detail in error.errors())
        raise ConfigError(f"device {fields['name']!r}: {problems}") from None


def _problem(field: tuple[str | int, ...], message: str, value: object) -> str:
    # A check over several fields belongs to none of them and already names its values.
    return f"{field[0]} is {value!r}: {message}" if field else message.removeprefix("Value error, ")


Network = tuple[str, str, float]
"""Download, upload, latency."""

_WIRED: Network = ("941Mbit/s", "941Mbit/s", 0.001)

LINKS: dict[str, Network] = {
    "3g": ("168kB/s", "42kB/s", 0.9),
    "edge": ("6.6kB/s", "6.6kB/s", 2.4),
    "flaky": ("140kB/s", "35kB/s", 0.9),
}
"""The rates that a fleet's transfers get out of the links of docs/results/network.md: that of one TCP connection
measured there, and three round trips for each transfer (asking, announcing, and one for what gets lost at its end).
`flaky` is `3g` without the sixth of the time in which nothing passes."""


def _preset(name: str, peak: float, memory: str, network: Network, jitter: float, source: str) -> Device:
    figures = {"name": name, "flops": peak * UTILISATION, "memory": memory, **network_figures(network)}
    return Device.model_validate(figures | {"jitter": jitter, "source": source})


def network_figures(network: Network) -> dict[str, Any]:
    return dict(zip(("down", "up", "latency"), network, strict=True))


_NAMED = (
    _preset(
        "jetson-xavier-nx-8gb", 384 * 2 * 1.100e9, "5GB", _WIRED, 0.10,
        "GPU: NVIDIA data sheet DA-09366-001: 384 CUDA cores at up to 1100 MHz, 8 GB, gigabit Ethernet",
    ),
    _preset(
        "jetson-xavier-nx-16gb", 384 * 2 * 1.100e9, "13GB", _WIRED, 0.10,
        "GPU: as the 8 GB module (NVIDIA data sheet DA-09366-001), with 16 GB",
    ),
    _preset(
        "jetson-agx-xavier-32gb", 512 * 2 * 1.377e9, "29GB", _WIRED, 0.05,
        "GPU: NVIDIA Jetson module comparison: 512 CUDA cores at up to 1377 MHz, 32 GB, gigabit Ethernet",
    ),
    _preset(
        "jetson-agx-orin-64gb", 2048 * 2 * 1.300e9, "61GB", _WIRED, 0.05,
        "GPU: NVIDIA Jetson AGX Orin technical brief: 2048 CUDA cores at up to 1.3 GHz (5.3 TFLOP/s FP32), "
        "64 GB; its 10-gigabit port is taken to be on a gigabit network",
    ),
    _preset(
        "raspberry-pi-4", 4 * 8 * 1.5e9, "3GB", ("100Mbit/s", "50Mbit/s", 0.005), 0.15,
        "Processor: Raspberry Pi 4 Model B, 4 GB: 4 Cortex-A72 cores at 1.5 GHz, 8 FP32 FLOP per cycle and "
        "core (measured on the core by vfpbench); Wi-Fi rate assumed",
    ),
    _preset(
        "laptop", 4 * 32 * 2.4e9, "8GB", ("300Mbit/s", "150Mbit/s", 0.005), 0.10,
        "Processor: an office laptop with 16 GB: 4 cores with AVX2 at a sustained 2.4 GHz, 32 FP32 FLOP per "
        "cycle and core (two 8-wide fused multiply-adds), no GPU; Wi-Fi rate assumed",
    ),
)  # fmt: skip
PRESETS: dict[str, Device] = {preset.name: preset for preset in _NAMED}
"""Named devices; the module's docstring says how the figures come about."""

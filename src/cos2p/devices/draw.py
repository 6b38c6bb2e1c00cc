"""Devices of a group that are not alike: figures by distribution or from a trace, hours of the day, sessions.

The run's seed and the device's name decide every draw, so the order of the draws changes nothing. A trace is a CSV of
measured devices, a file of sessions a CSV of when each one was there; errors name file and row.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cos2p.data.paths import find
from cos2p.devices.device import PRESETS, Device, device
from cos2p.devices.settings import DeviceGroup
from cos2p.errors import ConfigError
from cos2p.seeding import numpy_rng
from cos2p.units import parse_bytes, parse_rate

DAY = 86_400.0
FARTHEST = 3.0
"""Deviations at which a drawn figure is cut off: no device is a thousand times slower than the median."""
FIGURES = ("flops", "memory", "down", "up", "latency", "jitter", "drop_rate", "downtime")
"""Columns of a trace; any other column but `device` is refused."""

Session = tuple[float, float]
"""From and to, in virtual seconds."""


def group_devices(group: DeviceGroup, names: Sequence[str], seed: int) -> list[Device]:
    """One device for each name."""
    rows = read_trace(group.trace) if group.trace else ()
    order = numpy_rng(seed, "trace", group.trace, names[0]).permutation(len(rows)) if rows else np.empty(0, int)
    made = []
    for number, name in enumerate(names):
        row = dict(rows[int(order[number % len(order)])]) if rows else {}
        traced = str(row.pop("device", name))
        changes = group.changes() | row
        changes |= _spread(group, changes, numpy_rng(seed, "figures", name))
        changes |= _presence(group, name, traced, seed)
        made.append(device(group.preset, name=name, **changes))
    return made


def _spread(group: DeviceGroup, changes: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The figures that the group spreads, each multiplied by a log-normal factor with median 1."""
    found: dict[str, Any] = {}
    preset = PRESETS.get(group.preset)
    wide, network = group.spread, group.spread.get("network", 0.0)
    sigmas = {"flops": wide.get("flops", 0.0), "memory": wide.get("memory", 0.0), "down": network, "up": network}
    for figure, sigma in sigmas.items():
        factor = math.exp(sigma * float(np.clip(rng.standard_normal(), -FARTHEST, FARTHEST)))
        median = changes.get(figure, getattr(preset, figure, None))
        if sigma and median is not None:
            found[figure] = _plain(figure, median) * factor
    if "memory" in found:
        found["memory"] = max(1, round(found["memory"]))
    return found


def _plain(figure: str, value: Any) -> float:
    return float(parse_bytes(value) if figure == "memory" else parse_rate(value) if figure in ("down", "up") else value)


def _presence(group: DeviceGroup, name: str, traced: str, seed: int) -> dict[str, Any]:
    if isinstance(group.online, str) and group.online:
        known = read_sessions(group.online)
        names = sorted(known)
        # A device that the file does not know has the sessions of one that it knows.
        own = traced if traced in known else names[int(numpy_rng(seed, "sessions", name).integers(len(names)))]
        return {"sessions": known[own], "session_period": None}
    if not group.online:
        return {}
    shift = group.online_spread * 3600 * float(numpy_rng(seed, "hours", name).standard_normal())
    return {"sessions": daily(group.online, shift), "session_period": DAY}


def daily(hours: Sequence[str], shift: float = 0.0) -> tuple[Session, ...]:
    """Hours of the day as seconds since midnight, later by `shift`; one that crosses the end of the day goes on beyond
    it.

    >>> daily(["22:00-07:00"])
    ((79200.0, 111600.0),)
    """
    found = []
    for text in hours:
        begin, end = (of_day(part) for part in text.split("-"))
        length = (end - begin) % DAY or DAY
        start = (begin + shift) % DAY
        found.append((start, start + length))
    return joined(found)


def of_day(text: str) -> float:
    """Seconds since midnight.

    >>> of_day("07:30")
    27000.0
    """
    hours, minutes = text.split(":")
    return 3600.0 * int(hours) + 60.0 * int(minutes)


# ---------------------------------------------------------------- files


@lru_cache(maxsize=16)
def read_trace(path: str) -> tuple[dict[str, Any], ...]:
    """One device for each row, with the figures that the file has; a `device` column may name it."""
    rows = []
    for number, row in _rows(path):
        if unknown := [name for name in row if name not in (*FIGURES, "device")]:
            raise ConfigError(
                f"{path}: there is no figure {', '.join(unknown)}; columns can be device, {', '.join(FIGURES)}"
            )
        if empty := [name for name, value in row.items() if not value]:
            raise ConfigError(f"{path}, row {number}: {empty[0]} is empty; leave the column out or fill it")
        rows.append({name: _figure(value) for name, value in row.items()})
    return tuple(rows)


@lru_cache(maxsize=16)
def read_sessions(path: str) -> dict[str, tuple[Session, ...]]:
    """Device → when it was there, ascending; sessions that touch are one."""
    found: dict[str, list[Session]] = {}
    for number, row in _rows(path):
        if set(row) != {"device", "from", "to"}:
            raise ConfigError(f"{path}: its columns are {', '.join(row)}; a file of sessions has device, from, to")
        try:
            begin, end = float(row["from"]), float(row["to"])
        except ValueError:
            begin, end = 0.0, 0.0
        if not 0 <= begin < end < float("inf"):
            raise ConfigError(f"{path}, row {number}: from {row['from']!r} to {row['to']!r} are no seconds, ascending")
        found.setdefault(row["device"], []).append((begin, end))
    return {device: joined(sessions) for device, sessions in found.items()}


def joined(sessions: list[Session]) -> tuple[Session, ...]:
    """Ascending, those that touch or overlap as one.

    >>> joined([(5, 7), (0, 2), (1, 3)])
    ((0, 3), (5, 7))
    """
    whole: list[Session] = []
    for begin, end in sorted(sessions):
        if whole and begin <= whole[-1][1]:
            whole[-1] = whole[-1][0], max(whole[-1][1], end)
        else:
            whole.append((begin, end))
    return tuple(whole)


def _rows(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    file: Path = find(path)
    with file.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        some = False
        for number, row in enumerate(reader, start=2):
            if None in row or None in row.values():
                raise ConfigError(f"{path}, row {number}: it has another number of cells than the heading")
            some = True
            yield number, {name.strip(): value.strip() for name, value in row.items()}
        if not some:
            raise ConfigError(f"{path}: no device in it; a heading and one row for each device are expected")


def _figure(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value  # 600MB, 100Mbit/s: the device's own check says whether it can be read

"""Fleets as they were measured: a CSV of devices, and a CSV of when each was there. Errors name file and row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from cos2p.data.paths import find
from cos2p.errors import ConfigError

FIGURES = ("flops", "memory", "down", "up", "latency", "jitter", "drop_rate", "downtime")
"""Columns of a trace; any other column but `device` is refused."""

Session = tuple[float, float]
"""From and to, in virtual seconds."""


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

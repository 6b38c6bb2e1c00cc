"""The names in a study's folder, and the figures of its tables: where they are in `result.json`, how they are written,
which way is better. Light to import, for those who only look at a study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

STUDY = "study.json"
RUNS = "runs.jsonl"
"""A file of its record."""
CELLS = "cells"
TARGET_PREFIX = "target-"
"""Beginning of the names of tables that hold what was spent until an accuracy."""
TRIAL_PREFIX = "tune-"
"""Beginning of the names of a search's trials, which stand among the cells."""

Better = Literal["more", "less", ""]
Value = Callable[[Mapping[str, Any]], float | None]


@dataclass(frozen=True)
class Column:
    key: str
    title: str
    unit: str
    scale: float
    """From the figure in `result.json` to the unit."""
    digits: int
    better: Better = ""
    """Empty: neither, so nothing is bold."""
    value: Value | None = None
    """How to read it from the result; None: by its key."""
    signed: bool = False
    """A difference: positive ones are written with their sign."""

    def read(self, result: Mapping[str, Any]) -> float | None:
        found = self.value(result) if self.value else result.get(self.key)
        return None if found is None else float(found)

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def write(self, figure: float) -> str:
        """In the unit, rounded; a true minus sign, and no minus before a zero.

        >>> TOP1.write(0.63149), replace(TOP1, signed=True).write(-0.0789), TOP1.write(-0.0000001)
        ('63.1', '−7.9', '0.0')
        """
        text = f"{figure * self.scale:{'+' if self.signed else ''},.{self.digits}f}"
        if not any(digit in text for digit in "123456789"):
            return text.lstrip("+-")
        return text.replace("-", "−")

    def to_dict(self) -> dict[str, Any]:
        """For study.json and the page: all but how it is read."""
        return {name: value for name, value in vars(self).items() if name != "value"}

    def as_difference(self) -> Column:
        """The column of differences between two rows; shares differ by points, not by per cent."""
        return replace(self, signed=True, unit="points" if self.unit == "%" else self.unit, better="")


def _peak(result: Mapping[str, Any], weakest: bool) -> float | None:
    devices = list(result.get("devices", {}).values())
    if weakest and devices:
        smallest = min(device["rate"] for device in devices)
        devices = [device for device in devices if device["rate"] == smallest]
    peaks = [device["peak_memory"] for device in devices if device.get("peak_memory") is not None]
    return max(peaks, default=None)


def _share(key: str, title: str, better: Better = "more") -> Column:
    return Column(key, title, "%", 100.0, 1, better)


TOP1 = _share("top1", "server top-1")
CLIENT_TOP1 = _share("client_top1", "clients top-1")
RU = _share("ru", "RU")

COLUMNS = (
    TOP1,
    _share("top5", "server top-5"),
    _share("f1", "server F1"),
    CLIENT_TOP1,
    _share("client_top5", "clients top-5"),
    _share("client_f1", "clients F1"),
    Column("perplexity", "server perplexity", "", 1.0, 2, "less"),
    Column("client_perplexity", "clients' perplexity", "", 1.0, 2, "less"),
    _share("answers", "server answers"),
    RU,
    _share("busy", "busy"),
    Column("virtual_seconds", "virtual time", "min", 1 / 60, 1, "less"),
    Column("bytes_up", "up", "MB", 1e-6, 1, "less"),
    Column("bytes_down", "down", "MB", 1e-6, 1, "less"),
    Column("peak_memory", "peak memory", "MB", 1e-6, 2, "less", lambda result: _peak(result, weakest=False)),
    Column("weak_memory", "weakest device's", "MB", 1e-6, 2, "less", lambda result: _peak(result, weakest=True)),
    Column("wall_seconds", "wall time", "s", 1.0, 0),
)
"""The paper's table and what running it cost. The wall time is this machine's and no property of a method."""

_COMPARED = (
    "perplexity", "client_perplexity", "answers", "top1", "top5", "f1", "client_top1", "client_top5", "client_f1", "ru",
    "virtual_seconds",
)  # fmt: skip
DIFFERENCES = tuple(column.as_difference() for column in COLUMNS if column.key in _COMPARED)

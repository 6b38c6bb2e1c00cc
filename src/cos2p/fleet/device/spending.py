"""What a device has spent today, kept in its kit so that a restart forgets nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from cos2p.errors import OwnerRefused
from cos2p.fleet.device.owner import Spend
from cos2p.tracking.files import write_atomic
from cos2p.units import format_bytes

NAME = "spent.json"


def today() -> str:
    """Days begin at midnight, UTC."""
    return datetime.now(timezone.utc).date().isoformat()


class Spending:
    """The day's account of a kit against its owner's limits."""

    def __init__(self, kit: Path, limits: Spend, day: Callable[[], str] = today) -> None:
        self._path, self.limits, self._day = kit / NAME, limits, day

    def seconds_left(self) -> float:
        """Of training; infinity without a limit."""
        limit = self.limits.seconds_per_day
        return max(0.0, limit - self._spent()["seconds"]) if limit else float("inf")

    def check_transfer(self, size: int) -> None:
        """OwnerRefused if so many bytes more are beyond the day's."""
        limit, spent = self.limits.bytes_per_day, int(self._spent()["bytes"])
        if limit and spent + size > limit:
            raise _refused(f"bytes_per_day: {format_bytes(spent)} + {format_bytes(size)} of {format_bytes(limit)}")

    def check_disk(self, size: int) -> None:
        limit = self.limits.disk
        if limit and size > limit:
            raise _refused(f"disk: {format_bytes(size)} of {format_bytes(limit)}")

    def check_seconds(self) -> None:
        if self.seconds_left() <= 0:
            raise _refused(f"seconds_per_day: all {self.limits.seconds_per_day:g} are used")

    def add(self, seconds: float = 0.0, size: int = 0) -> None:
        spent = self._spent()
        entry = {"day": self._day(), "seconds": spent["seconds"] + seconds, "bytes": int(spent["bytes"]) + size}
        write_atomic(self._path, (json.dumps(entry) + "\n").encode())

    def _spent(self) -> dict[str, float]:
        """Of today. An account that cannot be read counts as all spent: a limit is not lost with a file."""
        nothing = {"seconds": 0.0, "bytes": 0}
        try:
            entry = json.loads(self._path.read_text(encoding="utf-8"))
            known = {"seconds": float(entry["seconds"]), "bytes": int(entry["bytes"])}
        except FileNotFoundError:
            return nothing
        except (OSError, ValueError, KeyError, TypeError):
            raise OwnerRefused(
                f"{self._path} cannot be read; delete it to begin the day's account anew",
                told="its account of the day cannot be read",
            ) from None
        return known if entry.get("day") == self._day() else nothing


def _refused(what: str) -> OwnerRefused:
    return OwnerRefused(f"the owner's limit is reached: {what}", told=what)

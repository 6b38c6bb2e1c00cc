"""How much of a run is over, for methods whose tasks depend on it."""

from __future__ import annotations

from cos2p.aggregation.settings import ScheduleSettings


def share_done(schedule: ScheduleSettings, version: int, merged: int, telling: int = 0) -> float:
    """By rounds or by updates, whichever is further; 0 where the recipe has neither. `telling` updates do not train."""
    shares = [version / schedule.rounds] if schedule.rounds else []
    if schedule.updates:
        shares.append(merged / max(1, schedule.updates - telling))
    return max(shares, default=0.0)

"""The traces of a run: events, figures, checkpoints, files that survive a crash, curves for dashboards."""

from cos2p.tracking.event_kinds import Event, Merged
from cos2p.tracking.events import EventLog, read_events

__all__ = ["Event", "EventLog", "Merged", "read_events"]

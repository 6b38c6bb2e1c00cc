"""What a run leaves behind: events, metrics, files that survive a crash."""

from cos2p.numerics.metrics import (
    ConfusionCounter,
    busy_in,
    busy_share,
    classification_metrics,
    mean_interval,
    resource_utilisation,
)
from cos2p.tracking.event_kinds import Event, Merged
from cos2p.tracking.events import EventLog, read_events
from cos2p.tracking.files import explained, prepare_folder, write_atomic

__all__ = [
    "ConfusionCounter",
    "Event",
    "EventLog",
    "Merged",
    "busy_in",
    "busy_share",
    "classification_metrics",
    "explained",
    "mean_interval",
    "prepare_folder",
    "read_events",
    "resource_utilisation",
    "write_atomic",
]

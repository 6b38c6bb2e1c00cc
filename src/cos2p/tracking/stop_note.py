"""Why a run stopped before it was over: a note in its folder, for the page to say it. The next start removes it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cos2p.tracking.files import write_atomic

STOP_NOTE = "stopped.json"
REASON_CHARACTERS = 2000


@dataclass(frozen=True)
class StopNote:
    failed: bool
    """False if the user stopped it."""
    reason: str


def write_stop_note(folder: Path, note: StopNote) -> None:
    """As far as it can be written: the reason for it may be that nothing can."""
    short = StopNote(note.failed, note.reason[:REASON_CHARACTERS])
    with suppress(Exception):
        write_atomic(folder / STOP_NOTE, (json.dumps(asdict(short)) + "\n").encode())


def read_stop_note(folder: Path) -> StopNote | None:
    try:
        found = json.loads((folder / STOP_NOTE).read_text(encoding="utf-8"))
        return StopNote(bool(found["failed"]), str(found["reason"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def remove_stop_note(folder: Path) -> None:
    (folder / STOP_NOTE).unlink(missing_ok=True)

"""Nobody is left behind: a process whose parent was killed ends too, instead of working on for nobody."""

from __future__ import annotations

import os
import threading
import time

LOOK_SECONDS = 0.5
CODE = 3
"""With which an orphan ends."""


def die_with_parent() -> None:
    """End this process at once when it is adopted by another than its parent of now."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os._exit(CODE)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()

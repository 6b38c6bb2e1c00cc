"""The command line, one file per verb. Imports nothing heavy before a verb needs it: `cos2p --help` must be quick."""

from __future__ import annotations

import signal
import sys
import traceback

EXIT_DEFECT = 70
"""Exit code of a defect, not the user's doing (BSD's EX_SOFTWARE)."""


def main() -> None:
    """The entry point `cos2p`."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: it says that it stops
    try:
        from cos2p.cli.app import app

        app(prog_name="cos2p")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        print(
            "This is a defect of cos2p, not of what you asked for. Please report it with the lines above and, "
            "if there is one, the run folder.",
            file=sys.stderr,
        )
        sys.exit(EXIT_DEFECT)

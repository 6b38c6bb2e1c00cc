"""The peers' virtual environment: made once in a cache folder, made anew when its requirements change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TORCH, FEDLAB = "torch==2.13.0", "fedlab==1.3.0"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")


class PeersMissing(Exception):
    """The environment could not be made; the text says why."""


def python(cache: Path | None = None) -> Path:
    """The interpreter of the peers' environment, which is made if it is not there (minutes, about 2 GB)."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache or home / "cos2p" / "peers" / "venv"
    ready, wanted = folder / "ready.txt", f"{TORCH} {FEDLAB}\n" + REQUIREMENTS.read_text(encoding="utf-8")
    interpreter = folder / "bin" / "python"
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return interpreter
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    _run([str(interpreter), "-m", "pip", "install", "--quiet", TORCH])
    _run([str(interpreter), "-m", "pip", "install", "--quiet", TORCH, "-r", str(REQUIREMENTS)])
    _run([str(interpreter), "-m", "pip", "install", "--quiet", "--no-deps", FEDLAB])
    ready.write_text(wanted, encoding="utf-8")
    return interpreter


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in (done.stderr + done.stdout).splitlines() if "ERROR" in line]
        raise PeersMissing(f"{' '.join(command[1:5])} failed: {(errors or ['no reason given'])[-1][:200]}")

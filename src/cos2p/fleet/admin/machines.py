"""A kit's processes on this machine: start the one it is for, watch it, end it with all its children."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from cos2p.errors import RunError
from cos2p.fleet.kit import MARK, Kit, check_clock
from cos2p.fleet.notices import NoticeReader, forget
from cos2p.fleet.nvflare.provisioning import settle
from cos2p.fleet.nvflare.start import start_command

DAY_SECONDS = 86400.0

REJECTED = "registration rejected: "
"""As NVFlare's client writes it down."""


class Machine:
    """A kit's process and its children (one per running job, and the training process below it)."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.kill()
        settle(self.kit)
        if self.kit.role == "device":  # some lines a task: only those of this process are kept
            forget(self.kit.folder)
        (self.kit.folder / "transfer").mkdir(exist_ok=True)
        with (self.kit.folder / "output.txt").open("ab") as log:  # NVFlare writes its log itself
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.kit.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_surroundings() | {MARK: str(self.kit.folder)},
                start_new_session=True,  # Ctrl-C is for the one who started it, who then ends it in order
            )

    def command(self) -> list[str]:
        return start_command(self.kit)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def processes(self) -> list[psutil.Process]:
        """All processes of this kit, the main one first; also those whose parent was killed.

        They are known by the mark that `start` put into their environment, which children inherit. A command line that
        names the kit (an editor, a copy of it) makes nobody one of them.
        """
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(MARK) == str(self.kit.folder):
                    found.append(process)
        first = self._process.pid if self._process is not None else -1
        return sorted(found, key=lambda process: (process.pid != first, process.pid))

    def kill(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        if self._process is not None:
            self._process.wait()

    def refusal(self) -> str:
        """Why the server did not let this kit in, if that is how its process ended."""
        with suppress(OSError):
            lines = self.kit.log.read_text(errors="replace").splitlines()[-200:]
            return next((line.partition(REJECTED)[2] for line in reversed(lines) if REJECTED in line), "")
        return ""


def _surroundings() -> dict[str, str]:
    """The environment of a kit's processes. They run in the kit's folder; a recipe's relative path to its data is
    meant from where the command was given."""
    found = {"COS2P_DATA": str(Path.cwd())} | os.environ
    return found | {"PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "2"}


def supervise(machine: Machine, stopped: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Keep the kit's process running until `stopped`; one that ends by itself is started again, ever more slowly."""
    pause, news = 1.0, NoticeReader(machine.kit.folder)
    while not stopped():
        began = time.monotonic()
        if warning := check_clock(machine.kit):
            say(warning)
        machine.start()
        news.read()
        look = time.monotonic() + DAY_SECONDS
        while machine.running and not stopped():
            time.sleep(0.2)
            if time.monotonic() > look:  # a process may run for months
                look += DAY_SECONDS
                if warning := check_clock(machine.kit):
                    say(warning)
            for client, text in news.read():
                say(f"{client}: {text}")
        if stopped() or (machine.kit.folder / "shutdown.fl").exists():
            break
        pause = 1.0 if time.monotonic() - began > 60 else min(2 * pause, 60.0)
        reason = machine.refusal()
        why = f"the server refused this kit: {reason}" if reason else f"the process ended with code {machine.code}"
        say(f"{why}; started again in {pause:.0f} s (log: {machine.kit.log})")
        deadline = time.monotonic() + pause
        while time.monotonic() < deadline and not stopped():
            time.sleep(0.2)
    machine.kill()


def somebody_listens(host: str, port: int, seconds: float = 2.0) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=seconds):
        return True
    return False


def wait_for_port(host: str, port: int, seconds: float, alive: Callable[[], bool] = lambda: True) -> None:
    """Until somebody listens there; RunError if nobody does in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and alive():
        if somebody_listens(host, port, 1.0):
            return
        time.sleep(0.1)
    raise RunError(f"nobody listens at {host}:{port}; is the server running (cos2p fleet serve)?")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def lock(kit: Kit) -> None:
    """RunError if this kit's process runs already."""
    running = Machine(kit).processes()
    if running:
        raise RunError(f"{kit.folder} is in use by process {running[0].pid}; end that one first")

"""A process of NVFlare's, of a kit or of a job: it takes only the messages that a run needs, and ends when the one who
started it is gone.

python -m cos2p.fleet.nvflare.start MODULE ARGUMENTS
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cos2p.fleet.kit import MARK, Kit
from cos2p.fleet.notices import Notices
from cos2p.fleet.nvflare.provisioning import ORGANISATION
from cos2p.processes.children import when_orphaned

if TYPE_CHECKING:
    from cos2p.fleet.nvflare.message_filter import MessageFilter

HEARTBEAT_SECONDS = 2
"""How often NVFlare's client process reports which jobs it runs; a killed job process is noticed after one or two."""

SILENT_SECONDS = 8 * HEARTBEAT_SECONDS
"""Without an answer to its heartbeats for so long, a device says that it is disconnected."""

DEAD_SECONDS = 22
"""Without any acknowledgement of what was sent: more than a tunnel or a lift takes."""


def _impatience(round_trip: float) -> Iterator[tuple[int, int, int]]:
    """Options of a connection whose packets take so many seconds there and back."""
    dead, tcp = max(DEAD_SECONDS, int(8 * round_trip)), socket.IPPROTO_TCP
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    yield tcp, 4, dead // 2  # TCP_KEEPIDLE: asks when nothing was sent for so long, and ...
    yield tcp, 5, dead // 4  # ... TCP_KEEPINTVL: asks again
    yield tcp, 18, 1000 * dead  # TCP_USER_TIMEOUT
    yield tcp, 16, 1  # TCP_THIN_LINEAR_TIMEOUTS: a link that loses half asks for tries, not for patience
    # TCP_RTO_MAX_MS, from Linux 6.15 on: after an outage it is tried at once, but no sooner than an answer can be here.
    yield tcp, 44, max(2000, int(2000 * round_trip))


_SELF = "cos2p.fleet.nvflare.start"

_MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "device": "nvflare.private.fed.app.client.client_train",
}


def start_command(kit: Kit) -> list[str]:
    """The command that runs a server's or a device's kit."""
    base = [sys.executable, "-u", "-m", _SELF, _MODULES[kit.role], "-m", str(kit.folder)]
    common = ["--set", "secure_train=true", f"org={ORGANISATION}", "config_folder=config"]
    if kit.role == "server":
        return [*base, "-s", "fed_server.json", *common]
    return [*base, "-s", "fed_client.json", *common, f"uid={kit.name}", f"heart_beat_interval={HEARTBEAT_SECONDS}"]


def main() -> None:
    from cos2p.fleet.nvflare import message_filter

    when_orphaned(lambda: os.kill(os.getpid(), signal.SIGKILL))
    module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    kit = Path(os.environ[MARK]) if MARK in os.environ else None
    installed = message_filter.install(kit)
    if kit is not None and module == _MODULES["device"]:
        threading.Thread(target=_report_contact, args=(Notices(kit), kit.name, installed), daemon=True).start()
    _start_jobs_the_same_way()
    _give_up_dead_connections()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _report_contact(notices: Notices, name: str, messages: MessageFilter) -> None:
    """Notify `fleet join` when the server answers, and since when it does not."""
    connected, began = False, 0.0
    while True:
        time.sleep(1)
        silent = time.monotonic() - messages.heard
        if messages.heard and silent < SILENT_SECONDS and not connected:
            began = began or messages.heard
            if messages.heard - began > HEARTBEAT_SECONDS:  # a refused kit is answered once
                notices.add(name, "connected; waiting for a run", again=0.0)
                connected = True
        elif connected and silent >= SILENT_SECONDS:
            since = datetime.fromtimestamp(time.time() - silent)
            notices.add(name, f"disconnected since {since:%H:%M:%S}; trying again", again=0.0)
            connected, began = False, 0.0


def _give_up_dead_connections() -> None:
    """NVFlare waits for its connections for ever, and the kernel a quarter of an hour for an answer: one through which
    nothing comes (the router forgot it, the address is another now) is given up, and NVFlare makes a new one."""
    from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver

    of_nvflare = AioHttpDriver._connection_handler

    async def handle(driver: Any, websocket: Any) -> None:
        own = websocket.get_extra_info("socket")
        with suppress(AttributeError, OSError, struct.error):  # another system
            (round_trip,) = struct.unpack_from(
                "I", own.getsockopt(socket.IPPROTO_TCP, 11, 72), 68
            )  # TCP_INFO, tcpi_rtt
            for level, option, value in _impatience(round_trip / 1e6):
                with suppress(OSError):  # an older kernel
                    own.setsockopt(level, option, value)
        await of_nvflare(driver, websocket)

    AioHttpDriver._connection_handler = handle


def _start_jobs_the_same_way() -> None:
    """NVFlare starts a job's process as `python -m ITS_MODULE ...`."""
    from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
    from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

    for launcher in (ClientProcessJobLauncher, ServerProcessJobLauncher):

        def command(self: Any, job: Any, fl_ctx: Any, of_nvflare: Any = launcher.get_command) -> str:
            return str(of_nvflare(self, job, fl_ctx)).replace(" -m ", f" -m {_SELF} ", 1)

        launcher.get_command = command


if __name__ == "__main__":
    main()

"""A process of NVFlare's, of a kit or of a job: it takes only the messages that a run needs, and ends when the one who
started it is gone.

python -m cos2p.fleet.nvflare.start MODULE ARGUMENTS
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from cos2p.fleet.kit import MARK, Kit
from cos2p.fleet.nvflare.provisioning import ORGANISATION
from cos2p.processes.children import when_orphaned

HEARTBEAT_SECONDS = 2
"""How often NVFlare's client process reports which jobs it runs; a killed job process is noticed after one or two."""

_SELF = "cos2p.fleet.nvflare.start"

_MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "device": "nvflare.private.fed.app.client.client_train",
}


def start_command(kit: Kit) -> list[str]:
    """What to run for a server's or a device's kit."""
    base = [sys.executable, "-u", "-m", _SELF, _MODULES[kit.role], "-m", str(kit.folder)]
    common = ["--set", "secure_train=true", f"org={ORGANISATION}", "config_folder=config"]
    if kit.role == "server":
        return [*base, "-s", "fed_server.json", *common]
    return [*base, "-s", "fed_client.json", *common, f"uid={kit.name}", f"heart_beat_interval={HEARTBEAT_SECONDS}"]


def main() -> None:
    from cos2p.fleet.nvflare import message_filter

    when_orphaned(lambda: os.kill(os.getpid(), signal.SIGKILL))
    module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    message_filter.install(Path(os.environ[MARK]) if MARK in os.environ else None)
    _start_jobs_the_same_way()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


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

"""NVFlare's main process of a kit, which ends when the one who started it is gone.

python -m cos2p.fleet.nvflare.start MODULE ARGUMENTS
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from cos2p.fleet.kit import Kit
from cos2p.fleet.nvflare.provisioning import ORGANISATION
from cos2p.processes.children import when_orphaned

BEAT_SECONDS = 2
"""How often NVFlare's client process reports which jobs it runs; a killed job process is noticed after one or two."""

_MODULES = {
    "server": "nvflare.private.fed.app.server.server_train",
    "device": "nvflare.private.fed.app.client.client_train",
}


def start_command(kit: Kit) -> list[str]:
    """What to run for a server's or a device's kit."""
    base = [sys.executable, "-u", "-m", __name__, _MODULES[kit.role], "-m", str(kit.folder)]
    common = ["--set", "secure_train=true", f"org={ORGANISATION}", "config_folder=config"]
    if kit.role == "server":
        return [*base, "-s", "fed_server.json", *common]
    return [*base, "-s", "fed_client.json", *common, f"uid={kit.name}", f"heart_beat_interval={BEAT_SECONDS}"]


def main() -> None:
    when_orphaned(lambda: os.kill(os.getpid(), signal.SIGKILL))
    module, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

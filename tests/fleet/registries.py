"""Every channel and topic that a process of NVFlare's listens to, as its own registries say: loaded into all of them.

Written to `CELL.json` in the folder that the environment names, and kept up to date.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ServerCommandNames
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.streaming.byte_receiver import ByteReceiver
from nvflare.private.aux_runner import AuxRunner
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.server.server_commands import ServerCommands

FOLDER = "COS2P_TEST_REGISTRIES"

_made: dict[type, list[Any]] = {}


def _remember(kind: Any) -> None:
    made, begin = _made.setdefault(kind, []), kind.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        made.append(self)

    kind.__init__ = init


for kind in (ByteReceiver, AuxRunner, FedAdminAgent):
    _remember(kind)


def behind(channel: str) -> set[str]:
    """The topics that one handler of a whole channel tells apart; and one that it does not know."""
    tables = {
        "admin": [topic for agent in _made[FedAdminAgent] for topic in agent.processors],
        "aux_communication": [topic for runner in _made[AuxRunner] for topic in runner.topic_table],
        "client_command": [command.get_command_name() for command in AdminCommands.commands],
        "server_command": [command.get_command_name() for command in ServerCommands.commands],
        "server_parent_listener": [v for k, v in vars(ServerCommandNames).items() if k.isupper()],
        "hci_channel": ["command"],
    }
    return {"something new", *tables.get(channel, ())}


def pairs(keys: list[str]) -> list[list[str]]:
    split = [key.split(":", 1) for key in keys]
    return sorted([channel, one] for channel, topic in split for one in (behind(channel) if topic == "*" else {topic}))


def found(cell: CoreCell) -> dict[str, list[list[str]]]:
    streams = [key for receiver in _made[ByteReceiver] if receiver.cell is cell for key in receiver.registry.reg]
    return {"direct": pairs(list(cell.req_reg.reg)), "streamed": pairs(streams)}


def _keep_writing(folder: Path) -> None:
    while True:
        for name, cell in list(CoreCell.ALL_CELLS.items()):
            path = folder / f"{name}.json"
            path.with_suffix(".part").write_text(json.dumps(found(cell)))
            path.with_suffix(".part").rename(path)
        time.sleep(0.5)


if FOLDER in os.environ:
    threading.Thread(target=_keep_writing, args=(Path(os.environ[FOLDER]),), daemon=True).start()

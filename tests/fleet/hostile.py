"""A device with a valid certificate and bad intentions: loaded into its job process in place of the honest executor.

At its first task it tries what must not work with tasks and updates, and notes what it was told; later it sends an
update again. When its kit has a file `command`, it has the victim delete its data; `commander` tries all the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.message import Message
from nvflare.private.admin_defs import Message as Command

from cos2p.fleet.nvflare.executor import FleetExecutor
from cos2p.fleet.nvflare.link import Link, LinkDown, Refusal
from cos2p.fleet.spool import Notice
from cos2p.fleet.wire import CHUNK_BYTES

VICTIM = "dev-1"


class Tricks:
    def __init__(self, link: Link, task: str) -> None:
        self.link, self.task, self.reported = link, task, dict[str, str]()

    def attempt(self, name: str, act: Callable[[], Any]) -> None:
        try:
            act()
            self.reported[name] = "it worked"
        except (Refusal, LinkDown) as error:
            self.reported[name] = f"{type(error).__name__}: {error}"

    def push(self, notice: Notice, body: bytes, offset: int = 0) -> Any:
        return self.link.ask("push", notice.to_dict() | {"offset": offset}, body, idle=5.0)

    def all_of_them(self) -> None:
        small = Notice(self.task, 10, hashlib.sha256(b"0123456789").hexdigest())
        self.attempt("never given", lambda: self.push(Notice("dev-2#99", 10, small.digest), b"0123456789"))
        self.attempt("another's task", lambda: self.push(Notice(f"{VICTIM}#0", 10, small.digest), b"0123456789"))
        self.attempt("another's payload", lambda: self.link.ask("pull", {"task": f"{VICTIM}#0", "offset": 0}))
        self.attempt("oversized", lambda: self.push(Notice(self.task, 10**12, small.digest), b"x"))
        self.attempt("more than announced", lambda: self.push(small, b"x" * 11))
        self.attempt("out of order", lambda: self.push(small, b"x", offset=5))
        self.attempt("no such topic", lambda: self.link.ask("rm -rf", {}))
        self.attempt("nonsense", lambda: self.link.ask("ready", {"session": "x", "samples": -1}))
        self.attempt("a huge message", self._huge)

    def _huge(self) -> None:
        """More than a message may have, past our own checks."""
        reply = self.link._cell.send_request(
            channel="cos2p", target=self.link._server, topic="push", timeout=5.0, optional=True,
            request=Message(payload=b"\0\0\0\2{}" + b"x" * (8 * CHUNK_BYTES)),
        )  # fmt: skip
        raise LinkDown(str(reply.get_header("return_code")))


_honest = FleetExecutor._do


def _do(self: FleetExecutor, order: dict[str, Any]) -> dict[str, Any]:
    """First task: all tricks and half an update. Second: honest. Third: the second's update once more. Then honest."""
    folder = Path(self._folder)
    corrupted, replayed, kept = folder / "tricks.json", folder / "replay.json", folder / "kept"
    task, old = str(order["task"]), folder / "spool" / "update"
    if (folder / "command").exists():
        (folder / "command").unlink()
        delete = Command("train.delete_run", "")
        delete.set_header("job_id", "data")
        self._link._cell.core_cell.fire_and_forget("admin", "admin", VICTIM, Message({}, delete))
    if not corrupted.exists():
        tricks = Tricks(self._link, task)
        tricks.all_of_them()
        _write(corrupted, tricks.reported | {"task": task})
        # and at last an update that ends in the middle, announced as if it were whole
        half = Notice(task, 1000, hashlib.sha256(b"x" * 1000).hexdigest())
        tricks.push(half, b"x" * 500)
        return {"sent": half.to_dict(), "numbers": {}}
    if not kept.exists():
        answer = _honest(self, order)
        if "sent" in answer:
            _write(kept.with_suffix(".task"), {"task": task})
            old.rename(kept)
        return answer
    if not replayed.exists():
        tricks = Tricks(self._link, task)
        data, before = kept.read_bytes(), json.loads(kept.with_suffix(".task").read_text())["task"]
        tricks.attempt(
            "replayed",
            lambda: tricks.push(Notice(before, len(data), hashlib.sha256(data).hexdigest()), data[:CHUNK_BYTES]),
        )
        _write(replayed, tricks.reported | {"task": task})
        return {"sent": self._send(task, kept).to_dict(), "numbers": {}}  # under the new task's name
    return _honest(self, order)


def _write(path: Path, values: dict[str, str]) -> None:
    """Whole or not at all: the test reads it while we write."""
    path.with_suffix(".part").write_text(json.dumps(values))
    path.with_suffix(".part").rename(path)


FleetExecutor._do = _do  # type: ignore[method-assign]

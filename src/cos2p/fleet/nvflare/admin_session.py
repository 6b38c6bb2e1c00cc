"""The admin's line to the server: which clients are connected, submit a run, ask how it goes.

Every call survives a server that is away for a while; the line is opened anew when it comes back.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TypeVar

from cos2p.errors import RunError
from cos2p.fleet.kit import Kit, server_address
from cos2p.fleet.nvflare.provisioning import ADMIN, CONTROLLER, EXECUTOR
from cos2p.fleet.wire import ASK_SECONDS
from cos2p.recipe import Recipe

POLL_SECONDS = 0.1
"""How often an idle client asks for its task."""

T = TypeVar("T")


class AdminSession:
    def __init__(self, kit: Kit, patience: float = 30.0) -> None:
        self.kit, self.patience = kit, patience
        self._session: Any = None

    def close(self) -> None:
        if self._session is not None:
            with _quiet(), suppress(Exception):
                self._session.close()
            self._session = None

    # ------------------------------------------------------------ what is asked

    def clients(self) -> list[str]:
        return sorted(client.name for client in self._call(lambda s: s.get_system_info()).client_info)

    def revoke(self, device: str) -> None:
        """No kit of this device that was issued until now is let in any more. Wrapped by `access.Access`."""
        self._call(lambda s: s.disable_client(device))

    def submit(self, run: str, recipe: Recipe, expected: list[str]) -> str:
        """Put a run in the server's queue; returns NVFlare's name of the job."""
        with tempfile.TemporaryDirectory(prefix="cos2p-job-") as folder:
            write_job(Path(folder) / run, run, recipe, expected)
            return str(self._call(lambda s: s.submit_job(str(Path(folder) / run))))

    def job(self, run: str) -> tuple[str, str] | None:
        """The newest job of a run and its status; None if there never was one."""
        jobs = [job for job in self._call(lambda s: s.list_jobs()) if job.get("job_name") == run]
        if not jobs:
            return None
        newest = max(jobs, key=lambda job: str(job.get("submit_time")))
        return str(newest["job_id"]), str(newest["status"])

    def jobs(self) -> list[dict[str, Any]]:
        return list(self._call(lambda s: s.list_jobs()))

    def ask(self, job: str, verb: str, **values: Any) -> dict[str, Any] | None:
        """Ask a run's own process; None if it does not run (yet, or any more)."""
        from nvflare.fuel.flare_api.api_spec import InternalError, JobNotFound, JobNotRunning, NoReply

        def command(session: Any) -> dict[str, Any] | None:
            try:
                return dict(session.do_app_command(job, "cos2p", {"verb": verb, **values}))
            except (JobNotRunning, JobNotFound, NoReply, InternalError):
                return None

        return self._call(command)

    # ------------------------------------------------------------ the line

    def _call(self, what: Callable[[Any], T]) -> T:
        deadline = time.monotonic() + self.patience
        while True:
            try:
                with _quiet():
                    if self._session is None:
                        self._session = self._connect()
                    return what(self._session)
            except Exception as error:
                if not _passes(error):
                    raise
                self.close()
                if time.monotonic() > deadline:
                    host, port = server_address(self.kit)
                    raise RunError(f"the server at {host}:{port} does not answer: {error}") from None
                time.sleep(0.5)

    def _connect(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        return new_secure_session(ADMIN, str(self.kit.folder), timeout=5.0, auto_login_max_tries=1)


def _passes(error: Exception) -> bool:
    """Whether a server that is away, or just coming up, explains the error."""
    from nvflare.apis.fl_exception import FLCommunicationError
    from nvflare.fuel.flare_api.api_spec import InternalError, NoConnection, SessionClosed

    return isinstance(error, NoConnection | SessionClosed | FLCommunicationError | InternalError | OSError)


@contextmanager
def _quiet() -> Iterator[None]:
    """NVFlare's admin prints and logs; the user's terminal is ours."""
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def write_job(folder: Path, run: str, recipe: Recipe, expected: list[str]) -> None:
    """A job as NVFlare wants it: who runs what. No code travels; both sides have `cos2p` installed."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    _write(folder / "meta.json", {"name": run, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}, "resource_spec": {}})
    common: dict[str, Any] = {
        "format_version": 2,
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        # Liveness is the coordinator's own: NVFlare never gives a client up.
        "dead_client_grace_period": 1e6,
    }
    _write(
        config / "config_fed_server.json",
        common
        | {
            "server": {"heart_beat_timeout": 600, "task_request_interval": POLL_SECONDS},
            "workflows": [{"id": "fleet", "path": CONTROLLER, "args": {"run": run, "expected": expected}}],
        },
    )
    _write(
        config / "config_fed_client.json",
        common
        | {
            "default_task_fetch_interval": POLL_SECONDS,
            # Not NVFlare's 2 s, 60 s and 5 s: some links take longer.
            "runner_sync_timeout": ASK_SECONDS,
            "max_runner_sync_timeout": 10 * ASK_SECONDS,
            "task_check_timeout": ASK_SECONDS,
            "executors": [{"tasks": ["train"], "executor": {"path": EXECUTOR, "args": {}}}],
        },
    )
    _write(config / "recipe.json", recipe.model_dump(mode="json"))


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")

"""A real fleet for tests: separate processes over the loopback interface, to be killed at will.

Everything is started in folders of the test's own and ended by process id, also when the test fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from cos2p.fleet.admin.local import LocalFleet, make_local_fleet
from cos2p.fleet.admin.machines import Machine
from cos2p.fleet.device.owner import DeviceFile
from cos2p.recipe import Recipe
from cos2p.runtime.model_folder import recipe_toml

Event = dict[str, Any]

_CUSTOM = """
import sys
for part, module in {modules!r}.items():
    if any(part in argument for argument in sys.orig_argv):
        __import__(module)
"""

PATIENCE = float(os.environ.get("COS2P_TEST_PATIENCE", "300"))
"""Seconds a test waits for something to happen: far more than it takes, for machines that are busy otherwise."""

PARTS = {
    "server": "nvflare.private.fed.app.server.server_train",
    "server job": "nvflare.private.fed.app.server.runner_process",
    "client": "nvflare.private.fed.app.client.client_train",
    "client job": "nvflare.private.fed.app.client.worker_process",
    "training": "cos2p.fleet.device.worker",
}


def small_recipe(devices: int = 2, rounds: int = 3, **changes: Any) -> Recipe:
    """Tasks of a fraction of a second on a few images; silence is noticed after six seconds."""
    values: dict[str, Any] = {
        "name": "lab",
        "model": {"size": "vit-nano", "depth": 4},
        "data": {"source": "digits", "train_samples": 40 * devices, "test_samples": 60},
        "fleet": {
            "devices": [{"preset": "laptop", "name": "dev", "count": devices, "rate": 0.25, "batch": 16}],
            "heartbeat_seconds": 6.0,
        },
        "training": {"epochs": 1, "lr": 1e-3},
        "schedule": {"rounds": rounds, "mu": 0.5, "t_clk": 0.3, "redispatch": "at-once", "evaluate_every": 1000},
        "method": {"name": "cos2p", "masks": {"epochs": 1, "rounds": 1}},
    }
    for path, value in changes.items():
        *parents, leaf = path.split("__")
        place = values
        for key in parents:
            place = place.setdefault(key, {})
        place[leaf] = value
    return Recipe.parse(values)


class Lab:
    def __init__(self, folder: Path, recipe: Recipe, devices: Mapping[str, DeviceFile] | None = None) -> None:
        self.folder, self.recipe = folder, recipe
        names = [f"dev-{i + 1}" for i in range(sum(group.count for group in recipe.fleet.devices))]
        plain = {name: DeviceFile(threads=1) for name in names}
        self.fleet: LocalFleet = make_local_fleet(folder / "kits", recipe, {**plain, **(devices or {})})
        self.out = folder / "out"
        self._run: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------ the run

    def start_run(self, *options: str) -> None:
        """`cos2p run RECIPE --fleet kits/admin`, as a user would."""
        path = self.folder / "recipe.toml"
        path.write_text(recipe_toml(self.recipe), encoding="utf-8")
        command = [str(Path(sys.executable).with_name("cos2p")), "run", str(path), "--out", str(self.out), "--json"]
        with (self.folder / "run.log").open("ab") as log:
            self._run = subprocess.Popen(
                [*command, "--fleet", str(self.fleet.admin.folder), *options], stdout=log, stderr=log
            )

    def finish(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """Wait for the run's end; its figures."""
        assert self._run is not None
        try:
            code = self._run.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not finish in {seconds} s\n{self.words()}") from None
        assert code == 0, f"the run ended with code {code}\n{self.words()}"
        return dict(json.loads((self.out / "result.json").read_text(encoding="utf-8")))

    def interrupt(self) -> int:
        """Ctrl-C; the run's exit code."""
        assert self._run is not None
        self._run.send_signal(signal.SIGINT)
        return self._run.wait(PATIENCE)

    def end_run(self) -> dict[str, Any]:
        """Have the server end the run now, with what it has; its figures."""
        folder = self.server_folder
        assert folder is not None
        imports = "import sys; from cos2p.fleet.kit import Kit; "
        imports += "from cos2p.fleet.nvflare.admin_session import AdminSession; "
        ask = "o = AdminSession(Kit.open(sys.argv[1], 'admin')); o.ask(o.job(sys.argv[2])[0], 'end'); o.close()"
        command = [sys.executable, "-c", imports + ask, str(self.fleet.admin.folder), folder.name]
        subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True)
        return self.finish()

    def command(self, *arguments: str) -> str:
        """What another `cos2p` command prints."""
        command = [str(Path(sys.executable).with_name("cos2p")), *arguments]
        return subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True, text=True).stdout

    @property
    def server_folder(self) -> Path | None:
        """The run's folder at the server."""
        return next(iter(sorted((self.fleet.server.kit.folder / "runs").glob("*"))), None)

    def events(self, kind: str = "", client: str = "") -> list[Event]:
        """What the server wrote down so far."""
        folder = self.server_folder
        return [] if folder is None else _events(folder, kind, client)

    def reported(self, kind: str = "", client: str = "") -> list[Event]:
        """What the user's own folder has of it."""
        return _events(self.out, kind, client)

    def wait_for(self, what: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > deadline or (self._run is not None and self._run.poll() not in (None, 0)):
                raise AssertionError(f"it did not happen in {seconds} s\n{self.words()}")
            time.sleep(0.05)
        return found

    def wait_for_event(self, kind: str, client: str = "", count: int = 1) -> Event:
        return dict(self.wait_for(lambda: self.events(kind, client)[count - 1 : count])[0])

    def words(self) -> str:
        """For a failed test: how the logs end."""
        logs = [self.folder / "run.log", self.fleet.server.kit.log]
        logs += [device.kit.log for device in self.fleet.devices.values()]
        said = [
            f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            for log in logs
            if log.exists()
        ]
        reported = [json.dumps(event)[:200] for event in self.events()[-20:]]
        return "\n".join([*said, "--- events", *reported])

    def start_hostile(self, name: str, module: str = "tests.fleet.hostile") -> None:
        """Start a device whose job process loads this module first."""
        with loading(self.folder / "hostile", {"client.worker_process": module}):
            self.machine(name).start()

    # ------------------------------------------------------------ its processes

    def machine(self, name: str) -> Machine:
        return self.fleet.server if name == "server" else self.fleet.devices[name]

    def process(self, name: str, part: str) -> psutil.Process:
        """The process of a machine that does this part."""

        def find() -> list[psutil.Process]:
            found = []
            for process in self.machine(name).processes():
                with suppress(psutil.Error):
                    if PARTS[part] in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
            return found

        process: psutil.Process = self.wait_for(find)[-1]
        return process

    def close(self) -> None:
        if self._run is not None and self._run.poll() is None:
            self._run.kill()
            self._run.wait()
        self.fleet.kill()


def _events(folder: Path, kind: str, client: str) -> list[Event]:
    """Of a log that may be written to at this moment."""
    if not (folder / "events.jsonl").exists():
        return []
    lines = (folder / "events.jsonl").read_text(encoding="ascii").splitlines(keepends=True)
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in events if kind in ("", event["kind"]) and client in ("", event.get("client"))]


@contextmanager
def loading(folder: Path, modules: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started in here import modules before anything else, by what their command line has in it."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_CUSTOM.format(modules=dict(modules)), encoding="utf-8")
    repository = Path(__file__).resolve().parents[2]
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(repository), *([before] if before else [])])
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


@contextmanager
def running_lab(
    folder: Path, recipe: Recipe, devices: Mapping[str, DeviceFile] | None = None, absent: tuple[str, ...] = ()
) -> Iterator[Lab]:
    """A lab with all its machines up, but for those that are `absent`."""
    lab = Lab(folder, recipe, devices)
    everybody = dict(lab.fleet.devices)
    try:
        for name in absent:
            del lab.fleet.devices[name]
        lab.fleet.start()
        lab.fleet.devices = everybody
        yield lab
    finally:
        lab.fleet.devices = everybody
        lab.close()


def slow(seconds: float = 4.0) -> DeviceFile:
    """A device that is at its task for a while: a training of about 0.05 s of processor time is stretched."""
    return DeviceFile(threads=1, slowdown=seconds / 0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

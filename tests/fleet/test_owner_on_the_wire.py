"""A device is its owner's, tried with a real fleet: custom code, a recipe that reaches for secrets, the owner's file.

About a minute on two idle cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cos2p.errors import TrainingError
from cos2p.fleet.device.owner import DeviceFile
from cos2p.fleet.kit import Kit
from tests.fleet.lab import PATIENCE, Lab, running_lab, small_recipe

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

SECRET = "canary-7f31c2"

_CODE = """
from pathlib import Path
from nvflare.apis.executor import Executor
from nvflare.apis.impl.controller import Controller
Path({mark!r}).with_suffix(".imported").touch()
class Guest(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return shareable
class Host(Controller):
    def start_controller(self, fl_ctx): pass
    def stop_controller(self, fl_ctx): pass
    def control_flow(self, abort_signal, fl_ctx): pass
"""

_SUBMIT = """
import os, sys
from cos2p.fleet.kit import Kit
from cos2p.fleet.nvflare.admin_session import AdminSession
server = AdminSession(Kit.open(sys.argv[1], "admin"), patience=5)
try:
    print("submitted", server._call(lambda s: s.submit_job(sys.argv[2])), flush=True)
except Exception as error:
    print("refused", repr(error), flush=True)
os._exit(0)  # NVFlare's threads would wait for more
"""


def job_with_code(folder: Path, mark: Path) -> Path:
    """A job that brings classes of its own, as NVFlare's users write them."""
    config, custom = folder / "app" / "config", folder / "app" / "custom"
    config.mkdir(parents=True)
    custom.mkdir()
    (custom / "guest.py").write_text(_CODE.format(mark=str(mark)))
    (folder / "meta.json").write_text(
        json.dumps({"name": "guest", "min_clients": 1, "deploy_map": {"app": ["@ALL"]}, "resource_spec": {}})
    )
    common = {"format_version": 2, "task_data_filters": [], "task_result_filters": [], "components": []}
    workflow = {"id": "guest", "path": "guest.Host", "args": {}}
    executor = {"tasks": ["*"], "executor": {"path": "guest.Guest", "args": {}}}
    (config / "config_fed_server.json").write_text(json.dumps(common | {"workflows": [workflow]}))
    (config / "config_fed_client.json").write_text(json.dumps(common | {"executors": [executor]}))
    return folder


def submit(lab: Lab, job: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _SUBMIT, str(lab.fleet.admin.folder), str(job)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


def test_no_kit_runs_code_that_a_job_brings(tmp_path: Path) -> None:
    recipe, mark = small_recipe(1, rounds=1), tmp_path / "mark"
    with running_lab(tmp_path, recipe) as lab:
        lab.wait_for(lambda: "Successfully registered" in _log(lab.machine("dev-1").kit))
        done = submit(lab, job_with_code(tmp_path / "guest", mark))
        assert "BYOC not permitted" in done.stdout + done.stderr + _wait_for_words(lab, "server", "BYOC")
        assert not mark.with_suffix(".imported").exists()

        # A server that would allow it: the device has its own word.
        lab.machine("server").kill()
        policy = lab.machine("server").kit.local / "authorization.json"
        values = json.loads(policy.read_text())
        values["permissions"]["project_admin"]["byoc"] = "any"
        policy.write_text(json.dumps(values))
        seen = len(_log(lab.machine("server").kit))
        lab.machine("server").start()
        lab.wait_for(lambda: "the client: dev-1" in _log(lab.machine("server").kit)[seen:])  # it is back
        submit(lab, job_with_code(tmp_path / "again", mark.with_name("device")))
        _wait_for_words(lab, "server", "dev-1: NVFLARE_ERROR: BYOC not permitted")
        time.sleep(3)
        assert not list(lab.machine("dev-1").kit.folder.rglob("guest.py"))


def _log(kit: Kit) -> str:
    return kit.log.read_text(errors="replace") if kit.log.exists() else ""


def _wait_for_words(lab: Lab, name: str, words: str) -> str:
    def found() -> str:
        text = _log(lab.machine(name).kit)
        return text if words in text else ""

    return str(lab.wait_for(found, 60))


def test_a_recipe_gets_nothing_out_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's own log has the whole story; what reached the server and the user has none of it.

    Both sides have the variable: at the server it names the data, on the device it is a secret.
    """
    server, own = tmp_path / "server-data", tmp_path / "own"
    for folder in (server, own):
        folder.mkdir()
    images, labels = np.zeros((60, 8, 8), np.uint8), np.arange(60) % 10
    np.savez(server / "train.npz", image=images, label=labels)
    np.savez(own / "private.npz", patient=images, diagnosis=labels)
    recipe = small_recipe(
        1, rounds=1, data__source="npz", data__path=str(server), data__train="${CANARY}",
        data__train_samples=0, data__test_samples=0,
    )  # fmt: skip
    monkeypatch.setenv("CANARY", "train.npz")
    device = {"dev-1": DeviceFile(data=str(own), threads=1)}
    with running_lab(tmp_path, recipe, device, absent=("dev-1",)) as lab:
        monkeypatch.setenv("CANARY", SECRET)
        lab.machine("dev-1").start()
        assert _refused_run(lab).startswith("owner: its owner has not allowed what the run asks (a path of the recipe")
        monkeypatch.setenv("CANARY", "train.npz")
        (own / "train.npz").symlink_to(own / "private.npz")  # now it is found; its columns are not those asked for
        lab.recipe = small_recipe(
            1, rounds=1, data__source="npz", data__path=str(server), data__train="train.npz",
            data__train_samples=0, data__test_samples=0,
        )  # fmt: skip
        lab.out = tmp_path / "second"
        assert _refused_run(lab).startswith("data: its data cannot be used for this run")
        log = (lab.machine("dev-1").kit.folder / "training.log").read_text()
        assert "is not followed" in log
        assert "patient" in log  # the owner can read what was wrong
        for place in (lab.machine("server").kit.folder, tmp_path / "out", tmp_path / "second"):
            for path in (path for path in place.rglob("*") if path.is_file()):
                content = path.read_bytes()
                for secret in (SECRET, "patient", "diagnosis", str(own)):
                    assert secret.encode() not in content, path


def _refused_run(lab: Lab) -> str:
    """Start the run; the reason why its only device does not take part. The run itself ends, by name."""
    before = (lab.folder / "run.log").stat().st_size if (lab.folder / "run.log").exists() else 0
    lab.start_run()
    assert lab._run is not None
    assert lab._run.wait(PATIENCE) == TrainingError.exit_code
    words = (lab.folder / "run.log").read_text()[before:]
    assert "Traceback" not in words
    return words.partition("dev-1: ")[2]

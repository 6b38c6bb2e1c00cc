"""What is in deploy/ is accepted by those it is for, and calls commands that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from cos2p.cli.app import app

FOLDER = Path(__file__).parents[2] / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))


def test_there_is_one_for_the_server_and_one_for_a_device() -> None:
    assert [unit.name for unit in UNITS] == ["cos2p-device.service", "cos2p-server.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_it(unit: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    # That cos2p is not in /opt/cos2p here says nothing of the unit.
    complaints = [line for line in checked.stderr.splitlines() if unit.name in line and "/opt/cos2p/bin" not in line]
    assert complaints == []


def commands() -> list[str]:
    found = [line.removeprefix("ExecStart=/opt/cos2p/bin/") for u in UNITS for line in u.read_text().splitlines()]
    runs = re.findall(r"^#   docker run .*? (cos2p fleet .*)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    return [line for line in found if line.startswith("cos2p ")] + runs


def test_the_commands_and_their_options_exist() -> None:
    assert len(commands()) == 4
    for line in commands():
        _, group, verb, *rest = shlex.split(line)
        known = get_command(app).commands[group].commands[verb]  # type: ignore[attr-defined]
        options = {name for parameter in known.params for name in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options

"""The fleet's commands as far as they go without a fleet: kits, mistakes, the missing extra, the profile's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cos2p.cli.app import app

PLAN = '[server]\nport = 8102\n[[devices]]\nname = "pi-1"\n'


def cli(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    pytest.importorskip("nvflare")
    plan = tmp_path / "fleet.toml"
    plan.write_text(PLAN, encoding="utf-8")
    code, out, err = cli("fleet", "provision", plan, "-o", tmp_path / "kits", "--json")
    assert code == 0, err
    assert [kit["name"] for kit in json.loads(out)] == ["server", "admin", "pi-1"]
    return tmp_path / "kits"


def test_provisioning_again_says_that_there_is_nothing_to_do(kits: Path) -> None:
    code, out, _ = cli("fleet", "provision", kits.parent / "fleet.toml", "-o", kits)
    assert code == 0
    assert "has its kit in" in out


def test_the_wheel_is_in_the_kits_and_the_next_steps_are_told(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    plan, wheel = tmp_path / "fleet.toml", tmp_path / "cos2p-0.1.0-py3-none-any.whl"
    plan.write_text(PLAN, encoding="utf-8")
    code, _, err = cli("fleet", "provision", plan, "-o", tmp_path / "kits", "--package", wheel)
    assert code == 2
    assert "there is no such wheel or .tar.gz; build both with: make dist" in err
    wheel.write_bytes(b"wheel")
    code, out, err = cli("fleet", "provision", plan, "-o", tmp_path / "kits", "--package", wheel)
    assert code == 0, err
    holders = sorted(path.parent.name for path in (tmp_path / "kits").rglob("*.whl"))
    assert holders == ["pi-1", "server"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "kits").rglob("*.whl"))
    assert f"pip install NAME/{wheel.name} nvflare==2.9.0" in out
    assert "on each device: cos2p fleet join NAME" in out
    assert f"cos2p run RECIPE --fleet {tmp_path / 'kits' / 'admin'}" in out


def test_a_device_that_finds_no_server_says_so_at_once(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    greetings: list[str] = []
    monkeypatch.setattr("cos2p.cli.fleet._keep_running", lambda machine, greeting: greetings.append(greeting))
    monkeypatch.setattr("cos2p.fleet.admin.machines.somebody_listens", lambda host, port: False)
    assert cli("fleet", "join", kits / "pi-1")[0] == 0
    monkeypatch.setattr("cos2p.fleet.admin.machines.somebody_listens", lambda host, port: True)
    assert cli("fleet", "join", kits / "pi-1")[0] == 0
    assert "nobody answers at" in greetings[0]
    assert "waiting for the server (cos2p fleet serve)" in greetings[0]
    assert "nobody answers" not in greetings[1]


def test_mistakes_are_one_line_that_says_what_is_right(kits: Path) -> None:
    for arguments, words in (
        (("serve", kits / "pi-1"), "is the kit of a device, not of a server"),
        (("status", kits / "server"), "is the kit of a server, not of an admin"),
        (("join", kits), "is not a kit; make kits with: cos2p fleet provision"),
        (("join", kits / "pi-1", "--data", kits / "none"), "there is no such file or folder"),
        (("join", kits / "pi-1", "--memory", "1Gx"), "write it like 600MB, 2GiB"),
        (("join", kits / "pi-1", "--device", kits / "none.toml"), "cannot read"),
        (("provision", kits / "none.toml"), "cannot read the fleet plan"),
    ):
        code, _, err = cli("fleet", *arguments)
        assert code == 2, arguments
        assert words in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments",
    ["fleet provision PLAN", "fleet serve K", "fleet join K", "fleet status K", "fleet local quickstart",
     "run quickstart --fleet K"],
)  # fmt: skip
def test_without_the_extra_every_command_says_what_to_install(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PLAN").write_text(PLAN, encoding="utf-8")
    monkeypatch.setattr("cos2p.fleet.nvflare.find_spec", lambda name: None)
    code, _, err = cli(*arguments.split())
    assert code == 10
    assert "pip install nvflare==2.9.0" in err

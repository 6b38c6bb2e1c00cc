from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from cos2p.cli.app import app


def cli(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["coverage", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_papers_first_fleet_covers_every_block() -> None:
    code, out, _ = cli("e1", "--rounds", "120")
    assert code == 0
    assert out.startswith("e1: 8 devices, 8 blocks, schedule rolling, 120 rounds")
    assert out.splitlines()[-3] == "N* = 2"
    assert "nobody is late" in out


def test_two_thin_devices_leave_blocks_out(tiny: Path) -> None:
    """Two devices with one of two blocks each: together they cover both; one alone does not."""
    assert cli(tiny, "--rounds", "10")[1].splitlines()[-3] == "N* = 1"
    alone = cli(tiny, "--rounds", "10", "--set", "fleet.devices.0.count=1")[1]
    assert alone.splitlines()[-3] == "N* = 0; 10 rounds leave a block out"


def test_a_method_without_a_window(tiny: Path) -> None:
    code, _, err = cli(tiny, "--set", 'method={name = "fedavg"}')
    assert code == 2
    assert "no rolling window" in err


def test_a_device_without_a_rate(tiny: Path) -> None:
    code, _, err = cli(tiny, "--set", "fleet.devices.0.rate=")
    assert code == 2
    assert "fleet.devices.0 has no rate" in err

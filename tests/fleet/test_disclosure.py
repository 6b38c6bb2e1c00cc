"""The list of what leaves a device is complete: it is made of the messages' own fields."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cos2p.cli.app import app
from cos2p.fleet.disclosure import MESSAGES, disclosed, of_kit
from cos2p.fleet.kit import Kit
from cos2p.fleet.messages import JoinRequest
from cos2p.messages import Update


def test_every_field_of_every_message_is_explained() -> None:
    found = {(entry.message, entry.field) for entry in disclosed()}
    for message in MESSAGES:
        assert {(message.name, field.name) for field in fields(message.kind)} <= found
    assert {("ready", field.name) for field in fields(JoinRequest)} <= found
    assert {("update", field.name) for field in fields(Update)} <= found
    assert all(entry.size and entry.why and entry.off for entry in disclosed())


def test_the_heads_a_device_sends_are_made_of_these_messages() -> None:
    """The executor builds no head by hand: a key that is in no type would be a field that nobody explains."""
    import cos2p.fleet

    text = (Path(cos2p.fleet.__file__).parent / "nvflare" / "executor.py").read_text()
    for topic in ("hello", "heartbeat", "unfit"):
        at = text.index(f'"{topic}", ')
        assert text[at:].split(", ", 1)[1][0].isupper(), topic  # a class
    assert '{"failure"' not in text
    assert '{"sent"' not in text


def test_a_kit_says_what_its_owner_has_switched_off(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from cos2p.fleet.admin.kits import FleetPlan, provision

    plan = FleetPlan.model_validate({"devices": [{"name": "pi-1"}]})
    kit = next(kit for kit in provision(plan, tmp_path) if kit.name == "pi-1")
    by_field = {(entry.message, entry.field): entry.off for entry in of_kit(kit)}
    assert by_field["ready", "memory"] == "off: 0 is sent"
    assert ("registration", "machine") in by_field
    (kit.folder / "owner.toml").write_text('[send]\nreport = "none"\n[spend]\nmemory = "1GB"\n')
    by_field = {(entry.message, entry.field): entry.off for entry in of_kit(Kit.open(kit.folder, "device"))}
    assert by_field["update", "report"] == "off: owner.toml says so"
    assert by_field["ready", "memory"] == "join without --memory"
    result = CliRunner().invoke(app, ["fleet", "disclose", str(kit.folder), "--json"])
    assert result.exit_code == 0, result.output
    assert {"message", "when", "field", "size", "why", "off"} == set(json.loads(result.stdout)[0])
    assert "delta" in CliRunner().invoke(app, ["fleet", "disclose", str(kit.folder)]).stdout

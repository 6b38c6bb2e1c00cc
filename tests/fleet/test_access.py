"""Which kits are let in, when they end, and how that is told. Without a network."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext

from cos2p.errors import ConfigError, RunError
from cos2p.fleet.admin.kits import FleetPlan, provision
from cos2p.fleet.admin.machines import Machine
from cos2p.fleet.kit import Kit, check_clock, kit_validity
from cos2p.fleet.notices import NoticeReader, Notices
from cos2p.fleet.nvflare.provisioning import settle

PLAN = FleetPlan.model_validate({"server": {"port": 8102}, "devices": [{"name": "pi-1"}, {"name": "pi-2"}]})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kits of a fleet; keys take a second to make."""
    folder = tmp_path_factory.mktemp("made")
    provision(PLAN, folder)
    return folder


@pytest.fixture
def kits(made: Path, tmp_path: Path) -> dict[str, Kit]:
    shutil.copytree(made, tmp_path / "kits")
    roles = {"server": "server", "admin": "admin", "pi-1": "device", "pi-2": "device"}
    return {name: Kit.open(tmp_path / "kits" / name, role) for name, role in roles.items()}  # type: ignore[arg-type]


def test_a_clock_that_is_off_is_named_before_tls_fails(kits: dict[str, Kit]) -> None:
    kit, now = kits["pi-1"], datetime.now(timezone.utc)
    assert check_clock(kit, now) == ""
    for wrong in (now - timedelta(days=1), now + timedelta(days=400)):
        with pytest.raises(ConfigError, match=r"clock says .* holds from .*: set the clock, or.*--renew pi-1"):
            check_clock(kit, wrong)
    last = kit_validity(kit)[1]
    assert "in 9 days; make a new kit with: cos2p fleet provision" in check_clock(
        kit, last - timedelta(days=9, hours=1)
    )


def test_a_key_that_others_can_read_is_not_used(kits: dict[str, Kit]) -> None:
    kit = kits["pi-1"]
    settle(kit)
    (kit.startup / "client.key").chmod(0o644)
    with pytest.raises(ConfigError, match=r"client\.key can be read by others.*chmod -R go="):
        Machine(kit).start()


def test_renewed_kits_have_new_keys_and_keep_what_the_owner_wrote(kits: dict[str, Kit], tmp_path: Path) -> None:
    keys = {name: (kits[name].startup / "client.key").read_bytes() for name in ("pi-1", "pi-2")}
    (kits["pi-1"].folder / "owner.toml").write_text("[spend]\ndisk = 5\n")
    (renewed,) = provision(PLAN, tmp_path / "kits", renew=("pi-1",))
    assert renewed.name == "pi-1"
    assert (renewed.startup / "client.key").read_bytes() != keys["pi-1"]
    assert (kits["pi-2"].startup / "client.key").read_bytes() == keys["pi-2"]
    assert (renewed.folder / "owner.toml").read_text() == "[spend]\ndisk = 5\n"
    assert (renewed.startup / "rootCA.pem").read_bytes() == (kits["server"].startup / "rootCA.pem").read_bytes()
    settle(renewed)
    with pytest.raises(ConfigError, match="--renew pi-9: the fleet has server, admin, pi-1, pi-2"):
        provision(PLAN, tmp_path / "kits", renew=("pi-9",))


def test_two_places_are_two_machines(kits: dict[str, Kit], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(kits["pi-1"].folder, copy)
    reported = []
    for kit in (kits["pi-1"], kits["pi-1"], Kit.open(copy, "device")):
        settle(kit)
        reported.append(json.loads((kit.local / "resources.json").read_text())["machine"])
    assert reported[0] == reported[1] != reported[2]


def test_revoked_and_replaced_kits_stay_out(tmp_path: Path) -> None:
    from cos2p.fleet.nvflare.access import Register

    register = Register(tmp_path)
    register.note("pi-1", 100.0, "token-1")
    assert register.objection("pi-1", 100.0) == ""
    assert "a newer kit of pi-1 has joined" in register.objection("pi-1", 99.0)
    register.note("pi-1", 200.0, "token-2")
    assert "a newer kit" in register.objection("pi-1", 100.0)
    register.revoke("pi-1")
    register = Register(tmp_path)  # a restart of the server forgets nothing
    assert "was revoked" in register.objection("pi-1", 200.0)
    assert "was revoked" in register.objection_to_token("pi-1", "token-2")
    assert "was revoked" in register.objection_to_token("pi-1", "an older token")
    assert register.objection_to_token("pi-2", "of before the register") == ""
    later = 4e9
    assert register.objection("pi-1", later) == ""  # issued after that
    register.note("pi-1", later, "token-3")
    assert register.objection_to_token("pi-1", "token-3") == ""
    assert "token-3" not in (tmp_path / "access.json").read_text()  # whoever reads the file cannot act in its name


def test_a_damaged_register_lets_nobody_in(kits: dict[str, Kit], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bit in a name or a date would let a revoked kit in; NVFlare would go on without a register that is broken."""
    from cos2p.fleet.nvflare import access

    server = kits["server"].folder
    access.Register(server).revoke("pi-1")
    whole = (server / "access.json").read_bytes()
    ends: list[int] = []
    monkeypatch.setattr("os._exit", ends.append)
    engine = SimpleNamespace(args=SimpleNamespace(workspace=str(server)), client_manager=Manager())
    context = SimpleNamespace(get_engine=lambda: engine)
    for damaged in (whole.replace(b"pi-1", b"pi-3"), whole[:-9], b"{" + whole, bytes(len(whole)), b""):
        (server / "access.json").write_bytes(damaged)
        with pytest.raises(RunError, match=r"access\.json is damaged"):
            Kit.open(server, "server")
        access.Access().handle_event(EventType.SYSTEM_START, context)
    assert ends == [1] * 5
    (server / "access.json").write_bytes(whole)
    access.Access().handle_event(EventType.SYSTEM_START, context)
    assert len(ends) == 5
    assert "was revoked" in access.Register(Kit.open(server, "server").folder).objection("pi-1", 0.0)


def test_a_clock_that_is_behind_leaves_no_revoked_kit_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cos2p.fleet.nvflare.access import Register

    register = Register(tmp_path)
    register.note("pi-1", 5000.0, "token-1")
    monkeypatch.setattr("time.time", lambda: 1000.0)
    register.revoke("pi-1")
    assert "was revoked" in register.objection("pi-1", 5000.0)
    assert "was revoked" in register.objection_to_token("pi-1", "token-1")
    assert register.objection("pi-1", 5001.0) == ""  # made anew


class Manager:
    """Of NVFlare's client manager what `Access` wraps."""

    max_num_clients = 100

    def __init__(self) -> None:
        self.name_to_clients: dict[str, SimpleNamespace] = {}

    def authenticate(self, request: tuple[str, float, str], fl_ctx: FLContext) -> SimpleNamespace:
        client = SimpleNamespace(token=f"token of {request[2]}", last_connect_time=time.time())
        self.name_to_clients[request[0]] = client
        return client

    def heartbeat(self, token: str, client_name: str, client_fqcn: str, fl_ctx: FLContext) -> bool:
        return True

    def disable_client(self, client_name: str) -> None: ...
    def enable_client(self, client_name: str) -> None: ...


def test_a_clock_that_jumps_lets_no_twin_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cos2p.fleet.nvflare import access

    monkeypatch.setattr(access, "_who", lambda request: request)
    guard, manager, right = access.Access(), Manager(), time.time
    guard._register, guard._notices = access.Register(tmp_path), Notices(tmp_path)
    guard._wrap(manager)
    assert manager.max_num_clients > 1_000_000, "NVFlare lets a hundred in"
    assert manager.authenticate(("pi-1", 100.0, "first"), FLContext()) is not None
    for jump in (4000.0, -4000.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: right() + jump)
        assert manager.authenticate(("pi-1", 100.0, "thief"), FLContext()) is None
        assert manager.authenticate(("pi-1", 100.0, "first"), FLContext()) is not None


def test_devices_that_register_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    from cos2p.fleet.nvflare.access import Register

    register = Register(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(register.note, f"pi-{n}", float(n), f"token-{n}") for n in range(100)]:
            done.result()
    assert Register(tmp_path).newest == {f"pi-{n}": float(n) for n in range(100)}
    assert len(Register(tmp_path).issued) == 100


def test_a_notice_is_told_once(tmp_path: Path) -> None:
    notices, early = Notices(tmp_path), NoticeReader(tmp_path)
    for _ in range(3):
        notices.add("pi-1", "twice here")
    late = NoticeReader(tmp_path)
    notices.add("pi-2", "revoked")
    assert early.read() == [("pi-1", "twice here"), ("pi-2", "revoked")]
    assert early.read() == []
    assert late.read() == [("pi-2", "revoked")]

"""Plans, kits, and what a client is to the server."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cos2p
from cos2p.errors import BudgetError, ConfigError, MissingExtra, RunError, UpdateRefused
from cos2p.fleet.admin.kits import FleetPlan, provision
from cos2p.fleet.admin.local import slowed, with_devices
from cos2p.fleet.admin.machines import Machine, lock
from cos2p.fleet.device.owner import DeviceFile
from cos2p.fleet.kit import MARK, Kit, server_address
from cos2p.fleet.messages import JoinRequest
from cos2p.fleet.nvflare import require_nvflare
from cos2p.fleet.nvflare.provisioning import CONTROLLER, EXECUTOR, settle
from cos2p.fleet.server.members import member_of
from cos2p.memory.planning import choose
from cos2p.methods import build_method
from cos2p.models.sizes import ModelSettings
from cos2p.models.spec import from_bits
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup, run_context
from tests.fleet.lab import small_recipe
from tests.runtime.texts import text_recipe


def plan(*names: str) -> FleetPlan:
    return FleetPlan.model_validate({"server": {"port": 8102}, "devices": [{"name": name} for name in names]})


def test_a_plan_is_read_and_its_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text('name = "lab"\n[server]\nhost = "10.0.0.1"\n[[devices]]\nname = "pi-1"\n')
    read = FleetPlan.load(path)
    assert (read.server.host, read.server.port, read.devices[0].name) == ("10.0.0.1", 8102, "pi-1")
    for text, wrong in (
        ('[[devices]]\nname = "a b"\n', "devices.0.name"),
        ('[[devices]]\nname = "server"\n', "neither `server` nor `admin`"),
        ('[[devices]]\nname = "a"\n[[devices]]\nname = "A"\n', "two devices are called 'a'"),
        ('[server]\nport = 70000\n[[devices]]\nname = "a"\n', "server.port"),
        ("devices = []\n", "devices"),
        ("[[devices]\n", "not valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=wrong):
            FleetPlan.load(path)
    with pytest.raises(ConfigError, match="cannot read the fleet plan"):
        FleetPlan.load(tmp_path / "none.toml")


def test_a_kit_of_an_older_version_is_named_instead_of_started(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    for kit in provision(plan("pi-1"), tmp_path / "kits"):
        if kit.role == "admin":
            continue
        settle(kit)
        path = kit.local / "resources.json"
        path.write_text(path.read_text().replace("cos2p.fleet.nvflare.", "cos2p.runtime.nvflare."))
        with pytest.raises(
            ConfigError, match=r"was made by an older version \(it names cos2p\.runtime\..*provision again"
        ):
            Machine(kit).start()


def test_only_the_adapter_knows_nvflare() -> None:
    package = Path(cos2p.__file__).parent
    knows = [path for path in package.rglob("*.py") if re.search(r"^\s*(from|import) nvflare", path.read_text(), re.M)]
    assert {path.parent.relative_to(package).as_posix() for path in knows} == {"fleet/nvflare"}


def test_kits_have_keys_of_their_own_and_devices_can_be_added(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    made = provision(plan("pi-1", "pi-2"), tmp_path / "kits")
    assert [kit.name for kit in made] == ["server", "admin", "pi-1", "pi-2"]
    folders = {kit.name: kit.folder for kit in made}
    keys = [(folders[name] / "startup" / "client.key").read_bytes() for name in ("admin", "pi-1", "pi-2")]
    assert len(set(keys)) == 3
    for folder in (*folders.values(), tmp_path / "kits" / "authority"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = (folders["pi-1"] / "startup" / "client.crt").read_bytes()
    added = provision(plan("pi-1", "pi-2", "pi-3"), tmp_path / "kits")
    assert [kit.name for kit in added] == ["pi-3"]
    assert (folders["pi-1"] / "startup" / "client.crt").read_bytes() == before
    roots = {(tmp_path / "kits" / name / "startup" / "rootCA.pem").read_bytes() for name in ("pi-1", "pi-3", "server")}
    assert len(roots) == 1  # one authority vouches for all
    assert server_address(added[0]) == ("127.0.0.1", 8102)


def test_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    provision(plan("pi-1"), tmp_path)
    keys = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"client.key", "server.key"} <= {path.name for path in keys}
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in keys} == {"0o600"}


def test_no_admin_brings_code_or_reads_files(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    for kit in provision(plan("pi-1"), tmp_path):
        if kit.role == "admin":
            continue
        (rights,) = json.loads((kit.local / "authorization.json").read_text())["permissions"].values()
        assert rights["byoc"] == rights["shell_commands"] == "none"
        assert rights["submit_job"] == "any"
        assert (rights["view"] == "any") == (kit.role == "server")


def test_a_bystander_that_names_the_kit_is_left_alone(tmp_path: Path) -> None:
    """Whoever looks at a kit's folder, or copies it, is no process of the kit."""
    pytest.importorskip("nvflare")
    kit = provision(plan("pi-1"), tmp_path)[-1]
    sleep = [sys.executable, "-c", "import time; time.sleep(600)", str(kit.folder)]
    with (
        subprocess.Popen(sleep) as bystander,
        subprocess.Popen(sleep, env={**os.environ, MARK: str(kit.folder)}) as own,
    ):
        try:
            machine = Machine(kit)
            while own.poll() is None and not machine.processes():  # Linux shows its environment a moment later
                time.sleep(0.01)
            assert [process.pid for process in machine.processes()] == [own.pid]
            with pytest.raises(RunError, match=f"in use by process {own.pid}"):
                lock(kit)
            machine.kill()
            assert own.wait(30) == -signal.SIGKILL
            assert bystander.poll() is None
            lock(kit)
        finally:
            bystander.kill()
            own.kill()


def test_kits_let_in_only_what_is_ours(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    kits = {kit.name: kit for kit in provision(plan("pi-1"), tmp_path)}
    for name, ours in (("server", CONTROLLER), ("pi-1", EXECUTOR)):
        resources = json.loads((kits[name].local / "resources.json").read_text())
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert ours in resources["class_allow_list"]
        assert all(path.startswith("cos2p.") for path in resources["class_allow_list"])
        comm = json.loads((kits[name].local / "comm_config.json").read_text())
        assert comm["streaming_max_blob_size"] <= 8 * 2**20
        assert comm["allow_adhoc_conns"] is False
    moved = tmp_path / "elsewhere"
    kits["server"].folder.rename(moved)
    settle(Kit.open(moved, "server"))
    text = (moved / "local" / "resources.json").read_text()
    assert str(moved) in text
    assert "/tmp/nvflare" not in text


def test_a_kit_is_opened_for_what_it_is(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    kits = {kit.name: kit for kit in provision(plan("pi-1"), tmp_path)}
    assert Kit.open(kits["pi-1"].folder, "device").name == "pi-1"
    with pytest.raises(ConfigError, match="the kit of an admin, not of a device"):
        Kit.open(kits["admin"].folder, "device")
    with pytest.raises(ConfigError, match="is not a kit; make kits with"):
        Kit.open(tmp_path, "server")


def test_without_the_extra_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cos2p.fleet.nvflare.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install nvflare==2.9.0"):
        require_nvflare()


# ---------------------------------------------------------------- members


def test_facts_from_outside_are_checked() -> None:
    assert JoinRequest.from_dict({"samples": 5, "test_samples": 1}) == JoinRequest(5, 1)
    for wrong in ({}, {"samples": 0, "test_samples": 0}, {"samples": "x", "test_samples": 0},
                  {"samples": 1, "test_samples": 0, "memory": -1}, {"samples": 10**12, "test_samples": 0},
                  {"samples": 1, "test_samples": 0, "flops": float("nan")},
                  {"samples": 1, "test_samples": 0, "rows": "xy"}, {"samples": 1, "test_samples": 0, "rows": "0"},
                  {"samples": 1, "test_samples": 0, "texts": 7}, {"samples": 2, "test_samples": 0, "texts": [8, 17]},
                  {"samples": 2, "test_samples": 0, "texts": [8, 7]},
                  {"samples": 2, "test_samples": 0, "texts": [-1, -1]},
                  {"samples": 1, "test_samples": 0, "rows": "ff" * 2**20}):  # fmt: skip
        with pytest.raises(UpdateRefused):
            JoinRequest.from_dict(wrong)


def test_a_named_device_keeps_the_recipes_rate_and_brings_its_own_memory() -> None:
    recipe = small_recipe(2)
    config = build_run_setup(recipe).config
    member = member_of(recipe, config, "dev-1", JoinRequest(50, 10, memory=10**9, flops=3e9))
    assert (member.rate, member.batch, member.samples) == (0.25, 16, 50)
    assert (member.device.memory, member.device.flops) == (10**9, 3e9)


def test_the_tokens_a_device_names_decide_what_fits_it(tmp_path: Path) -> None:
    recipe = text_recipe(tmp_path).model_copy(update={"model": ModelSettings(size="bert-nano", dim=256, heads=8)})
    config, device = build_run_setup(recipe).config, "jetson-agx-orin-64gb-1"
    member = member_of(recipe, config, device, JoinRequest(50, 10, rows="0302"))
    assert from_bits(member.rows) == (0, 1, 9)
    few, unknown = (
        [member_of(recipe, config, device, JoinRequest(50, 10, m * 10**6, rows=r)).rate for m in (20, 25, 30, 35)]
        for r in ("0302", "")
    )
    assert all(less <= more for less, more in zip(unknown, few, strict=True))
    assert unknown != few
    for wrong in ("00", "00" * 40 + "01"):
        with pytest.raises(UpdateRefused, match="the model knows 0 to 258"):
            member_of(recipe, config, device, JoinRequest(50, 10, rows=wrong))


def test_a_device_says_how_long_its_texts_are_and_none_is_longer_than_the_model_takes(tmp_path: Path) -> None:
    recipe = text_recipe(tmp_path).model_copy(update={"model": ModelSettings(size="bert-nano", dim=256, heads=8)})
    config, device = build_run_setup(recipe).config, "jetson-agx-orin-64gb-1"
    assert JoinRequest.from_dict({"samples": 50, "test_samples": 10, "texts": [8, 400]}).texts == (8, 400)
    assert member_of(recipe, config, device, JoinRequest(50, 10, texts=(8, 400))).texts == (8, 400)
    with pytest.raises(UpdateRefused, match="its longest text has 10000 tokens"):
        member_of(recipe, config, device, JoinRequest(50, 10, texts=(10_000, 20_000)))


def test_a_rate_that_does_not_fit_is_not_begun_with() -> None:
    recipe = small_recipe(1, model__dim=128, fleet__devices=[{"preset": "laptop", "name": "dev", "rate": 1.0}])
    config = build_run_setup(recipe).config
    assert member_of(recipe, config, "dev-1", JoinRequest(50, 10)).rate == 1.0
    assert member_of(recipe, config, "dev-1", JoinRequest(50, 10, memory=12_000_000)).rate < 1.0
    with pytest.raises(BudgetError, match=r"dev-1: even a window.* 10\.0 kB"):
        member_of(recipe, config, "dev-1", JoinRequest(50, 10, memory=10_000))


def test_a_rate_is_chosen_by_the_tasks_of_the_method() -> None:
    """Where blocks stay around a window, a device that joins gets a rate with which its tasks fit all the same."""
    device = {"preset": "laptop", "name": "dev", "batch": 8}
    recipe = small_recipe(1, model__dim=64, model__depth=6, fleet__devices=[device])
    kept = {
        "name": "cos2p",
        "window": {"rest": "kept"},
        "masks": {"heads": "random", "units": "random"},
        "exits": {"kind": "none"},
    }
    around = Recipe.parse({**recipe.model_dump(mode="json", exclude_none=True), "method": kept})
    config, facts = build_run_setup(recipe).config, JoinRequest(50, 10, memory=5_000_000)
    plain, member = (member_of(given, config, "dev-1", facts) for given in (recipe, around))
    assert member.part != plain.part
    context = run_context(around, config, {member.name: member})
    assert choose(build_method(around.method, context), member) == member.part
    with pytest.raises(BudgetError, match="even the head alone needs"):
        member_of(around, config, "dev-1", JoinRequest(50, 10, memory=200_000))


def test_device_files_survive(tmp_path: Path) -> None:
    DeviceFile(data="/d", memory=5, slowdown=2.0).write(tmp_path)
    assert DeviceFile.read(tmp_path) == DeviceFile(data="/d", memory=5, slowdown=2.0)
    (tmp_path / "device.json").write_text("{")
    with pytest.raises(ConfigError, match="join again"):
        DeviceFile.read(tmp_path)


# ---------------------------------------------------------------- local fleets


@pytest.mark.parametrize(
    ("count", "expected"), [(8, [1, 3, 4]), (4, [1, 1, 2]), (3, [1, 1, 1]), (2, [0, 1, 1]), (16, [2, 6, 8])]
)
def test_a_fleet_keeps_its_mix_at_any_size(count: int, expected: list[int]) -> None:
    recipe = with_devices(Recipe.load("quickstart"), count)
    presets = ["jetson-xavier-nx-8gb", "jetson-agx-xavier-32gb", "jetson-agx-orin-64gb"]
    counts = [sum(g.count for g in recipe.fleet.devices if g.preset == preset) for preset in presets]
    assert sum(counts) == count
    assert counts == expected


def test_slow_devices_have_the_ratios_of_the_recipe() -> None:
    recipe = small_recipe(2, fleet__devices=[{"preset": "laptop", "name": "a", "flops": 4e9},
                                            {"preset": "laptop", "name": "b", "flops": 1e9}])  # fmt: skip
    devices = slowed(recipe)
    assert {name: device.slowdown for name, device in devices.items()} == {"a-1": 1.0, "b-1": 4.0}

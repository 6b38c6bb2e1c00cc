"""What can happen to a fleet, in real processes and with kill -9. `make test-fleet`; see there how long it takes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cos2p.fleet.device.owner import DeviceFile
from tests.fleet.lab import Lab, running_lab, slow, small_recipe
from tests.fleet.proxy import Wire

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

ENDLESS = 100_000


def reported(name: str, value: float, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n  {name}: {value:.1f}", flush=True)


def version(lab: Lab) -> int:
    return max((event["version"] for event in lab.events("aggregated")), default=0)


def test_late_and_lost_clients(tmp_path: Path) -> None:
    """One comes late, one never comes, one goes and never comes back: a synchronous run waits for none of them."""
    recipe = small_recipe(4, rounds=ENDLESS, method__name="cos2p-sync")
    devices = {f"dev-{i}": slow(0.5) for i in (1, 2, 3, 4)}
    with running_lab(tmp_path, recipe, devices, absent=("dev-3", "dev-4")) as lab:
        lab.start_run()
        # dev-4 never comes at all; the run begins without those two when its patience is over
        lab.wait_for_event("aggregated")
        assert {event["client"] for event in lab.events("joined")} == {"dev-1", "dev-2"}
        lab.machine("dev-3").start()
        lab.wait_for_event("merged", "dev-3")
        lab.machine("dev-1").kill()
        lab.wait_for_event("left", "dev-1")
        reached = version(lab)
        lab.wait_for(lambda: version(lab) >= reached + 3)
        result = lab.end_run()
    assert result["devices"]["dev-3"]["updates"] > 0
    assert "dev-4" not in result["devices"]


def test_all_clients_gone_for_half_a_minute(tmp_path: Path) -> None:
    with running_lab(tmp_path, small_recipe(2, rounds=ENDLESS), {"dev-1": slow(0.5), "dev-2": slow(0.5)}) as lab:
        lab.start_run()
        lab.wait_for_event("merged", count=3)
        for name in ("dev-1", "dev-2"):
            lab.machine(name).kill()
        for name in ("dev-1", "dev-2"):
            lab.wait_for_event("left", name)
        reached = version(lab)
        time.sleep(30)
        assert version(lab) <= reached + 1
        merged = len(lab.events("merged"))
        for name in ("dev-1", "dev-2"):
            lab.machine(name).start()
        lab.wait_for_event("merged", count=merged + 4)
        lab.end_run()


@pytest.mark.parametrize("what", ["the job's server process", "the whole server"])
def test_the_server_is_killed(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = small_recipe(2, rounds=ENDLESS, run__checkpoint_seconds=0.0)
    with running_lab(tmp_path, recipe, {"dev-1": slow(0.5), "dev-2": slow(0.5)}) as lab:
        lab.start_run()
        lab.wait_for(lambda: version(lab) >= 3)
        reached, tasks = version(lab), len(lab.events("dispatched"))
        killed = time.monotonic()
        if what == "the whole server":
            lab.machine("server").kill()
            time.sleep(1.0)
            lab.machine("server").start()
        else:
            lab.process("server", "server job").kill()
        joined = len(lab.events("joined"))
        lab.wait_for(lambda: len(lab.events("joined")) > joined)
        lab.wait_for(lambda: len(lab.events("dispatched")) > tasks - 4)
        reported(f"seconds from the kill of {what} to the first new task", time.monotonic() - killed, capsys)
        lab.wait_for(lambda: version(lab) >= reached + 3)
        rounds = [event["version"] for event in lab.events("aggregated")]
        assert rounds == list(range(1, len(rounds) + 1))  # none lost, none told twice
        assert len(lab.events("started")) == 1
        result = lab.end_run()
        assert result["rounds"] == version(lab)
        assert (lab.out / "events.jsonl").read_bytes() == (lab.server_folder / "events.jsonl").read_bytes()  # type: ignore[operator]


def test_ctrl_c_pauses_and_resume_goes_on(tmp_path: Path) -> None:
    recipe = small_recipe(2, rounds=12)
    with running_lab(tmp_path, recipe, {"dev-1": slow(0.5), "dev-2": slow(0.5)}) as lab:
        lab.start_run()
        lab.wait_for(lambda: version(lab) >= 2)
        assert lab.interrupt() == 130
        reached = version(lab)
        time.sleep(3.0)
        assert version(lab) == reached
        lab.start_run("--resume")
        result = lab.finish()
    assert result["rounds"] == 12
    assert [event["version"] for event in lab.events("aggregated")] == list(range(1, 13))


def test_a_transfer_is_cut_and_a_client_killed_in_the_middle_of_one(tmp_path: Path) -> None:
    """A model of 8 MB over a link of 2 MB/s: there is always something under way."""
    recipe = small_recipe(
        2, rounds=ENDLESS, model__dim=320, model__mlp=1280, data__train_samples=16, data__validation_fraction=0.0,
        fleet__devices=[{"preset": "laptop", "name": "dev", "count": 2, "rate": 0.5, "batch": 8}],
        method__masks={"epochs": 0}, fleet__heartbeat_seconds=10.0,
    )  # fmt: skip
    lab = Lab(tmp_path, recipe)
    wires = [Wire(lab.machine(name).kit, rate=2e6) for name in ("dev-1", "dev-2")]
    try:
        lab.fleet.start()
        lab.start_run()
        lab.wait_for_event("merged", "dev-1")
        for _ in range(3):  # connections break while chunks are under way; they are sent again
            time.sleep(1.5)
            wires[0].cut()
        lab.wait_for_event("merged", "dev-1", len(lab.events("merged", "dev-1")) + 2)
        lab.wait_for(lambda: any((lab.machine("server").kit.folder / "spool" / "in").glob("dev-2")))
        lab.machine("dev-2").kill()  # while its update arrives
        joined = len(lab.events("joined", "dev-2"))
        lab.wait_for_event("left", "dev-2")
        lab.machine("dev-2").start()
        lab.wait_for_event("joined", "dev-2", joined + 1)
        lab.wait_for_event("merged", "dev-2", len(lab.events("merged", "dev-2")) + 1)
        result = lab.end_run()
        assert result["refused"] == 0
    finally:
        lab.close()
        for wire in wires:
            wire.close()


def test_a_slow_link_is_waited_for(tmp_path: Path) -> None:
    """0.4 MB/s, a tenth of a second of training: the link is everything, and nobody is taken for dead."""
    recipe = small_recipe(
        1, rounds=3, model__dim=192, model__mlp=768, data__train_samples=10, data__validation_fraction=0.0,
        fleet__devices=[{"preset": "laptop", "name": "dev", "rate": 1.0, "batch": 8}],
        method__masks={"epochs": 0}, fleet__heartbeat_seconds=15.0,
    )  # fmt: skip
    lab = Lab(tmp_path, recipe)
    wire = Wire(lab.machine("dev-1").kit, rate=4e5)
    try:
        lab.fleet.start()
        lab.start_run()
        result = lab.finish(600)
        assert result["rounds"] == 3
        assert not lab.events("left")
        arrived = lab.events("arrived")[-1]
        assert arrived["measured"]["upload"] > arrived["bytes"] / 4e5 * 0.9
    finally:
        lab.close()
        wire.close()


def test_out_of_memory_on_a_device(tmp_path: Path) -> None:
    """A real cap: the first task does not fit, the next one is cut to what does."""
    recipe = small_recipe(
        1, rounds=3, model__dim=320, model__mlp=1280, data__train_samples=20, fleet__enforce_memory=False,
        fleet__devices=[{"preset": "laptop", "name": "dev", "rate": 1.0, "batch": 8}],
        method__masks={"heads": "fixed", "units": "fixed"},
    )  # fmt: skip
    with running_lab(tmp_path, recipe, {"dev-1": DeviceFile(threads=1, memory=60_000_000)}) as lab:
        lab.start_run()
        result = lab.finish()
    failed, lowered = lab.events("failed")[0], lab.events("lowered")[0]
    assert "out of memory: the cap is 60.0 MB" in failed["reason"]
    assert failed["measured"]["peak"] <= 80_000_000
    assert lowered["was"] == 1.0
    assert result["devices"]["dev-1"]["rate"] == lowered["rate"] < 1.0
    assert len(lab.events("failed")) == 1  # the ledger was right: no second one
    sizes = [event["bytes"] for event in lab.events("dispatched")]
    assert sizes[1] < sizes[0]

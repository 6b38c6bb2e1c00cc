"""A real fleet behind links as devices have them: each profile of docs/results/network.md, and what must hold."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from cos2p.devices.device import LINKS, device, network_figures
from cos2p.runtime.simulation import run
from tests.fleet.lab import small_recipe
from tests.network.lab import NetworkLab, network_lab, reason_to_skip
from tests.network.links import PROFILES, Conditions

pytestmark = [pytest.mark.network, pytest.mark.slow]

SAME_LINK = 0.15
"""How far a simulation with the same link may be from the run."""


@pytest.fixture(autouse=True)
def _possible_here() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)


@contextmanager
def fleet(
    folder: Path, links: Conditions | Mapping[str, Conditions], devices: int = 2, **changes: Any
) -> Iterator[NetworkLab]:
    with network_lab(folder, small_recipe(devices=devices, **changes), links) as lab:
        lab.start_run()
        yield lab
        figures(lab)


def figures(lab: NetworkLab) -> None:
    """What a reader of the table wants to know of this run, in the test's output."""
    links = lab.network.links.values()
    traffic = lab.events("traffic")
    found = {
        "seconds": round(lab.events()[-1]["t"], 1) if lab.events() else None,
        "updates": len(lab.events("merged")),
        "payload": sum(event["tensors_down"] + event["tensors_up"] for event in traffic),
        "frames": sum(event["wire_down"] + event["wire_up"] for event in traffic),
        "link": sum(link.bytes_up + link.bytes_down for link in links),
        "twice": sum(link.repeated for link in links),
        "rates": [event["measured"]["down_rate"] for event in lab.events("arrived")][-1:],
    }
    print(json.dumps(found))


def in_one_piece(lab: NetworkLab) -> None:
    """Every update that was given back counts, and counts once; nobody was taken for dead."""
    merged = Counter(event["task"] for event in lab.events("merged"))
    assert merged.keys() == {event["task"] for event in lab.events("arrived")}
    assert set(merged.values()) == {1}
    assert not lab.events("left")


def sent_twice(lab: NetworkLab) -> float:
    """Share of the bytes on the links that had been there before: by TCP, or because a chunk was sent again."""
    traffic = lab.events("traffic")
    again = sum(link.repeated for link in lab.network.links.values())
    frames = sum(event["wire_down"] + event["wire_up"] for event in traffic)
    tensors = sum(event["tensors_down"] + event["tensors_up"] for event in traffic)
    return (again + frames - tensors) / tensors


def test_3g_takes_as_long_as_simulated(tmp_path: Path) -> None:
    changes = {"rounds": 6, "fleet__heartbeat_seconds": 20.0}
    with fleet(tmp_path, PROFILES["3g"], **changes) as lab:
        real = lab.finish(seconds=240)
        in_one_piece(lab)
        for event in lab.events("arrived"):
            assert 0 < event["measured"]["up_rate"] <= 1.05 * PROFILES["3g"].up / 8
            assert 0 < event["measured"]["down_rate"] <= 1.05 * PROFILES["3g"].down / 8
    recipe = small_recipe(devices=2, **changes)
    (group,) = recipe.fleet.devices
    behind = recipe.fleet.model_copy(update={"devices": (group.model_copy(update={"link": "3g"}),)})
    simulated = run(recipe.model_copy(update={"fleet": behind}), tmp_path / "simulated")
    print(json.dumps({"real": real["virtual_seconds"], "simulated": simulated["virtual_seconds"]}))
    assert real["virtual_seconds"] == pytest.approx(simulated["virtual_seconds"], rel=SAME_LINK)


def test_edge_late_work_is_kept_and_nobody_dead_while_bytes_flow(tmp_path: Path) -> None:
    """A task of 200 kB takes half a minute, more than the silence after which a device is taken for gone."""
    with fleet(tmp_path, PROFILES["edge"], rounds=2, fleet__heartbeat_seconds=20.0) as lab:
        lab.finish(seconds=400)
        in_one_piece(lab)
        assert any(event["staleness"] > 0 for event in lab.events("merged"))
        seconds = [event["measured"]["download"] for event in lab.events("arrived")]
        assert max(seconds) > 20.0


def test_flaky_bytes_are_sent_once(tmp_path: Path) -> None:
    with fleet(tmp_path, PROFILES["flaky"], rounds=22, fleet__heartbeat_seconds=45.0) as lab:
        lab.finish(seconds=400)
        in_one_piece(lab)
        assert lab.events()[-1]["t"] > 120, "an outage fell into the run"
        assert sent_twice(lab) <= 0.10


def test_far_five_seconds_one_way(tmp_path: Path) -> None:
    """Every question takes ten seconds, and the first bytes of a connection several of them: ten minutes in all."""
    with fleet(tmp_path, PROFILES["far"], rounds=1, fleet__heartbeat_seconds=60.0) as lab:
        lab.finish(seconds=1200)
        in_one_piece(lab)
        assert lab.events("merged")


def test_lossy_half_of_all_packets(tmp_path: Path) -> None:
    """Few bytes a second are left of it: the run ends at its limit, and says so, if no update comes through before."""
    limit = {"schedule__virtual_seconds": 200.0, "fleet__heartbeat_seconds": 60.0}
    with fleet(tmp_path, PROFILES["lossy"], rounds=1, **limit) as lab:
        assert lab.finish(seconds=500)["finished"] in ("rounds", "virtual time")


def test_ninety_percent_of_the_devices_gone(tmp_path: Path) -> None:
    with fleet(tmp_path, Conditions(), devices=10, rounds=8, fleet__heartbeat_seconds=6.0) as lab:
        lab.wait_for_event("merged", count=5)
        for name, link in lab.network.links.items():
            link.cut = name != "dev-1"
        lab.wait_for(lambda: len(lab.events("left")) == 9, seconds=60)
        lab.finish(seconds=120)
        assert lab.events("merged")[-1]["client"] == "dev-1"


def test_nat_forgets_and_the_address_changes(tmp_path: Path) -> None:
    """The device's router reconnects in the middle of a transfer: nothing that was sent before is answered any more."""
    with fleet(tmp_path, PROFILES["3g"], rounds=8, fleet__heartbeat_seconds=60.0) as lab:
        link = lab.network.links["dev-1"]
        link.mapping_seconds = 60.0
        lab.wait_for_event("merged", "dev-1")
        lab.wait_for_event("dispatched", "dev-1", count=2)
        time.sleep(1.0)
        link.change_address(IPv4Address("10.9.1.2"))
        gone = link.bytes_up
        began = time.monotonic()
        lab.wait_for(lambda: link.answered > began, seconds=60)
        print(json.dumps({"back after": link.answered - began, "bytes": link.bytes_up - gone}))
        assert link.answered - began < 30
        lab.finish(seconds=240)
        in_one_piece(lab)
        tasks = Counter(event["task"] for event in lab.events("dispatched", "dev-1"))
        assert set(tasks.values()) == {1}


def test_partition_the_other_half_goes_on(tmp_path: Path) -> None:
    with fleet(tmp_path, replace(PROFILES["3g"]), devices=4, rounds=1000, fleet__heartbeat_seconds=20.0) as lab:
        lab.wait_for_event("merged", count=4)
        apart = ("dev-3", "dev-4")
        for name in apart:
            lab.network.links[name].cut = True
        began = lab.events()[-1]["t"]
        time.sleep(90)
        for name in apart:
            lab.network.links[name].cut = False
        whole = lab.events()[-1]["t"]
        meanwhile = Counter(event["client"] for event in lab.events("merged") if began + 5 < event["t"] < whole)
        assert set(meanwhile) == {"dev-1", "dev-2"}
        for name in apart:
            lab.wait_for(lambda name=name: [e for e in lab.events("merged", name) if e["t"] > whole], seconds=90)
        lab.end_run()
        assert max(Counter(event["task"] for event in lab.events("merged")).values()) == 1


def test_presets_are_what_the_links_can_carry() -> None:
    for name in LINKS:
        simulated = device("laptop", name="one", **network_figures(LINKS[name]))
        assert 0.65 * PROFILES[name].down / 8 < simulated.down < PROFILES[name].down / 8
        assert 0.65 * PROFILES[name].up / 8 < simulated.up < PROFILES[name].up / 8

"""Sixty rounds of four clients with ten megabytes each: the server's memory stays, and the wire carries little else.

Bytes on the wire are counted outside of all of it, on the TCP connection: TLS, NVFlare's envelopes and its questions
for work included. About four minutes.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.fleet.lab import Lab, small_recipe
from tests.fleet.proxy import Wire

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

ROUNDS, CLIENTS = 60, 4


def test_memory_and_wire_over_sixty_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = small_recipe(
        CLIENTS, rounds=ROUNDS, model__dim=224, model__mlp=896, data__train_samples=5 * CLIENTS,
        data__validation_fraction=0.0, data__test_samples=20, partition__kind="iid",
        fleet__devices=[{"preset": "laptop", "name": "dev", "count": CLIENTS, "rate": 1.0, "batch": 4}],
        method__name="cos2p-sync", method__masks={"epochs": 0}, fleet__heartbeat_seconds=60.0,
    )  # fmt: skip
    lab = Lab(tmp_path, recipe)
    wires = {name: Wire(device.kit) for name, device in lab.fleet.devices.items()}
    try:
        lab.fleet.start()
        lab.start_run()
        sizes = watch(lab)
        result = lab.finish(1200)
        carried = {name: (wire.down, wire.up) for name, wire in wires.items()}
        tensors = {event["client"]: event for event in lab.events("traffic")}
    finally:
        lab.close()
        for wire in wires.values():
            wire.close()
    payload = result["bytes_down"] / sum(device["tasks"] for device in result["devices"].values())
    early, late = mean(sizes, 10, 20), mean(sizes, ROUNDS - 10, ROUNDS)
    shares = {
        name: (carried[name][0] / own["tensors_down"] - 1, carried[name][1] / own["tensors_up"] - 1)
        for name, own in tensors.items()
    }
    with capsys.disabled():
        print(f"\n  payload {payload / 1e6:.1f} MB, {result['wall_seconds'] / ROUNDS:.2f} s a round")
        print(f"  server process: {early / 1e6:.0f} MB in rounds 10-20, {late / 1e6:.0f} MB in the last ten")
        print(f"  wire beyond tensors: {max(max(pair) for pair in shares.values()):.2%} at most")
    assert 9e6 < payload < 12e6
    assert result["updates"] == ROUNDS * CLIENTS
    assert late < 1.10 * early
    assert shares.keys() == wires.keys()
    assert all(share < 0.02 for pair in shares.values() for share in pair)


def watch(lab: Lab) -> dict[int, int]:
    """Resident memory of the run's process at the server, by round."""
    lab.wait_for_event("started")
    process = lab.process("server", "server job")
    sizes: dict[int, int] = {}

    def over() -> bool:
        rounds = len(lab.events("aggregated"))
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            sizes[rounds] = max(sizes.get(rounds, 0), process.memory_info().rss)
        return rounds >= ROUNDS

    lab.wait_for(over, 1200)
    return sizes


def mean(sizes: dict[int, int], low: int, high: int) -> float:
    chosen = [size for rounds, size in sizes.items() if low <= rounds < high]
    assert chosen
    return sum(chosen) / len(chosen)

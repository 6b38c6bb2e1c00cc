"""What the server of a large model does otherwise, played with a small one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cos2p.fleet.device.worker import read_task
from cos2p.messages import Task
from cos2p.messages.envelope import mapped
from cos2p.runtime.simulation import run
from cos2p.server.protocol import TimerFired
from cos2p.server.server import Server
from tests.runtime.played import answer, join_all, sent, server
from tests.runtime.small import small
from tests.tiny import copy, read_update, same


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is a large one."""
    monkeypatch.setattr("cos2p.aggregation.merge.LARGE_BYTES", 0)
    monkeypatch.setattr("cos2p.server.orders.SPOOLED_BYTES", 0)


def two_rounds(played: Server) -> list[dict[str, torch.Tensor]]:
    """pi-2's update is a version late."""
    join_all(played)
    late, seen = answer(played, "pi-2"), [copy(played.weights)]
    for client in ("pi-0", "pi-1"):
        played.receive(client, answer(played, client))
    played.handle(TimerFired("round 0"))
    seen.append(copy(played.weights))
    played.receive("pi-2", late)
    played.receive("pi-0", answer(played, "pi-0"))
    played.handle(TimerFired("round 1"))
    return [*seen, copy(played.weights), copy(played.versions[0]) if 0 in played.versions.held else {}]


@pytest.mark.parametrize("method", ["cos2p", "fedbuff", "fedavg"])
def test_the_same_versions_bit_for_bit(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = two_rounds(server(method=method))
    monkeypatch.setattr("cos2p.aggregation.merge.LARGE_BYTES", 0)
    monkeypatch.setattr("cos2p.server.orders.SPOOLED_BYTES", 0)
    played = server(method=method)
    played.versions.spool = tmp_path
    for one, other in zip(plain, two_rounds(played), strict=True):
        assert same(one, other)
    assert not list(tmp_path.iterdir())


def test_a_version_is_not_changed_by_the_round_that_follows(large: None) -> None:
    """The sums became the version: the next round must begin with others."""
    played = server(mu=1.0, t_clk=0.0)
    join_all(played)
    for client in ("pi-0", "pi-1", "pi-2"):
        played.receive(client, answer(played, client))
    held = played.weights
    before = copy(held)
    assert played.versions.current == 1
    played.receive("pi-0", answer(played, "pi-0"))
    assert same(before, held)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_a_task_written_piece_by_piece_is_the_task(precision: str, tmp_path: Path) -> None:
    played = server(settings={"prefix": {"precision": precision}})
    for order in sent(join_all(played)):
        path, task = tmp_path / order.client, played.orders.task(order)
        played.orders.write_task(order, path)
        for read in (Task.from_bytes(path.read_bytes()), read_task(path)):
            assert read.order == task.order
            assert same(read.weights, task.weights)
            assert same(read.prefix, task.prefix)


def test_an_update_from_a_file_is_the_update(tmp_path: Path) -> None:
    played = server()
    join_all(played)
    update, path = answer(played, "pi-0"), tmp_path / "update"
    update.write(path)
    assert path.read_bytes() == update.to_bytes()
    read = read_update(mapped(path))
    path.unlink()  # what is mapped stays readable
    assert same(read.delta, update.delta)
    assert (read.client, read.task, read.spec, read.samples) == (
        update.client,
        update.task,
        update.spec,
        update.samples,
    )


@pytest.mark.slow  # 10 s
def test_a_run_of_a_large_model_gives_the_same_and_its_checkpoint_too(tmp_path: Path, large: None) -> None:
    """Checkpoints are written next to the run, which is then gone on with from one of them."""
    whole = run(small(), tmp_path / "whole")
    assert (tmp_path / "whole" / "checkpoint.safetensors").exists()
    (tmp_path / "whole" / "result.json").unlink()
    again = run(small(), tmp_path / "whole", resume=True)
    assert {k: v for k, v in whole.items() if k != "wall_seconds"} == {
        k: v for k, v in again.items() if k != "wall_seconds"
    }

"""The promise of the ledger against the resident memory of a real process that trains adapters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cos2p import ModelConfig
from cos2p.costs.ledger import Ledger
from cos2p.messages import Order, Task
from cos2p.methods import make_contract, make_trainer
from cos2p.processes.children import CHILD_ENV
from tests.methods.adapters.test_model import TARGETS, adapted, lora_order

BIG = ModelConfig("vit", dim=512, depth=6, heads=8, mlp=2048, image=64, patch=8)
SAMPLES = 32


def measured(path: Path) -> int:
    """Bytes over the idle process, in a process of its own."""
    command, environment = [sys.executable, "-m", __name__, str(path)], os.environ | CHILD_ENV
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(json.loads(done.stdout.splitlines()[-1]))


def work(order: Order) -> tuple[Task, Ledger]:
    contract = make_contract(BIG, order)
    weights = adapted(BIG, 0, zero=False, rank=32)
    task = Task(order, contract.sent(weights), contract.sent_frozen(weights))
    return task, contract.memory(SAMPLES)


@pytest.mark.memory
@pytest.mark.parametrize(("rank", "frozen"), [(16, 0), pytest.param(0, 5, marks=pytest.mark.slow)])
def test_a_real_process_stays_within_the_promise(tmp_path: Path, rank: int, frozen: int) -> None:
    task, ledger = work(lora_order(BIG, rank, frozen, TARGETS["few"], batch=16, optimizer="adamw"))
    (tmp_path / "task").write_bytes(task.to_bytes())
    real = measured(tmp_path / "task")
    assert 0.6 * ledger.total < real <= ledger.total


def main(path: str) -> None:
    from benchmarks.measure import _Peak
    from tests.tiny import shard

    small = ModelConfig("vit", dim=64, depth=6, heads=4, mlp=128, image=64, patch=8)
    order = lora_order(small, 8, 0, TARGETS["few"], batch=16, optimizer="adamw")
    trainer, weights = make_trainer(small, order), adapted(small, 0, zero=False, rank=8)
    warm = Task(order, trainer.contract.sent(weights), trainer.contract.sent_frozen(weights))
    trainer.run(warm, shard(small, SAMPLES, 4), {})
    data = shard(BIG, SAMPLES, 4)
    task = Task.from_bytes(Path(path).read_bytes())  # the frozen part is in the idle state: on a device it is on disk
    given = sum(tensor.nbytes for tensor in task.weights.values())
    peak = _Peak(torch.device("cpu"))
    make_trainer(BIG, task.order).run(task, data, {})
    peak.record("task")
    print(json.dumps(peak.phases["task"] + given))


if __name__ == "__main__":
    main(sys.argv[1])

"""What a device takes to tell sums of its features, measured in a process of its own against the ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from benchmarks.measure import _Peak, _warm_up
from cos2p.accelerator import CPU
from cos2p.costs.shape import Workload
from cos2p.data.examples import Examples, Normalize
from cos2p.messages import Order, Task
from cos2p.methods import make_trainer
from cos2p.models.layout import init_weights
from cos2p.models.sizes import model_config
from cos2p.processes.children import CHILD_ENV
from cos2p.training.shard import Shard
from cos2p.training.statistics import StatisticsSettings, statistics_spec

SAMPLES = 24


def measured() -> dict[str, int]:
    """In a child: the frozen part is there before, as if on disk; predicted and measured bytes over that."""
    config = model_config("vit-base", depth=3, image=64, classes=50)
    settings = StatisticsSettings(depths=(2, 3), moments=True, batch=8, features="memory")
    order = Order(
        "pi", "t", 0, 0, 0, 0, "statistics", settings.model_dump(mode="json"), 1e-3, statistics_spec(config),
        prefix_precision="float16",
    )  # fmt: skip
    weights = init_weights(config, 0)
    trainer = make_trainer(config, order)
    prefix = trainer.contract.sent_frozen(weights)
    images = torch.zeros(SAMPLES, 3, 64, 64, dtype=torch.uint8)
    part = Examples(images, torch.arange(SAMPLES) % 50, tuple(map(str, range(50))))
    shard = Shard(part, part.subset(torch.arange(0)), Normalize((0.5,), (0.5,)))
    _warm_up(config, Workload(batch=2), CPU)
    sent = trainer.contract.sent(weights)
    del weights
    peak = _Peak(CPU)
    trainer.run(Task(order, sent, prefix), shard, {})
    peak.record("statistics")
    own = sum(tensor.nbytes for tensor in sent.values())
    return {"predicted": trainer.contract.memory(SAMPLES).total, "measured": peak.phases["statistics"] + own}


@pytest.mark.memory
def test_telling_sums_takes_at_most_and_nearly_what_the_ledger_says() -> None:
    code = f"import json; from {__name__} import measured; print(json.dumps(measured()))"
    environment = os.environ | CHILD_ENV | {"OMP_NUM_THREADS": "2"}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout.splitlines()[-1])
    assert 0.6 * found["predicted"] <= found["measured"] <= found["predicted"], found

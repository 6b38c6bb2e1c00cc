"""Flower: a ClientApp and the FedAvg strategy in its Ray simulation; a worker is one of Ray's processors."""

from __future__ import annotations

import os
from typing import Any

# Flower and Ray ask home about their use otherwise.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.work import BATCH, RATE, Work, arguments, load

_work: Work | None = None
OPTIONS = arguments() if __name__ == "__main__" else None


def train(message: Message, context: Context) -> Message:
    """One device's epoch, in a Ray actor that keeps the shards between tasks."""
    global _work
    if _work is None:
        _work = load(context.run_config["options"] if OPTIONS is None else OPTIONS)
    images, labels = _work.shards[int(context.node_config["partition-id"])]
    network = _work.model
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), RATE)
    for rows in torch.randperm(len(labels)).split(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(images[rows]), labels[rows]).backward()
        optimizer.step()
    reply: dict[str, Any] = {
        "arrays": ArrayRecord(network.state_dict()),
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


def serve(grid: Grid, context: Context) -> None:
    work = load(OPTIONS)
    share = work.per_round / len(work.shards)
    strategy = FedAvg(
        fraction_train=share,
        fraction_evaluate=0.0,
        min_train_nodes=work.per_round,
        min_evaluate_nodes=0,
        min_available_nodes=len(work.shards),
    )
    strategy.start(grid=grid, initial_arrays=ArrayRecord(work.model.state_dict()), num_rounds=work.rounds)


def main() -> None:
    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    assert OPTIONS is not None
    resources = {
        "init_args": {"num_cpus": OPTIONS.workers, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, len(load(OPTIONS).shards), backend_config=resources)


if __name__ == "__main__":
    main()

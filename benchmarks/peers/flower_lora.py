"""Flower with peft: clients train LoRA and a head on a frozen encoder, FedAvg averages what they send.

Run in the peers' environment by `benchmarks.flower_job`, which writes the file of texts and reads what this one leaves:
a line of JSON a task (processor seconds, peak memory, bytes), and one with the scores at the end.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from pathlib import Path
from typing import Any

# Flower and Ray ask home about their use otherwise; Ray's clients would run at a low priority.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import Tensor, nn
from transformers import AutoModel


class Classifier(nn.Module):
    """An encoder below a linear head on the mean of a text's tokens."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, classes)  # type: ignore[union-attr,arg-type]

    def forward(self, inputs: Tensor) -> Tensor:
        mask = (inputs != 0).long()
        x_BTD = self.encoder(input_ids=inputs, attention_mask=mask).last_hidden_state
        logits: Tensor = self.head((x_BTD * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        return logits


def build(options: argparse.Namespace, classes: int) -> Any:
    torch.manual_seed(options.seed)
    encoder = AutoModel.from_pretrained(options.pretrained, dtype=torch.float32, local_files_only=True)
    model = Classifier(encoder, classes)
    linear = [
        name for name, module in encoder.named_modules() if isinstance(module, nn.Linear) and "pooler" not in name
    ]
    lora = LoraConfig(
        r=options.rank,
        lora_alpha=2 * options.rank,
        target_modules=[f"encoder.{name}" for name in linear],
        modules_to_save=["head"],
    )
    return get_peft_model(model, lora)  # type: ignore[arg-type]


def resident(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(field))


def size(arrays: ArrayRecord) -> int:
    return sum(len(array.data) for array in arrays.values())


def train(message: Message, context: Context) -> Message:
    """One client's pass over its texts, in a process that has done nothing before but import."""
    torch.set_num_threads(1)
    gc.collect()
    idle, stored = resident("VmRSS"), torch.load(OPTIONS.file, weights_only=True)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    start = time.process_time()
    inputs, labels = stored["shards"][int(context.node_config["partition-id"])]
    model = build(OPTIONS, stored["classes"])
    received = message.content["arrays"]
    set_peft_model_state_dict(model, received.to_torch_state_dict())  # type: ignore[union-attr]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=OPTIONS.lr)
    model.train()
    for rows in torch.randperm(len(labels)).split(OPTIONS.batch):
        width = int((inputs[rows] != 0).sum(1).max())  # as long as the longest text of the batch
        nn.functional.cross_entropy(model(inputs[rows, :width]), labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    sent = ArrayRecord(get_peft_model_state_dict(model))
    figures = {
        "seconds": time.process_time() - start,
        "peak": resident("VmHWM") - idle,
        "down": size(received),  # type: ignore[arg-type]
        "up": size(sent),
    }
    with OPTIONS.out.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(figures) + "\n")
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(content=RecordDict({"arrays": sent, "metrics": metrics}), reply_to=message)


def accuracy(model: Any, inputs: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in inputs.split(64)])
    return float((found == labels).float().mean())


def serve(grid: Grid, context: Context) -> None:
    stored = torch.load(OPTIONS.file, weights_only=True)
    model, clients = build(OPTIONS, stored["classes"]), len(stored["shards"])
    strategy = FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=clients, min_evaluate_nodes=0,
        min_available_nodes=clients,
    )  # fmt: skip
    first = ArrayRecord(get_peft_model_state_dict(model))
    result = strategy.start(grid=grid, initial_arrays=first, num_rounds=OPTIONS.rounds)
    set_peft_model_state_dict(model, result.arrays.to_torch_state_dict())
    scores = {part: accuracy(model, *stored[part]) for part in ("validation", "test")}
    with OPTIONS.out.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(scores) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pretrained", required=True)
    for name in ("rounds", "rank", "batch", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    return parser.parse_args()


OPTIONS = arguments()


def main() -> None:
    server, client = ServerApp(), ClientApp()
    server.main()(serve)
    client.train()(train)
    clients = len(torch.load(OPTIONS.file, weights_only=True)["shards"])
    resources = {
        "init_args": {"num_cpus": 1, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, clients, backend_config=resources)


if __name__ == "__main__":
    main()

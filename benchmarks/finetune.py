"""One device's task against `transformers` and `peft`: the same weights, samples, batches and threads.

    COS2P_DATA=<folder> python -m benchmarks.finetune [--recipes minilm-trec dino-caltech101] [--repeats 3] [--out FILE]

Every row is a process of its own, one thread. `peak` is the highest resident memory over the idle process, without
pages of the task's file, which are the system's to take back; `seconds` is processor time of one pass over the samples,
the least of the repeats. Ours is a whole task: reading, frozen pass, training, the difference that goes back. The
peers' time is their training loop alone. FedLoRA and Co-S²P run on devices of as much memory as peft took, of half of
it, a third and a sixth.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cos2p.accelerator import CPU
from cos2p.data.examples import Examples
from cos2p.data.paths import find
from cos2p.errors import BudgetError
from cos2p.fleet.device.cap import CAPPED_ENV
from cos2p.fleet.device.worker import read_task, warm_up
from cos2p.messages import Order
from cos2p.methods import make_contract, make_trainer, run_task
from cos2p.models.config import ModelConfig
from cos2p.processes.children import CHILD_ENV, forget_peak, status_bytes
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.seeding import torch_rng
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server
from cos2p.training.shard import Shard, shuffled


@dataclass(frozen=True)
class Case:
    """What of a recipe is trained on."""

    samples: int = 150
    batch: int = 16
    changes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ("q", "k", "v", "o", "fc1", "fc2")
    """peft's `all-linear`."""


CASES = {
    "minilm-trec": Case(),
    "dino-caltech101": Case(),
    "smollm-finance": Case(24, 8, ("data.max_tokens=64",), ("q", "k", "v", "o", "fc1", "gate", "fc2")),
}
PEFT = "peft, LoRA rank 32"
MOST = "100GB"


@dataclass(frozen=True)
class Row:
    title: str
    kind: str
    """`ours`, `full` or `lora`."""
    method: str = ""
    memory: str = MOST
    rank: int = 0
    checkpointing: bool = False
    changes: tuple[str, ...] = ()
    samples: int = 0
    """0: those of the case."""


PEERS = (
    Row("transformers, all weights", "full"),
    Row("transformers, all weights, gradient checkpointing", "full", checkpointing=True),
    Row(PEFT, "lora", rank=32),
    Row(f"{PEFT}, gradient checkpointing", "lora", rank=32, checkpointing=True),
)


def everywhere(name: str) -> tuple[str, ...]:
    return (f"method.targets={json.dumps(CASES[name].targets)}",)


def ours(name: str, lora_bytes: int) -> Iterator[Row]:
    """The rows that depend on what peft took."""
    yield Row("FedAvg", "ours", "fedavg")
    for part, words in ((1, "all"), (2, "half"), (3, "a third"), (6, "a sixth")):
        memory = f"{lora_bytes // part}"
        yield Row(f"FedLoRA rank 32, {words} of peft's memory", "ours", "fedlora", memory, changes=everywhere(name))
        yield Row(f"Co-S²P, {words} of peft's memory", "ours", "cos2p", memory)


def recipe_of(name: str, row: Row) -> Recipe:
    case, fraction = CASES.get(name, Case()), 0.25
    changes = [
        f"data.train_samples={round((row.samples or case.samples) / (1 - fraction))}",
        f"data.validation_fraction={fraction}",
        *("data.test_samples=20", "partition.kind=iid", "partition.local_test=0", "training.lr=1e-4"),
        *("training.epochs=1", "schedule.updates=24"),
        f'fleet.devices=[{{preset = "laptop", batch = {case.batch}, memory = "{row.memory}"}}]',
        *case.changes,
        *row.changes,
    ]
    return Recipe.load(name, changes, method=row.method or "fedavg")


# ---------------------------------------------------------------- the parent


def training_task(run_setup: RunSetup, folder: Path) -> None:
    """The device's first task that trains, as a file; before it, what it reports of its features."""
    server = Server(run_setup.context, run_setup.method(), first_weights(run_setup.recipe, run_setup.config))
    (client,) = run_setup.context.members
    order = _sent(server.handle(ClientJoined(client)))
    while not make_contract(run_setup.config, order).trains:
        update, _ = run_task(run_setup.config, server.orders.task(order), run_setup.shards[client], {})
        order = _sent(server.receive(client, update.to_bytes()))
    server.orders.write_task(order, folder / "task")


def _sent(effects: list[Any]) -> Order:
    return next(effect.order for effect in effects if isinstance(effect, Send))


def measured(name: str, row: Row, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {}
        if row.kind == "ours":
            run_setup = build_run_setup(recipe_of(name, row))
            training_task(run_setup, Path(folder))
            order = read_task(Path(folder, "task")).order
            (member,) = run_setup.context.members.values()
            found["predicted"] = make_contract(run_setup.config, order).memory(member.samples).total
        runs = [_child(name, row, folder) for _ in range(repeats)]
    return found | {"peak": min(run["peak"] for run in runs), "seconds": min(run["seconds"] for run in runs)}


def _child(name: str, row: Row, folder: str) -> dict[str, float]:
    request = json.dumps({"name": name, "row": vars(row), "folder": folder})
    command = [sys.executable, "-m", "benchmarks.finetune", "--child"]
    capped = CAPPED_ENV if row.kind == "ours" else {}
    environment = os.environ | CHILD_ENV | capped | {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    child = subprocess.run(command, input=request, capture_output=True, text=True, env=environment, check=False)
    if child.returncode:
        raise SystemExit(f"{row.title}: {child.stderr.strip()[-2000:]}")
    answer: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipes", nargs="+", default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON with all figures")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _measure(json.load(sys.stdin))
        return
    versions = ", ".join(f"{name} {version(name)}" for name in ("cos2p", "torch", "transformers", "peft"))
    print(f"{versions}; one thread, least of {arguments.repeats}")
    record: dict[str, dict[str, Any]] = {}
    for name in arguments.recipes:
        print(f"\n{name}\n\n| | peak MB | predicted MB | seconds | of peft's memory | of peft's seconds |")
        print("|---|---|---|---|---|---|", flush=True)
        rows = record[name] = {}
        for row in PEERS:
            rows[row.title] = measured(name, row, arguments.repeats)
        peft = rows[PEFT]
        for title in rows:
            _show(title, rows[title], peft)
        for row in ours(name, peft["peak"]):
            try:
                rows[row.title] = measured(name, row, arguments.repeats)
            except BudgetError as error:
                print(f"| {row.title} | does not fit: {error} |", flush=True)
                continue
            _show(row.title, rows[row.title], peft)
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _show(title: str, found: dict[str, Any], peft: dict[str, Any]) -> None:
    predicted = f"{found['predicted'] / 1e6:.0f}" if "predicted" in found else "-"
    peak, seconds = found["peak"], found["seconds"]
    ratios = f"{peak / peft['peak']:.2f} | {seconds / peft['seconds']:.2f}"
    print(f"| {title} | {peak / 1e6:.0f} | {predicted} | {seconds:.2f} | {ratios} |", flush=True)


# ---------------------------------------------------------------- the child


def _measure(request: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    row = Row(**{**request["row"], "changes": tuple(request["row"]["changes"])})
    run_setup = build_run_setup(recipe_of(request["name"], row))
    (shard,) = run_setup.shards.values()
    config, pretrained = run_setup.config, str(find(run_setup.recipe.model.pretrained))
    del run_setup
    warm_up(CPU)  # what is loaded late, and what kernels keep once they have run, belongs to the idle process
    work: Callable[[], Callable[[], object]]
    if row.kind == "ours":
        path = Path(request["folder"], "task")

        def work() -> Callable[[], object]:
            return lambda: _do_task(config, path, shard)
    else:
        import peft  # noqa: F401  # part of the idle process
        import transformers  # noqa: F401

        def work() -> Callable[[], object]:
            model = _peer(row, pretrained, config)
            return lambda: _train(model, shard, request["name"])

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    idle, files = status_bytes("VmRSS"), status_bytes("RssFile")
    forget_peak()
    job = work()
    start = time.process_time()
    kept = job()
    seconds = time.process_time() - start
    mapped = max(0, status_bytes("RssFile") - files)  # while the task is still there
    del kept
    print(json.dumps({"peak": status_bytes("VmHWM") - idle - mapped, "seconds": seconds}))


def _do_task(config: Any, path: Path, shard: Shard) -> object:
    task = read_task(path)
    trainer = make_trainer(config, task.order)
    return trainer, trainer.run(task, shard, {})


class _Classifier(nn.Module):
    """An encoder of transformers below a linear head: on the mean of a text's tokens, or on an image's first one."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(encoder.config.hidden_size, classes)  # type: ignore[union-attr,arg-type]

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_floating_point():
            output: Tensor = self.head(self.encoder(pixel_values=inputs).last_hidden_state[:, 0])
            return output
        mask = (inputs != 0).long()
        x_BTD = self.encoder(input_ids=inputs, attention_mask=mask).last_hidden_state
        pooled: Tensor = self.head((x_BTD * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        return pooled


class _Language(nn.Module):
    """A language model of transformers, as its logits."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.encoder(input_ids=inputs).logits
        return logits


def _peer(row: Row, folder: str, config: ModelConfig) -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel, AutoModelForCausalLM

    language = config.task == "language-modeling"
    auto = AutoModelForCausalLM if language else AutoModel
    encoder = auto.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    if row.checkpointing:
        encoder.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        encoder.enable_input_require_grads() if row.rank and hasattr(encoder, "get_input_embeddings") else None
    model = _Language(encoder) if language else _Classifier(encoder, config.classes)
    if row.rank:
        linear = [name for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
        chosen = [f"encoder.{name}" for name in linear if "pooler" not in name and name != "lm_head"]
        head = None if language else ["head"]
        lora = LoraConfig(r=row.rank, lora_alpha=2 * row.rank, target_modules=chosen, modules_to_save=head)
        return get_peft_model(model, lora)  # type: ignore[arg-type]
    return model


def _train(model: nn.Module, shard: Shard, name: str) -> None:
    part: Examples = shard.train
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    model.train()
    for rows in shuffled(len(part), CASES[name].batch, 1, torch_rng(0, "device", "peer", 0), part.widths):
        inputs, labels = shard.batch(rows)
        nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten()).backward()  # -100: not learned
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

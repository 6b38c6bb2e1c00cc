"""One task of the 1.1 B language model on its real weights, in a process that may take 5 GiB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from benchmarks.fullsize.tasks import Record, announce, first_orders, measure, tier_of
from cos2p.models.config import ModelConfig
from cos2p.models.hub_files import open_tensors
from cos2p.models.hub_fit import Checkpoint, match
from cos2p.models.layout import Weights, layout
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup

PART = "llama-1.1b"
TOKENS = 128


class OnDisk(Mapping[str, Tensor]):
    """The checkpoint's tensors, each read when it is asked for: the server's 4.4 GB need not be in memory here.

    Every exit has the norm of the last.
    """

    def __init__(self, folder: Path, config: ModelConfig, files: ExitStack) -> None:
        checkpoint = Checkpoint.read(folder, pooling_chosen=True)
        self._names = list(layout(config))
        self._tensors = open_tensors(checkpoint.path, checkpoint.kind, files)
        self._theirs = match(checkpoint, config, self._tensors)

    def __getitem__(self, name: str) -> Tensor:
        ours = "exit." + name.split(".", 2)[2] if name.startswith("exits.") else name
        return self._tensors[self._theirs[ours]].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def recipe(
    folder: Path, texts: Path, method: str, rate: float, samples: int, memory_optimizations: dict[str, Any]
) -> Recipe:
    values: dict[str, Any] = {
        "name": PART,
        "model": {"pretrained": str(folder)},
        "data": {
            "source": "csv", "path": str(texts.parent), "train": texts.name, "text_column": "text",
            "task": "language-modeling", "max_tokens": TOKENS, "train_samples": samples + 2, "test_fraction": 0.2,
        },
        "partition": {"kind": "iid", "local_test": 0.0},
        "fleet": {
            "devices": [{"preset": "jetson-xavier-nx-8gb", "rate": rate, "batch": 1}], "enforce_memory": False
        },
        "training": {"epochs": 1, "lr": 2e-5, "memory_optimizations": memory_optimizations},
        "schedule": {"rounds": 1},
        "method": {"name": method},
    }  # fmt: skip
    if method == "cos2p":  # a pretrained model's masks are drawn; training them is not what is measured here
        values["method"] |= {"masks": {"heads": "fixed", "units": "fixed"}, "form": "paper"}
    return Recipe.parse(values)


def run(
    record: Record, weights: Path, texts: Path, rates: list[float], methods: list[str], samples: int, cap: int
) -> None:
    if not (weights / "config.json").exists():
        announce(f"{PART} is left out: no weights in {weights} (`make weights` prepares them)")
        return
    if not texts.exists():
        announce(f"{PART} is left out: no texts in {texts} (--texts CSV with a column `text`)")
        return
    for rate in rates:
        for method in methods:
            if record.has(PART, method, "jetson-xavier-nx-8gb", 1, rate):
                continue
            plan = recipe(weights, texts, method, rate, samples, _optimizations(rate))
            run_setup = build_run_setup(plan)
            with ExitStack() as files:
                on_disk = OnDisk(weights, run_setup.config, files)
                server, orders = first_orders(run_setup, cast(Weights, on_disk))
                order = next(orders)
                announce(f"{PART} {method}: R = {rate:g}, {samples} texts of at most {TOKENS} tokens")
                record.add(measure(PART, run_setup, server, order, 1, cap))
                assert tier_of(order.client) == "jetson-xavier-nx-8gb"


def _optimizations(rate: float) -> dict[str, Any]:
    """A quarter of the model takes 6.8 GB with Adan in 32 bits: above an eighth it is made to fit."""
    return {"step_in_backward": True, "eight_bit": True} if rate > 0.125 else {}

"""A run over texts small enough for a test: words of few letters, two unequal devices."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from cos2p import ModelConfig
from cos2p.recipe import Recipe
from tests.models.checkpoints import bare

BERT = ModelConfig("bert", dim=32, depth=2, heads=4, mlp=32, classes=3, vocab=259, max_tokens=16)

LETTERS = {"soft": "lmnorsu", "hard": "bdgkptx"}
"""What the words of a class are made of."""


def texts(folder: Path, count: int = 80, task: str = "classification", **training: Any) -> dict[str, Any]:
    """The tables of a recipe whose texts lie in the folder; bytes are the tokens, so most rows belong to nobody."""
    rng = random.Random(0)
    lines = ["text,label"]
    for number in range(count):
        label = ("soft", "hard")[number % 2]
        words = ["".join(rng.choices(LETTERS[label], k=4)) for _ in range(1 + number % 3)]
        lines.append(f"{' '.join(words)},{label}")
    (folder / "texts.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    language = task != "classification"
    return {
        "name": "texts",
        "model": {"size": "llama-nano" if language else "bert-nano", "dim": 16, "depth": 2, "heads": 4, "mlp": 16}
        | ({"kv_heads": 2} if language else {}),
        "data": {
            "source": "csv", "path": str(folder), "train": "texts.csv", "text_column": "text", "task": task,
            "max_tokens": 16, "test_fraction": 0.2, "tokenizer": "bytes",
        },
        "partition": {"local_test": 0.2, "alpha": 0.3},
        "fleet": {
            "devices": [
                {"preset": "jetson-xavier-nx-8gb", "rate": 0.25, "batch": 8, "flops": 1e7},
                {"preset": "jetson-agx-orin-64gb", "rate": 1.0, "batch": 8, "flops": 9e7},
            ]
        },
        "training": {"epochs": 1, "lr": 1e-2, **training},
        "schedule": {"rounds": 2, "mu": 0.5, "t_clk": 1.0},
        "method": {"name": "cos2p", "masks": {"rounds": 1, "epochs": 1}},
        "run": {"workers": 1},
    }  # fmt: skip


def text_recipe(folder: Path, method: str = "cos2p", task: str = "classification", **training: Any) -> Recipe:
    values = texts(folder, task=task, **training)
    if method != "cos2p":
        values["method"] = {"name": method}
    return Recipe.parse(values)


def open_recipe(folder: Path, **model: Any) -> Recipe:
    """A recipe whose checkpoint does not say how it is pooled."""
    values, checkpoint = texts(folder, count=160), folder / "checkpoint"
    if not checkpoint.exists():
        bare(checkpoint, BERT)
    values |= {"model": {"pretrained": str(checkpoint), **model}, "run": {"workers": 1, "checkpoint_seconds": 0.0}}
    return Recipe.parse({**values, "method": {"name": "fedavg", "start": "fresh", "finish": "trained"}})

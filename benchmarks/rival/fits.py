"""What a device of 600 MB can train of vit-base, by the ledger: every method with the same savings.

    python -m benchmarks.rival.fits [--memory 600MB] [--model vit-base] [--batch 8]

The largest rate whose task fits, wherever its window stands (of Co-S²P the bottom, block 1 and the top; masks known).
Savings come one on top of the other.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from benchmarks.rival.plans import order_at
from cos2p.aggregation.settings import ScheduleSettings
from cos2p.costs.ledger import last_holding
from cos2p.devices.device import device
from cos2p.errors import Cos2pError
from cos2p.methods import build_method, make_contract
from cos2p.methods.base import Member, RunContext
from cos2p.methods.cos2p import Cos2p
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, layout
from cos2p.models.sizes import model_config
from cos2p.server.server import Server
from cos2p.training.settings import TrainingSettings
from cos2p.units import parse_bytes

OPTIMIZATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "+ step in backward": {"step_in_backward": True},
    "+ 8-bit states": {"eight_bit": True},
    "+ recomputation": {"recompute": "yes"},
}
METHODS: dict[str, dict[str, Any]] = {
    "cos2p": {"masks": {"heads": "fixed", "units": "fixed"}},
    "fedrolex": {},
    "heterofl": {},
    "prunefl": {},
}
STEPS = 256
"""Rates are searched in steps of 1/256."""
SAMPLES = 64


def peak(config: ModelConfig, method: str, memory_optimizations: dict[str, Any], batch: int, rate: float) -> int:
    """Bytes of the worst task at this rate."""
    member = Member("board", device("laptop", name="board"), rate, batch, SAMPLES)
    context = RunContext(
        config,
        {"board": member},
        TrainingSettings.model_validate({"memory_optimizations": memory_optimizations}),
        ScheduleSettings(rounds=1),
        seed=0,
        enforce_memory=False,
    )
    weights: Weights = {name: torch.empty(entry.shape, device="meta") for name, entry in layout(config).items()}
    worst = 0
    built = build_method({"name": method, **METHODS[method]}, context)
    blocks = built.cuts["board"].blocks if isinstance(built, Cos2p) else config.depth
    for start in sorted({0, min(1, config.depth - blocks), config.depth - blocks}):
        server = Server(context, build_method({"name": method, **METHODS[method]}, context), weights)
        trainer = make_contract(config, order_at(server, "board", start))
        worst = max(worst, trainer.memory(SAMPLES).total)
    return worst


def largest(config: ModelConfig, method: str, memory_optimizations: dict[str, Any], batch: int, memory: int) -> float:
    def fits(step: int) -> bool:
        try:
            return peak(config, method, memory_optimizations, batch, step / STEPS) <= memory
        except Cos2pError:  # no such submodel: too small for the method
            return False

    return last_holding(1, STEPS, fits) / STEPS if fits(1) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memory", default="600MB")
    parser.add_argument("--model", default="vit-base")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    chosen = parser.parse_args()
    config, budget = model_config(chosen.model), parse_bytes(chosen.memory)
    title = f"largest rate of {chosen.model} in {chosen.memory}, batch {chosen.batch}"
    shown = Table("", *chosen.methods, box=MARKDOWN, title=title, title_justify="left")
    memory_optimizations: dict[str, Any] = {}
    for name, saving in OPTIMIZATIONS.items():
        memory_optimizations = memory_optimizations | saving
        rates = (largest(config, method, memory_optimizations, chosen.batch, budget) for method in chosen.methods)
        shown.add_row(name, *(f"{rate:.3f}" for rate in rates))
    Console(width=120).print(shown)


if __name__ == "__main__":
    main()

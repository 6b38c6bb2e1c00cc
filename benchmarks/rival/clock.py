"""Virtual minutes, bytes and mask FLOPs of whole runs by the cost model: the server decides, devices train nothing.

    python -m benchmarks.rival.clock [--recipe fashion-mini] [--updates 400] [--rows rolling first-order-masks]

What a run costs does not depend on what its devices learn. Every device answers its task with the same small step of
every weight and with the first segments that its quotas allow.
"""

from __future__ import annotations

import argparse
from concurrent.futures import Future
from dataclasses import replace

import torch
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from benchmarks.fullsize.tasks import announce
from cos2p.messages import Task, Update
from cos2p.messages.packing import Packet
from cos2p.methods import make_contract
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup
from cos2p.runtime.simulation import Simulation
from cos2p.runtime.workers import TaskOutcome, Workers
from cos2p.studies.ablation import OWN_ROWS
from cos2p.training.contract import as_it_travels
from cos2p.training.costs import trained_spec
from cos2p.training.masks import Remembered

ROWS = ("as-the-recipe", "rolling", "first-order-masks", "prefix-int8", "cheap-scores")
STEP = 1e-4


class Idle(Workers):
    """Devices that answer without training."""

    def __init__(self, run_setup: RunSetup) -> None:
        self.client_cache, self.run_setup = None, run_setup
        self.down = self.up = 0
        self.mask_flops = self.flops = 0.0
        self.frozen = dict[str, list[int]]()
        """By client, the blocks below its windows."""

    def train(self, task: Packet, memory: Remembered) -> Future[TaskOutcome]:
        order = Task.from_bytes(bytes(task)).order
        member, contract = self.run_setup.context.members[order.client], make_contract(self.run_setup.config, order)
        work = contract.flops(member.samples, member.test_samples)
        self.flops += work.prefix + work.masks + work.training
        self.mask_flops += work.masks
        self.frozen.setdefault(order.client, []).append(order.spec.frozen)
        spec = trained_spec(order)
        moved = {name: torch.full(shape, STEP) for name, shape in contract.answer(spec).items()}
        update = Update(order.client, order.task, order.version, spec, moved, member.samples)
        answer = as_it_travels(update, order).to_bytes()
        self.down, self.up = self.down + len(task), self.up + len(answer)
        done: Future[TaskOutcome] = Future()
        done.set_result(TaskOutcome(answer, b""))
        return done


def counted(run_setup: RunSetup) -> tuple[Idle, float]:
    """A run whose schedule ends by rounds or updates: its counts and its virtual seconds."""
    idle = Idle(run_setup)
    simulation = Simulation(run_setup, idle, lambda event: None)
    simulation.begin()
    while simulation.finished is None:
        simulation.step()
    return idle, simulation.now


def rows() -> dict[str, tuple[str, ...]]:
    return {row.key: row.changes for row in OWN_ROWS if row.key in ROWS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="fashion-mini")
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--rows", nargs="+", choices=("fedrolex", *rows()), default=["fedrolex", *rows()])
    chosen = parser.parse_args()
    shown = Table(
        *("row", "virtual min", "down MB", "up MB", "TFLOP", "of them masks", "frozen blocks, slowest to fastest"),
        box=MARKDOWN, title=f"{chosen.recipe}, {chosen.updates} updates", title_justify="left",
    )  # fmt: skip
    always = (f"schedule.updates={chosen.updates}", "schedule.evaluate_every=1000000")
    run_setup = build_run_setup(Recipe.load(chosen.recipe, always))
    for key in chosen.rows:
        announce(key)
        changes = rows().get(key, ())
        recipe = Recipe.load(chosen.recipe, (*always, *changes), "fedrolex" if key == "fedrolex" else None)
        idle, seconds = counted(replace(run_setup, recipe=recipe))
        by_speed = sorted(idle.frozen, key=lambda name: idle.run_setup.context.members[name].device.flops)
        means = (f"{sum(idle.frozen[name]) / len(idle.frozen[name]):.1f}" for name in by_speed)
        shown.add_row(
            *(key, f"{seconds / 60:.1f}", f"{idle.down / 1e6:.1f}", f"{idle.up / 1e6:.1f}"),
            *(f"{idle.flops / 1e12:.2f}", f"{idle.mask_flops / 1e12:.3f}", " ".join(means)),
        )
    Console(width=140).print(shown)


if __name__ == "__main__":
    main()

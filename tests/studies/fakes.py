"""Stand-ins for runs: figures that can be checked by hand, and a runner that makes them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cos2p.studies.grid import Base, Cell, CellOutcome, CellOutcomes, Grid, Row, RunnableGrid, make_grid

TINY = """
name = "tiny"

[model]
size = "vit-nano"
depth = 2

[data]
source = "digits"
train_samples = 120
test_samples = 50
validation_fraction = 0.2

[[fleet.devices]]
preset = "laptop"
count = 2
name = "pi"
rate = 0.25
batch = 16
flops = 1e7

[training]
epochs = 1
lr = 4e-3

[schedule]
updates = 4
t_clk = 1.0

[method]
name = "cos2p"

[method.masks]
rounds = 1
epochs = 1

[run]
workers = 1
checkpoint_seconds = 0
"""


def tiny_base(folder: Path, *changes: str, updates: int | None = None) -> Base:
    file = folder / "tiny.toml"
    file.write_text(TINY, encoding="utf-8")
    return Base(str(file), changes, updates).checked()


def tiny_grid(folder: Path, rows: Sequence[str] = ("a", "b"), seeds: Sequence[int] = (0, 1)) -> RunnableGrid:
    """Rows that differ in their weight decay, so that they are different runs."""
    made = [Row(key, f"Row {key}", (f"training.weight_decay={n / 100}",)) for n, key in enumerate(rows)]
    return make_grid(tiny_base(folder), made, seeds)


def figures(top1: float = 0.5, **more: Any) -> dict[str, Any]:
    """A result.json with round figures."""
    return {
        "top1": top1,
        "top5": 0.9,
        "f1": top1,
        "client_top1": top1,
        "client_top5": 0.9,
        "client_f1": top1,
        "validation_top1": top1,
        "ru": 0.8,
        "busy": 0.7,
        "virtual_seconds": 120.0,
        "bytes_up": 1_000_000,
        "bytes_down": 2_000_000,
        "wall_seconds": 3.0,
        "updates": 4,
        "finished": "max_updates",
        "versions": {"cos2p": "0.1.0"},
        "devices": {
            "pi-1": {"rate": 0.25, "peak_memory": 4_000_000},
            "orin-1": {"rate": 0.5, "peak_memory": 9_000_000},
        },
    } | more


Answer = Callable[[Cell], "dict[str, Any] | str"]


class FakeExecute:
    """Answers for every cell with figures, or with a text: the reason of its failure."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.batches: list[tuple[list[Cell], int]] = []

    @property
    def cells(self) -> list[Cell]:
        return [cell for cells, _ in self.batches for cell in cells]

    def __call__(
        self, cells: Sequence[Cell], after: Callable[[CellOutcomes], None] | None = None, later: int = 0
    ) -> CellOutcomes:
        self.batches.append((list(cells), later))
        outcomes: dict[str, CellOutcome] = {}
        for cell in cells:
            outcomes[cell.name] = outcome(cell.name, self.answer(cell))
            if after is not None:
                after(dict(outcomes))
        return outcomes


def outcome(name: str, answer: Mapping[str, Any] | str) -> CellOutcome:
    return CellOutcome(name, None, answer, exit_code=8) if isinstance(answer, str) else CellOutcome(name, dict(answer))


def outcomes_of(grid: Grid, answers: Mapping[tuple[str, int], Mapping[str, Any] | str]) -> dict[str, CellOutcome]:
    """CellOutcomes by (row, seed); what is not named has not run."""
    return {grid.name(*place): outcome(grid.name(*place), answer) for place, answer in answers.items()}

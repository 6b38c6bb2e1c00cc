"""The ledger of text models: what a task takes of the full model's peak is its rate, wherever its window is."""

from __future__ import annotations

import pytest

from cos2p import ModelConfig, model_config
from cos2p.costs.ledger import shape_ledger, shape_peak
from cos2p.costs.shape import WHOLE, Shape, Tables, Workload
from cos2p.submodel.rates import cut, positions

MINILM = ModelConfig(
    "bert", dim=384, depth=6, heads=12, mlp=1536, classes=77, vocab=30522, max_tokens=512, token_types=2
)
LLAMA = model_config("llama-1.1b")
CASES = [
    # Rows: as many different tokens as one batch can have, and the one that fills up.
    (MINILM, Workload(batch=16, tokens=32, keep_start=True), 16 * 32 + 1),
    (MINILM.with_(pooling="mean"), Workload(batch=16, tokens=32, keep_start=True), 16 * 32 + 1),
    (LLAMA, Workload(batch=1, tokens=128, keep_start=True), 128 + 1),
    (LLAMA.with_(task="classification", classes=3), Workload(batch=1, tokens=128, keep_start=True), 128 + 1),
]


def worst_share(config: ModelConfig, workload: Workload, rate: float, tables: Tables) -> float:
    """Of all places of the window, with an exit wherever a smaller device's window would end."""
    tiers = tuple(sorted({cut(config, smaller).blocks for smaller in (0.5625, 0.25, 0.0625, 0.0156)}))
    full = shape_peak(config, Shape.at(config, 1.0, start=0), workload).total
    starts = range(positions(config.depth, cut(config, rate).blocks))
    shapes = (Shape.at(config, rate, start=start, tier_blocks=tiers, tables=tables) for start in starts)
    return max(shape_peak(config, shape, workload).total for shape in shapes) / full


@pytest.mark.parametrize("rate", [0.5625, 0.25, 0.0625, 0.0156])
@pytest.mark.parametrize(("config", "workload", "rows"), CASES)
def test_a_task_takes_what_its_rate_says(config: ModelConfig, workload: Workload, rows: int, rate: float) -> None:
    for tables in (Tables(rows), Tables(rows, fixed=True)):
        assert worst_share(config, workload, rate, tables) <= 1.3 * rate + 0.03


def test_whole_tables_are_most_of_a_small_task() -> None:
    """What rows are for: MiniLM's table alone is half of the model, and trains with every window at the bottom."""
    config, workload, rows = CASES[0]
    assert worst_share(config, workload, 0.0156, WHOLE) > 10 * worst_share(config, workload, 0.0156, Tables(rows))


def test_a_frozen_table_is_read_by_rows_however_large_it_is() -> None:
    _, workload, _ = CASES[0]
    models = (MINILM, MINILM.with_(vocab=300_000))
    small, large = (shape_peak(config, Shape.at(config, 0.0156), workload).total for config in models)
    assert small == large < 25e6


def test_short_texts_are_counted_as_they_are_and_positions_whole() -> None:
    shape = Shape.at(MINILM, 1.0, start=0)
    whole = Workload(batch=16, samples=64, keep_start=True)
    short = whole.with_(tokens=32, shard_tokens=64 * 20)
    padded = shape_peak(MINILM.with_(max_tokens=32), shape, whole).total
    positions = (512 - 32) * MINILM.dim * 4
    assert padded + 4 * positions < shape_peak(MINILM, shape, short).total < shape_peak(MINILM, shape, whole).total
    top = Shape.at(MINILM, 0.25, tables=Tables(513, fixed=True))
    cached = short.with_(shard_tokens=64 * 32)
    assert shape_ledger(MINILM, top, cached, "weight").features == 64 * 32 * MINILM.dim * 4
    assert shape_ledger(MINILM, top, short, "weight").features == 64 * 20 * MINILM.dim * 4

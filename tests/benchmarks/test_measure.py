"""Predictions against real memory. The whole grid, both models at all rates, is `python -m benchmarks.submodel`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.measure import measure
from cos2p import ModelConfig, SubmodelSpec, model_config
from cos2p.costs.fitting import make_spec, mask_plan
from cos2p.costs.ledger import peak
from cos2p.costs.shape import Workload
from cos2p.errors import TrainingError
from cos2p.models.spec import BlockKeep
from tests.costs.by_spec import ledger

TINY = model_config("vit-tiny")
WORKLOAD = Workload(batch=8, samples=16, threads=1)


def test_a_small_submodel_is_measured_in_a_process_of_its_own() -> None:
    config = model_config("vit-nano")
    spec = make_spec(config, 0.25, start=2)
    measured = measure(config, spec, WORKLOAD, steps=2)
    assert set(measured.phase_bytes) == {"prefix", "weight"}
    assert measured.peak_bytes == max(measured.phase_bytes.values()) <= peak(config, spec, WORKLOAD).total
    assert 0 < measured.seconds < 60
    assert 0 < measured.cpu_seconds < 60
    assert 0 < measured.prefix_seconds < 60
    assert 50e6 < measured.idle_bytes < 1e9


def test_what_goes_wrong_in_the_child_is_told() -> None:
    foreign = SubmodelSpec.full(TINY)
    with pytest.raises(TrainingError, match=r"ended with code 1: .*SpecError: block 0 has no unit 2047"):
        measure(model_config("vit-nano"), foreign, WORKLOAD)


CELLS: list[Any] = [
    ("vit-tiny", 1.0, "bottom", {}),
    ("vit-tiny", 0.25, "bottom", {"threads": 2}),
    ("vit-tiny", 0.25, "middle", {}),
    ("vit-tiny", 0.25, "top", {"micro_batch": 4}),
    ("vit-tiny", 0.0625, "middle", {"distill": True, "optimizer": "adamw"}),
    pytest.param("vit-tiny", 0.0156, "bottom", {}, marks=pytest.mark.slow),
    ("vit-tiny", 0.0156, "top", {}),
    pytest.param("vit-base", 0.0156, "top", {}, marks=pytest.mark.slow),
    ("vit-tiny", 0.25, "bottom", {"step_in_backward": True, "optimizer": "adan-8bit"}),
    pytest.param("vit-tiny", 0.25, "middle", {"step_in_backward": True, "recompute": True}, marks=pytest.mark.slow),
    ("vit-tiny", 0.25, "bottom", {"step_in_backward": True, "optimizer": "adan-8bit", "recompute": True}),
]


@pytest.mark.memory
@pytest.mark.parametrize(("name", "rate", "position", "options"), CELLS)
def test_what_is_measured_is_at_most_and_nearly_what_was_predicted(
    name: str, rate: float, position: str, options: dict[str, Any]
) -> None:
    config, workload = model_config(name), WORKLOAD.with_(**options)
    places = config.depth - len(make_spec(config, rate).window)
    start = {"bottom": 0, "middle": places // 2, "top": places}[position]
    spec = make_spec(config, rate, start, seed=0, tier_blocks=[1])
    predicted = peak(config, spec, workload).total
    measured = measure(config, spec, workload, steps=2).peak_bytes
    assert measured <= predicted
    assert measured >= 0.8 * predicted


MINILM = ModelConfig(
    "bert", dim=384, depth=6, heads=12, mlp=1536, classes=77, vocab=30522, max_tokens=512, token_types=2
)
ROWS = tuple(range(16 * 32 + 1))


@pytest.mark.memory
@pytest.mark.parametrize(
    ("rate", "start", "fixed"), [(0.0156, 0, False), pytest.param(0.25, 3, False, marks=pytest.mark.slow),
                                 pytest.param(0.0625, 0, True, marks=pytest.mark.slow)]
)  # fmt: skip
def test_texts_take_what_their_rate_says(rate: float, start: int, fixed: bool) -> None:
    """Five processor seconds each."""
    workload = Workload(batch=16, tokens=32, threads=1)
    spec = replace(make_spec(MINILM, rate, start, seed=0), rows=ROWS, fixed_embeddings=fixed)
    predicted = peak(MINILM, spec, workload).total
    measured = measure(MINILM, spec, workload, steps=2).peak_bytes
    assert 0.9 * predicted <= measured <= predicted
    assert measured <= (1.3 * rate + 0.03) * 0.95 * peak(MINILM, SubmodelSpec.full(MINILM), workload).total


@pytest.mark.memory
def test_the_mask_phase_stays_within_the_memory_of_the_training() -> None:
    kept = make_spec(TINY, 0.0625, start=6)
    plan = mask_plan(TINY, kept, WORKLOAD)
    window = tuple(BlockKeep.of(range(h), range(u)) for h, u in zip(plan.heads, plan.units, strict=True))
    candidates, workload = SubmodelSpec(6, window, (8,)), WORKLOAD.with_(micro_batch=plan.micro_batch)
    predicted = ledger(TINY, candidates, workload, "mask").total
    measured = measure(TINY, candidates, workload, steps=2, phase="mask").phase_bytes["mask"]
    assert 0.8 * predicted <= measured <= predicted <= peak(TINY, kept, WORKLOAD).total


@pytest.mark.memory
@pytest.mark.slow  # 13 s
def test_masking_with_zeros_saves_nothing() -> None:
    spec = make_spec(TINY, 0.25)
    whole, cut = peak(TINY, SubmodelSpec.full(TINY), WORKLOAD).total, peak(TINY, spec, WORKLOAD).total
    zeros = measure(TINY, spec, WORKLOAD, steps=2, form="zeros").peak_bytes
    assert zeros > 0.95 * whole > 3 * cut

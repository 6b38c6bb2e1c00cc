from __future__ import annotations

import pytest
import torch

from cos2p import SubmodelSpec
from cos2p.methods import run_task
from cos2p.methods.widths import width_spec
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract
from cos2p.training.masks import Remembered
from cos2p.training.settings import LocalSettings
from cos2p_rivals.platon.device import PlatonTask, Sensitivity, absolute_products, sensitivity
from tests.aggregation.brute import segments
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, order, same, shard, task

SPEC = width_spec([[1], [], [0, 3], [2]], [[0, 4], [1], [2], []])


def settings(**changes: object) -> PlatonTask:
    return PlatonTask.model_validate({"local": LocalSettings(), "window": 2, **changes})


def observer(memory: Remembered, **changes: object) -> Sensitivity:
    return Sensitivity(VIT, SPEC, settings(**changes), memory)


def heads0(value: float) -> dict[str, torch.Tensor]:
    return {"heads.0": torch.tensor([value])}


def test_two_windows_by_hand() -> None:
    """β1 = .85, β2 = .95, windows of two steps: I = (1+3)/2 = 2, then (5+7)/2 = 6."""
    memory: Remembered = {}
    seen = observer(memory, correct_bias=False)
    for value in (1.0, 3.0):
        seen.see(heads0(value))
    assert memory["platon.mean.heads.0"].tolist() == pytest.approx([0, 0.3, 0, 0])  # .15 · 2
    assert memory["platon.spread.heads.0"].tolist() == pytest.approx([0, 0.085, 0, 0])  # .05 · |2 − .3|
    for value in (5.0, 7.0):
        seen.see(heads0(value))
    mean = 0.85 * 0.3 + 0.15 * 6
    spread = 0.95 * 0.085 + 0.05 * abs(6 - mean)
    assert memory["platon.mean.heads.0"][1].item() == pytest.approx(mean)
    assert memory["platon.spread.heads.0"][1].item() == pytest.approx(spread)
    assert seen.scores()["heads.0"].tolist() == pytest.approx([mean * spread])


def test_correcting_the_bias_touches_the_score_alone() -> None:
    memory: Remembered = {}
    seen = observer(memory)
    for value in (1.0, 3.0):
        seen.see(heads0(value))
    assert memory["platon.mean.heads.0"][1].item() == pytest.approx(0.3)
    assert seen.scores()["heads.0"].tolist() == pytest.approx([2.0 * 1.7])  # .3/.15 · .085/.05


def test_constant_sensitivity_has_no_uncertainty() -> None:
    memory: Remembered = {}
    seen = observer(memory)
    for _ in range(1200):
        seen.see(heads0(4.0))
    assert memory["platon.mean.heads.0"][1].item() == pytest.approx(4.0)
    assert memory["platon.spread.heads.0"][1].item() == pytest.approx(0.0, abs=1e-6)


def test_a_short_last_window_is_closed_and_an_empty_one_is_not() -> None:
    memory: Remembered = {}
    seen = observer(memory)
    seen.see(heads0(2.0))
    seen.close_window()
    assert memory["platon.mean.heads.0"][1].item() == pytest.approx(0.3)
    seen.close_window()
    assert memory["platon.windows.heads.0"].tolist() == [0, 1, 0, 0]


def test_segments_that_are_not_held_keep_their_state() -> None:
    memory: Remembered = {"platon.mean.heads.0": torch.ones(4), "platon.spread.heads.0": torch.ones(4),
                      "platon.windows.heads.0": torch.ones(4)}  # fmt: skip
    before = dict(memory)
    seen = observer(memory)
    for _ in range(2):
        seen.see(heads0(9.0))
    assert memory["platon.mean.heads.0"][[0, 2, 3]].tolist() == [1, 1, 1]
    assert memory["platon.mean.heads.0"][1] != 1
    assert before["platon.mean.heads.0"].tolist() == [1, 1, 1, 1]  # what was given is not written into


def test_sensitivity_is_the_mean_over_a_segments_scalars() -> None:
    spec, weights = SubmodelSpec.full(VIT), random_weights(VIT, 1)
    model = ElasticTransformer(VIT, spec).load(extract(weights, VIT, spec))
    model(random_inputs(VIT, 1))[0].square().sum().backward()
    products = {n: (p * p.grad).detach() for n, p in model.named_parameters() if p.grad is not None}
    found = sensitivity(model, VIT)
    for segment in segments(VIT):
        if segment.place is not None:
            expected = segment.norm(products) / segment.size
            assert found[segment.key][segment.place].item() == pytest.approx(expected, rel=1e-4)


def test_products_in_pieces_are_the_products() -> None:
    a, b = torch.randn(300, 500), torch.randn(300, 500)
    for dim in (0, 1):
        torch.testing.assert_close(absolute_products(a, b, dim), (a * b).abs().sum(1 - dim), rtol=1e-4, atol=1e-3)


def test_training_is_plain_training_that_also_reports() -> None:
    weights, own = random_weights(VIT, 2), shard(VIT)
    plain = order(SPEC, lambda2=0.0)
    watched = order(SPEC, lambda2=0.0)
    local = LocalSettings.model_validate(dict(plain.settings))
    object.__setattr__(watched, "trainer", "platon")
    object.__setattr__(watched, "settings", PlatonTask(local=local, window=2).model_dump(mode="json"))
    expected, _ = run_task(VIT, task(VIT, weights, plain), own, {})
    update, memory = run_task(VIT, task(VIT, weights, watched), own, {})
    assert same(update.delta, expected.delta)
    assert {key: len(value) for key, value in update.extras.items()} == {
        "heads.0": 1, "heads.2": 2, "heads.3": 1, "units.0": 2, "units.1": 1, "units.2": 1,
    }  # fmt: skip
    assert all((value > 0).all() for value in update.extras.values())
    assert memory["platon.windows.units.0"].tolist() == [3, 0, 0, 0, 3, 0, 0, 0, 0, 0]  # 6 steps in windows of 2

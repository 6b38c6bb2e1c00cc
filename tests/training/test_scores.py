from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cos2p import ModelConfig
from cos2p.errors import TrainingError
from cos2p.methods import make_contract, run_task
from cos2p.models.spec import BlockSize
from cos2p.models.transformer import ElasticTransformer
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import extract
from cos2p.training.losses import flatten
from cos2p.training.masks import (
    MaskTrainer,
    MicroBatch,
    Remembered,
    Trained,
    as_importance,
    begin_from_scores,
    first_order,
)
from cos2p.training.settings import LocalSettings, MaskPhase
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import VIT, examples, order, same, shard, task, window

families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
QUOTAS = (BlockSize(1, 3), BlockSize(1, 4))


def masks_of(config: ModelConfig, memory: Remembered | None = None, dead_unit: int | None = None) -> MaskTrainer:
    """Two blocks at full width."""
    spec, weights = window(config, 0), random_weights(config, 1)
    if dead_unit is not None:
        weights["blocks.0.fc2.weight"][:, dead_unit] = 0
    model = ElasticTransformer(config, spec).load(extract(weights, config, spec))
    return MaskTrainer(model, {} if memory is None else memory, QUOTAS, Trained(), 0.0, torch_rng(0, "test"))


def batch_of(config: ModelConfig, rows: slice) -> list[MicroBatch]:
    inputs, labels = examples(config, 6).batch(torch.arange(6)[rows])
    return [(inputs, None, labels)]


# ---------------------------------------------------------------- what a score is


@families
def test_a_score_is_the_gradient_times_the_weights_that_lead_out_of_the_segment(config: ModelConfig) -> None:
    """|Σ w·∂L/∂w| over the unit's column of fc2, for one sample, with gradients of the weights themselves."""
    masks, sample = masks_of(config), batch_of(config, slice(0, 1))
    scores, _ = first_order(masks, [sample])
    masks.model.requires_grad_(True)
    ((inputs, _, labels),) = sample
    output = masks.model(inputs)[-1]
    F.cross_entropy(*flatten(output, masks.model.targets(labels)), reduction="sum").backward()
    for block in (0, 1):
        weight = masks.model.blocks[str(block)].fc2.weight  # type: ignore[union-attr]
        expected = (weight * weight.grad).sum(0).abs()  # type: ignore[operator]
        torch.testing.assert_close(scores[f"units.{block}"], expected.detach(), atol=1e-6, rtol=1e-4)


@families
def test_scores_of_samples_do_not_cancel(config: ModelConfig) -> None:
    masks = masks_of(config)
    one, _ = first_order(masks, [batch_of(config, slice(0, 1))])
    two, _ = first_order(masks, [batch_of(config, slice(1, 2))])
    both, _ = first_order(masks, [batch_of(config, slice(0, 2))])
    for name, score in both.items():
        torch.testing.assert_close(score, (one[name] + two[name]) / 2, atol=1e-6, rtol=1e-4)


def test_a_unit_that_leads_nowhere_scores_nothing_and_a_diverged_model_is_told() -> None:
    scores, loss = first_order(masks_of(VIT, dead_unit=4), [batch_of(VIT, slice(0, 6))])
    assert scores["units.0"][4] == 0
    assert scores["units.0"].count_nonzero() == VIT.mlp - 1
    assert loss > 0
    masks = masks_of(VIT)
    with torch.no_grad():
        next(masks.model.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match="diverged"):
        first_order(masks, [batch_of(VIT, slice(0, 6))])


# ---------------------------------------------------------------- what is made of them


def test_importances_by_hand() -> None:
    """Mean 2, deviation 1; of four kept one on average at first: logit(1/4) is −ln 3."""
    found = as_importance(torch.tensor([1.0, 2.0, 2.0, 3.0]), 1)
    deviation = (2 / 3) ** 0.5
    expected = torch.tensor([-1.0986 - 1 / deviation, -1.0986, -1.0986, -1.0986 + 1 / deviation])
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    assert as_importance(torch.full((4,), 7.0), 2).tolist() == [0.0] * 4
    assert as_importance(torch.tensor([5.0]), 1).isfinite().all()


def test_known_importances_become_the_average() -> None:
    old = torch.full((VIT.mlp,), 8.0)
    batches = [batch_of(VIT, slice(0, 6))]
    masks = masks_of(VIT, {"units.0": old.clone()})
    begin_from_scores(masks, batches, {"units.0"})
    fresh = as_importance(first_order(masks, batches)[0]["units.0"], 3)
    torch.testing.assert_close(masks.parameters["units.0"].detach(), (old + fresh) / 2)
    new = as_importance(first_order(masks, batches)[0]["units.1"], 4)
    torch.testing.assert_close(masks.parameters["units.1"].detach(), new)


# ---------------------------------------------------------------- on the device


@families
def test_a_task_by_scores_alone_keeps_the_best_and_repeats_itself(config: ModelConfig) -> None:
    phase = {"epochs": 0, "scores": True, "share": 0.5}
    given = task(config, random_weights(config, 1), order(window(config, 2), QUOTAS, mask=phase))
    update, memory = run_task(config, given, shard(config), {})
    again, _ = run_task(config, given, shard(config), {})
    assert same(update.delta, again.delta)
    for block, keep, quota in zip((2, 3), update.spec.window, QUOTAS, strict=True):
        best = memory[f"units.{block}"].argsort(descending=True)[: quota.units]
        assert sorted(best.tolist()) == list(keep.units)
    assert update.report["mask_loss"] > 0


def test_a_share_of_the_samples_is_what_the_masks_see_and_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def accumulate(self: MaskTrainer, micro: list[MicroBatch]) -> torch.Tensor:
        seen.append(sum(len(labels) for _, _, labels in micro))
        for importance in self.parameters.values():
            importance.grad = torch.zeros_like(importance)
        return torch.zeros(())

    monkeypatch.setattr(MaskTrainer, "accumulate", accumulate)

    def flops(**phase: object) -> float:
        given = order(window(VIT, 2), QUOTAS, mask=phase)
        run_task(VIT, task(VIT, random_weights(VIT, 1), given), shard(VIT), {})
        return make_contract(VIT, given).flops(10, 4).masks

    whole = flops(epochs=5)
    assert sum(seen) == 50
    seen.clear()
    assert flops(epochs=2, share=0.3) == pytest.approx(whole * 6 / 50)
    assert seen == [3, 3]
    assert flops(epochs=1, share=0.3, scores=True) == pytest.approx(whole * 6 / 50)


def test_a_task_carries_nothing_of_what_is_not_asked_for() -> None:
    assert not {"share", "scores"} & LocalSettings().model_dump(mode="json")["mask"].keys()
    phase = MaskPhase(share=0.5, scores=True)
    assert MaskPhase.model_validate(phase.model_dump(mode="json")) == phase

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p import SubmodelSpec
from cos2p.methods import run_task
from cos2p.methods.widths import width_spec
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract
from cos2p.training.settings import ExtendedSettings, LocalSettings
from cos2p_rivals.prunefl.device import GradientSums
from tests.aggregation.brute import segments
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, order, same, shard, task


def test_the_square_is_of_the_mean_gradient_not_the_mean_of_squares() -> None:
    """Two opposite steps cancel; two equal ones give the square of one."""
    spec = SubmodelSpec.full(VIT)
    model = ElasticTransformer(VIT, spec).load(extract(random_weights(VIT, 1), VIT, spec))
    model(random_inputs(VIT, 1))[0].square().sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    equal, opposite = GradientSums(VIT), GradientSums(VIT)
    for seen in (equal, opposite):
        seen.begin(model)
        seen.after_step(model)
    equal.after_step(model)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.neg_()
    opposite.after_step(model)
    for segment in segments(VIT):
        if segment.place is not None:
            expected = sum(gradients[n][mask].double().square().sum().item() for n, mask in segment.masks.items())
            assert equal.squares()[segment.key][segment.place].item() == pytest.approx(expected, rel=1e-4)
    assert all((value == 0).all() for value in opposite.squares().values())


def test_rescaling_is_taken_out() -> None:
    """A head alone in its block is multiplied by four in training; what it reports must not be."""
    spec, weights = width_spec([[1]] * 4, [[0, 1, 2, 3, 4]] * 4), random_weights(VIT, 3)
    reports = []
    for rescale in (True, False):
        model = ElasticTransformer(VIT, spec, rescale=rescale).load(extract(weights, VIT, spec)).train()
        seen = GradientSums(VIT)
        seen.begin(model)
        for module in model.blocks.values():  # the same gradients as without, times the factor
            module.o.weight.grad = torch.full_like(module.o.weight, module.head_scale)
        seen.after_step(model)
        reports.append(seen.squares()["heads.2"].tolist())
    assert reports[0] == pytest.approx(reports[1])


def test_training_is_plain_training_that_also_reports() -> None:
    spec = width_spec([[1], [], [0, 3], [2]], [[0, 4], [1], [2], []])
    weights, own, plain = random_weights(VIT, 2), shard(VIT), order(spec, lambda2=0.0, rescale=True)
    local = LocalSettings.model_validate(dict(plain.settings))
    watched = replace(plain, trainer="prunefl", settings=ExtendedSettings(local=local).model_dump(mode="json"))
    expected, _ = run_task(VIT, task(VIT, weights, plain), own, {})
    update, memory = run_task(VIT, task(VIT, weights, watched), own, {})
    assert same(update.delta, expected.delta)
    assert update.report == expected.report
    assert memory == {}
    assert sorted(update.extras) == ["heads.0", "heads.2", "heads.3", "units.0", "units.1", "units.2"]
    assert update.extras["heads.2"].shape == (2,)

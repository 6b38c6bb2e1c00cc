from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cos2p import ModelConfig, SubmodelSpec
from cos2p.costs.fitting import make_spec
from cos2p.errors import TrainingError, UpdateRefused
from cos2p.messages import Order, Task
from cos2p.methods import make_contract, run_task
from cos2p.models.layout import init_weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract, trained_shapes
from cos2p.testing.gpu import peak_allocated
from cos2p_rivals.fedmezo.device import MezoSettings, MezoTrainer
from cos2p_rivals.fedmezo.steps import move, replay, step
from tests.runtime.played import check_update
from tests.tiny import VIT, assert_close, copy, same, shard

Loss = Callable[[], Tensor]


def mezo_order(spec: SubmodelSpec, lr: float = 1e-3, **settings: Any) -> Order:
    local = MezoSettings.model_validate({"epochs": 1, "batch": 4, "steps": 5, "lambda2": 0.0, **settings})
    return Order("pi-1", "pi-1#0", 0, 0, 0, 7, "mezo", local.model_dump(mode="json"), lr, spec)


def mezo_task(config: ModelConfig, given: Order) -> Task:
    return Task(given, extract(init_weights(config, 0), config, given.spec))


def full_model() -> tuple[dict[str, Tensor], Loss]:
    """Its weights, and its loss on four samples at these weights as they are."""
    spec = SubmodelSpec.full(VIT)
    model = ElasticTransformer(VIT, spec).load(extract(init_weights(VIT, 0), VIT, spec)).requires_grad_(False)
    inputs, labels = shard(VIT).train.batch(torch.arange(4))
    return dict(model.named_parameters()), lambda: F.cross_entropy(model(inputs)[0], labels)


def test_moving_there_and_back_gives_the_weights_again() -> None:
    weights, loss = full_model()
    before = copy(weights)
    taken, mean = step(weights, loss, seed=5, epsilon=1e-3, lr=0.0, weight_decay=0.1)
    assert taken == 0.0
    assert math.isfinite(mean)
    assert_close(before, weights, atol=1e-6)


class Quadratic(nn.Module):
    """½·wᵀAw as the loss of a model, so that the gradient is known: Aw."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]), requires_grad=False)
        self.A = torch.diag(torch.tensor([1.0, 2.0, 3.0]))

    def loss(self) -> float:
        return float(0.5 * self.w @ self.A @ self.w)


def test_the_mean_of_g_times_z_is_the_gradient() -> None:
    toy = Quadratic()
    total = torch.zeros(3)
    for seed in range(10_000):
        weights = {"w": toy.w}
        z = {"w": torch.zeros(3)}
        move(z, seed, 1.0)
        move(weights, seed, 1e-3)
        plus = toy.loss()
        move(weights, seed, -2e-3)
        minus = toy.loss()
        move(weights, seed, 1e-3)
        total += (plus - minus) / 2e-3 * z["w"]
    exact = toy.A @ toy.w
    assert torch.linalg.vector_norm(total / 10_000 - exact) < 0.05 * torch.linalg.vector_norm(exact)


def test_a_step_is_minus_eta_g_z_and_decay_spares_biases_and_norms() -> None:
    after, loss = full_model()
    before = copy(after)
    taken, _ = step(after, loss, seed=9, epsilon=1e-3, lr=0.1, weight_decay=0.5)
    z = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    move(z, 9, 1.0)
    for name in ("blocks.0.q.weight", "embed.positions"):
        torch.testing.assert_close(after[name], 0.95 * before[name] - taken * z[name], atol=2e-6, rtol=0.0)
    for name in ("blocks.0.q.bias", "blocks.1.norm1.weight"):
        torch.testing.assert_close(after[name], before[name] - taken * z[name], atol=2e-6, rtol=0.0)


def test_the_order_in_which_tensors_come_does_not_matter() -> None:
    one = {"b": torch.zeros(3), "a": torch.zeros(2)}
    two = {"a": torch.zeros(2), "b": torch.zeros(3)}
    move(one, 4, 1.0)
    move(two, 4, 1.0)
    assert same(dict(sorted(one.items())), two)


def test_the_global_generator_is_not_touched() -> None:
    state = torch.get_rng_state()
    run_task(VIT, mezo_task(VIT, mezo_order(SubmodelSpec.full(VIT))), shard(VIT), {})
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_what_is_replayed_from_seeds_is_what_would_have_been_sent(weight_decay: float) -> None:
    spec = make_spec(VIT, 0.5, ratio=0.0)
    given = mezo_order(spec, rescale=True, weight_decay=weight_decay)
    as_seeds = replace(given, settings={**given.settings, "wire": "seeds"})
    start = mezo_task(VIT, given).weights
    tensors, _ = run_task(VIT, mezo_task(VIT, given), shard(VIT), {})
    seeds, _ = run_task(VIT, mezo_task(VIT, as_seeds), shard(VIT), {})
    assert seeds.delta == {}
    shapes = trained_shapes(VIT, spec)
    decay = float(seeds.extras["decay"])
    replayed = replay(shapes, seeds.extras["seeds"], seeds.extras["scales"], decay, start)
    assert_close(dict(tensors.delta), replayed, atol=2e-6)
    assert max(float(t.abs().max()) for t in replayed.values()) > 1e-4  # there is something to compare


def test_seeds_are_twelve_bytes_a_step() -> None:
    spec = SubmodelSpec.full(VIT)
    seeds = mezo_order(spec, wire="seeds", steps=7)
    update, _ = run_task(VIT, mezo_task(VIT, seeds), shard(VIT), {})
    assert sum(t.nbytes for t in update.extras.values()) == make_contract(VIT, seeds).upload() == 12 * 7 + 4
    assert make_contract(VIT, mezo_order(spec)).upload() == sum(
        t.nbytes for t in mezo_task(VIT, seeds).weights.values()
    )


def test_no_tensor_has_a_gradient_and_nothing_is_kept_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    forward = ElasticTransformer.forward

    def watched(self: ElasticTransformer, *args: Any, **kwargs: Any) -> list[Tensor]:
        outputs = forward(self, *args, **kwargs)
        seen.extend(o.requires_grad for o in outputs)
        seen.extend(p.requires_grad or p.grad is not None for p in self.parameters())
        return outputs

    monkeypatch.setattr(ElasticTransformer, "forward", watched)
    run_task(VIT, mezo_task(VIT, mezo_order(SubmodelSpec.full(VIT))), shard(VIT), {})
    assert seen
    assert not any(seen)


def test_a_batch_whose_loss_is_not_finite_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([math.nan, 1.0, 2.0, 1.0] + [1.0] * 100)
    monkeypatch.setattr(MezoTrainer, "loss", lambda *_: torch.tensor(next(losses)))
    given = mezo_order(SubmodelSpec.full(VIT), wire="seeds", steps=2)
    update, _ = run_task(VIT, mezo_task(VIT, given), shard(VIT), {})
    assert update.report["steps"] == 1.0
    assert len(update.extras["seeds"]) == 1
    assert float(update.extras["scales"][0]) == pytest.approx(1e-3 * (2.0 - 1.0) / 2e-3)


def test_a_task_without_any_finite_loss_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MezoTrainer, "loss", lambda *_: torch.tensor(math.inf))
    with pytest.raises(TrainingError, match=r"lower training\.lr"):
        run_task(VIT, mezo_task(VIT, mezo_order(SubmodelSpec.full(VIT))), shard(VIT), {})


def test_it_learns() -> None:
    data = shard(VIT, train=8, test=8)
    losses = []
    weights = mezo_task(VIT, mezo_order(SubmodelSpec.full(VIT))).weights
    for attempt in range(3):
        given = replace(mezo_order(SubmodelSpec.full(VIT), lr=2e-3, batch=8, steps=60), attempt=attempt)
        update, _ = run_task(VIT, Task(given, weights), data, {})
        weights = {name: weights[name] - update.delta[name] for name in weights}
        losses.append(float(update.report["loss"]))
    assert losses[-1] < losses[0] - 0.05


# ---------------------------------------------------------------- costs


def test_two_forward_passes_a_step_cost_two_thirds_of_a_training_step() -> None:
    config = ModelConfig("vit", dim=512, depth=4, heads=8, mlp=2048, classes=10, image=32, patch=16, channels=3)
    given = mezo_order(SubmodelSpec.full(config), steps=3, batch=4)  # one epoch of 12 samples
    plain = replace(given, trainer="submodel", settings={k: given.settings[k] for k in _plain(given)})
    ours = make_contract(config, given).flops(samples=12, test_samples=0).training
    theirs = make_contract(config, plain).flops(12, 0).training
    assert ours / theirs == pytest.approx(2 / 3, rel=0.02)


def _plain(given: Order) -> list[str]:
    return [name for name in given.settings if name not in ("steps", "epsilon", "wire")]


def test_the_ledger_covers_what_a_task_allocates() -> None:
    config = ModelConfig("vit", dim=128, depth=3, heads=4, mlp=512, classes=10, image=32, patch=4, channels=3)
    given = mezo_order(make_spec(config, 0.5, ratio=0.0), steps=1, batch=16, rescale=True)
    data, task = shard(config, train=16, test=0), mezo_task(config, given)
    promised = make_contract(config, given).memory(16)
    start = sum(t.nbytes for t in task.weights.values())
    used = start + peak_allocated(lambda: run_task(config, task, data, {}))
    room = promised.total - promised.overhead
    assert 0.6 * room < used <= room
    plain = replace(given, trainer="submodel", settings={k: given.settings[k] for k in _plain(given)})
    assert promised.total < 0.5 * make_contract(config, plain).memory(16).total


# ---------------------------------------------------------------- the update reader


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": torch.zeros(99, dtype=torch.int64), "scales": torch.zeros(99)}, "99"),
        ({"scales": torch.full((2,), math.nan)}, "finite"),
        ({"scales": torch.full((2,), 1e9)}, "root mean square"),
        ({"scales": torch.zeros(2, dtype=torch.float64)}, "expected"),
        ({"decay": torch.tensor(2.0)}, "decay has values from 2"),
        ({"more": torch.zeros(1)}, "expected"),
    ],
)
def test_steps_that_cannot_be_replayed_are_refused(change: dict[str, Tensor], message: str) -> None:
    given = mezo_order(SubmodelSpec.full(VIT), wire="seeds", steps=2)
    update, _ = run_task(VIT, mezo_task(VIT, given), shard(VIT), {})
    check_update(update, given, VIT, max_rms=10.0)
    with pytest.raises(UpdateRefused, match=message):
        check_update(replace(update, extras={**update.extras, **change}), given, VIT, max_rms=10.0)

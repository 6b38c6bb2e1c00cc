from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.costs.fitting import make_spec
from cos2p.messages import Order, Task
from cos2p.methods import make_contract, run_task
from cos2p.models.layout import Weights, init_weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract
from cos2p.testing.gpu import peak_allocated
from cos2p_rivals.adavit.device import AdaptiveSettings
from cos2p_rivals.adavit.model import (
    AdaptiveTransformer,
    Used,
    first_policies,
    gate,
    policy_table,
    usage_loss,
)
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, shard


def adaptive_order(spec: SubmodelSpec, lr: float = 1e-2, **settings: Any) -> Order:
    local = AdaptiveSettings.model_validate({"epochs": 2, "batch": 4, "lambda2": 0.0, **settings})
    return Order("pi-1", "pi-1#0", 0, 0, 0, 7, "adavit", local.model_dump(mode="json"), lr, spec)


def weights_of(config: ModelConfig = VIT, usage: float = 0.9) -> Weights:
    return {**init_weights(config, 0), **first_policies(config, 0, usage, 5.0)}


def task(given: Order, config: ModelConfig = VIT) -> Task:
    return Task(given, make_contract(config, given).sent(weights_of(config)))


def model_of(spec: SubmodelSpec, weights: Weights, **kwargs: Any) -> AdaptiveTransformer:
    held = make_contract(VIT, adaptive_order(spec)).sent(weights)
    model = AdaptiveTransformer(VIT, spec, **kwargs)
    model.load({name: tensor.clone() for name, tensor in held.items()})
    return model


def with_biases(weights: Weights, value: float, kind: str = "") -> Weights:
    """Policies whose logits are all about `value`."""
    return {
        name: torch.full_like(t, value) if name.startswith("adavit.") and kind in name and name.endswith("bias") else t
        for name, t in weights.items()
    }


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("training", [True, False])
def test_with_all_gates_open_it_is_the_plain_transformer(rate: float, training: bool) -> None:
    spec = make_spec(VIT, rate, ratio=0.0)
    weights = {**random_weights(VIT, 1), **first_policies(VIT, 0, 0.9, 5.0)}
    model = model_of(spec, with_biases(weights, 100.0), rescale=True).train(training)
    model.rng = torch.Generator().manual_seed(0)
    plain = ElasticTransformer(VIT, spec, rescale=True).load(extract(weights, VIT, spec)).train(training)
    inputs = random_inputs(VIT, 3)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs)[0], plain(inputs)[0], atol=1e-5, rtol=1e-5)
    assert all(bool((part == 1).all()) for u in model.used for part in (u.heads, u.layers, u.tokens))


def test_with_all_sublayers_shut_only_the_first_block_counts() -> None:
    weights = with_biases(weights_of(), -100.0, "layers")
    changed = {n: t + 1 if n.startswith(("blocks.2.", "blocks.3.")) else t for n, t in weights.items()}
    inputs, spec = random_inputs(VIT, 3), SubmodelSpec.full(VIT)
    with torch.no_grad():
        one, two = (model_of(spec, w).eval()(inputs)[0] for w in (weights, changed))
    assert torch.equal(one, two)


def test_with_all_heads_shut_attention_adds_the_output_bias_alone() -> None:
    weights = with_biases({**random_weights(VIT, 1), **first_policies(VIT, 0, 0.99, 5.0)}, -100.0, "heads")
    weights = with_biases(with_biases(weights, 100.0, "layers"), 100.0, "tokens")
    plain = {n: torch.zeros_like(t) if ".o.weight" in n and "blocks.0." not in n else t for n, t in weights.items()}
    inputs, spec = random_inputs(VIT, 3), SubmodelSpec.full(VIT)
    with torch.no_grad():
        gated = model_of(spec, weights).eval()(inputs)[0]
        without = ElasticTransformer(VIT, spec).load(extract(plain, VIT, spec)).eval()(inputs)[0]
    torch.testing.assert_close(gated, without, atol=1e-5, rtol=1e-5)


def test_with_all_patches_dropped_the_class_token_goes_on_by_itself() -> None:
    """From block 1 on nothing of the patches reaches the answer, whatever block 0 made of them."""
    weights = with_biases({**random_weights(VIT, 1), **first_policies(VIT, 0, 0.99, 5.0)}, -100.0, "tokens")
    weights["blocks.0.o.weight"] = torch.zeros_like(weights["blocks.0.o.weight"])  # block 0 mixes no tokens either
    model = model_of(SubmodelSpec.full(VIT), weights).eval()
    with torch.no_grad():
        one, two = (model(random_inputs(VIT, seed))[0][:1] for seed in (3, 4))
    torch.testing.assert_close(one, two, atol=1e-6, rtol=0.0)
    assert all(bool((u.tokens[:, 0] == 1).all()) and float(u.tokens[:, 1:].sum()) == 0 for u in model.used)


def test_the_class_token_is_never_dropped() -> None:
    model = model_of(SubmodelSpec.full(VIT), with_biases(weights_of(), 0.0)).train()
    model.rng = torch.Generator().manual_seed(0)
    for seed in range(5):
        model(random_inputs(VIT, seed))
        assert all(bool((u.tokens[:, 0] == 1).all()) for u in model.used)
        assert any(bool((u.tokens[:, 1:] == 0).any()) for u in model.used)


def test_inference_is_deterministic_and_training_is_not() -> None:
    model = model_of(SubmodelSpec.full(VIT), with_biases(weights_of(), 0.1))
    inputs = random_inputs(VIT, 0)
    model.rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.eval()
        assert torch.equal(model(inputs)[0], model(inputs)[0])
        model.train()
        assert not torch.equal(model(inputs)[0], model(inputs)[0])


def test_a_gate_is_hard_forward_and_soft_backward() -> None:
    logits = torch.tensor([-3.0, 0.5, 3.0], requires_grad=True)
    value = gate(logits, 0.5, 5.0, None)
    assert value.tolist() == [0.0, 1.0, 1.0]
    value.sum().backward()
    soft = logits.detach().sigmoid()
    torch.testing.assert_close(logits.grad, soft * (1 - soft))


@pytest.mark.parametrize(("threshold", "logit"), [(0.5, 2.197), (0.6, 2.197 + 5 * 0.405)])
def test_the_first_biases_open_the_wanted_share_of_gates(threshold: float, logit: float) -> None:
    drawn = gate(torch.full((20_000,), logit), threshold, 5.0, torch.Generator().manual_seed(1))
    assert float(drawn.mean()) == pytest.approx(0.9, abs=0.01)
    policies = first_policies(VIT, 0, 0.9, 5.0)
    kind = "tokens" if threshold == 0.6 else "heads"
    assert float(policies[f"adavit.1.{kind}.bias"][0]) == pytest.approx(logit, abs=0.01)


def test_gradients_reach_every_policy() -> None:
    model = model_of(SubmodelSpec.full(VIT), with_biases(weights_of(), 0.5)).train()
    model.rng = torch.Generator().manual_seed(0)
    outputs = model(random_inputs(VIT, 0))
    # The last block's patches no longer reach the answer: only the wanted usage tells their gates anything.
    (outputs[0].square().sum() + usage_loss(model.used, 0.9, 0.9, 0.9)).backward()
    for name, parameter in model.named_parameters():
        if name.startswith("adavit."):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def used(heads: Tensor, layers: Tensor, tokens: Tensor) -> Used:
    return Used(heads.float(), layers.float(), tokens.float())


def test_usage_counts_heads_only_where_a_sublayer_runs() -> None:
    heads = torch.tensor([[1, 1], [0, 0]])
    layers = torch.tensor([[1, 0], [0, 0]])  # the second input skips the block
    tokens = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    loss = usage_loss([used(heads, layers, tokens)], heads=0.5, layers=0.5, tokens=0.5)
    assert float(loss) == pytest.approx(abs(1.0 - 0.5) + abs(0.25 - 0.5) + (0.75 - 0.5) ** 2)
    assert float(usage_loss([], 0.5, 0.5, 0.5)) == 0.0


def test_wanting_everything_with_a_large_weight_opens_the_gates() -> None:
    spec = SubmodelSpec.full(VIT)
    wanted = dict.fromkeys(("heads", "layers", "tokens"), 1.0)
    given = adaptive_order(spec, lr=0.05, epochs=20, usage_weight=50.0, **wanted)
    start = with_biases(weights_of(), 0.0)
    update, _ = run_task(VIT, Task(given, make_contract(VIT, given).sent(start)), shard(VIT), {})
    assert min(update.report[f"used_{kind}"] for kind in wanted) > 0.95


def test_a_task_brings_back_the_policies_of_the_heads_it_held() -> None:
    spec = make_spec(VIT, 0.5, ratio=0.0)
    given = adaptive_order(spec, rescale=True)
    sent = task(given)
    assert sent.weights["adavit.1.heads.weight"].shape == (2, VIT.dim)
    update, _ = run_task(VIT, sent, shard(VIT), {})
    expected = make_contract(VIT, given).answer(spec)
    assert {name: tuple(t.shape) for name, t in update.delta.items()} == dict(expected)
    assert sum(t.nbytes for t in update.delta.values()) == make_contract(VIT, given).upload()
    assert update.delta["adavit.3.tokens.weight"].abs().sum() > 0
    assert set(policy_table(VIT)) <= set(expected)


def test_it_learns() -> None:
    losses = []
    for epochs in (1, 40):
        update, _ = run_task(VIT, task(adaptive_order(SubmodelSpec.full(VIT), epochs=epochs)), shard(VIT), {})
        losses.append(update.report["loss"])
    assert losses[1] < losses[0] - 0.2


def test_the_ledger_covers_what_a_task_allocates() -> None:
    config = ModelConfig("vit", dim=128, depth=4, heads=4, mlp=256, classes=10, image=32, patch=4, channels=3)
    given = adaptive_order(make_spec(config, 0.5, ratio=0.0), epochs=1, batch=16, rescale=True)
    data, work = shard(config, train=16, test=0), task(given, config)
    promised = make_contract(config, given).memory(16)
    room = promised.total - promised.overhead
    start = sum(t.nbytes for t in work.weights.values())
    used_bytes = start + peak_allocated(lambda: run_task(config, work, data, {}))
    assert 0.6 * room < used_bytes <= room
    plain = replace(given, trainer="submodel", settings={k: given.settings[k] for k in _plain(given)})
    assert promised.total > make_contract(config, plain).memory(16).total
    ours = make_contract(config, given).flops(16, 4).training
    assert 1.0 < ours / make_contract(config, plain).flops(16, 4).training < 1.1


def _plain(given: Order) -> list[str]:
    return [k for k in given.settings if k not in ("heads", "layers", "tokens", "usage_weight", "tau")]

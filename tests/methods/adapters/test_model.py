"""The streamed model with adapters: the base's logits, backpropagation's gradients, and bytes as promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cos2p import ModelConfig, SubmodelSpec
from cos2p.messages import Order, Precision, Task
from cos2p.methods import make_contract, make_trainer
from cos2p.methods.adapters.device import LoraSettings
from cos2p.methods.adapters.factors import adapter_shapes, first_adapters, is_adapter, merged
from cos2p.methods.adapters.model import AdaptedTransformer
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep
from cos2p.models.transformer import ElasticTransformer, Embedding
from cos2p.testing.gpu import peak_allocated
from cos2p.training.prefix import PrefixFile, encode
from tests.submodel.strategies import CONFIGS, random_inputs, random_weights
from tests.tiny import shard

TARGETS: dict[str, Any] = {"few": ("q", "v", "fc2"), "all": ("q", "k", "v", "o", "fc1", "fc2")}
SCALE = 1.5


def adapted(config: ModelConfig, seed: int, zero: bool, rank: int = 3) -> Weights:
    shapes = adapter_shapes(config, range(config.depth), TARGETS["all"], rank)
    factors = first_adapters(shapes, seed)
    if not zero:
        rng = torch.Generator().manual_seed(seed)
        factors = {name: torch.randn(shape, generator=rng) * 0.3 for name, shape in shapes.items()}
    return {**random_weights(config, seed), **factors}


def whole_spec(config: ModelConfig, frozen: int = 0) -> SubmodelSpec:
    window = (BlockKeep.full(config),) * (config.depth - frozen)
    return SubmodelSpec(frozen, window, (config.depth,), fixed_embeddings=True)


def streamed(config: ModelConfig, weights: Weights, precision: Precision = "float32") -> AdaptedTransformer:
    base = {name: t for name, t in weights.items() if not is_adapter(name)}
    file = PrefixFile(encode(base, precision))
    model = AdaptedTransformer(config, whole_spec(config), file, range(config.depth), 3, TARGETS["all"], SCALE)
    return model.load({name: t.clone() for name, t in weights.items()})


def embedded(config: ModelConfig, weights: Weights, inputs: torch.Tensor) -> torch.Tensor:
    embed = Embedding(config)
    own = {n.removeprefix("embed."): t for n, t in weights.items() if n.startswith("embed.")}
    embed.load_state_dict(own, assign=True)
    with torch.no_grad():
        return embed(inputs)  # type: ignore[no-any-return]


def plain(config: ModelConfig, weights: Weights) -> ElasticTransformer:
    return ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)


@pytest.mark.parametrize("name", CONFIGS)
def test_without_up_the_logits_are_the_base_s_bit_for_bit(name: str) -> None:
    config = CONFIGS[name]
    weights, inputs = adapted(config, 1, zero=True), random_inputs(config, 1)
    with torch.no_grad():
        found = streamed(config, weights)(inputs, embedded(config, weights, inputs))[-1]
        assert torch.equal(found, plain(config, weights)(inputs)[-1])
        assert torch.equal(found, plain(config, merged(weights, SCALE))(inputs)[-1])


@pytest.mark.parametrize("name", CONFIGS)
def test_merged_and_streamed_agree_in_logits_and_gradients(name: str) -> None:
    """Of y = (W + s·BᵀA)·x: ∂A = s·B·∂W and ∂B = s·A·∂Wᵀ, with ∂W by ordinary backpropagation."""
    config = CONFIGS[name]
    weights, inputs = adapted(config, 2, zero=False), random_inputs(config, 2)
    ours = streamed(config, weights)
    whole = plain(config, {n: t.clone() for n, t in merged(weights, SCALE).items()})
    found = ours(inputs, embedded(config, weights, inputs))[-1]
    expected = whole(inputs)[-1]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    found.square().mean().backward()
    expected.square().mean().backward()
    gradients = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    matrices = {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
    checked = 0
    for key in (n.removesuffix(".up") for n in weights if n.endswith(".up")):
        matrix = matrices[key.replace(".adapters", "") + ".weight"]
        up, down = weights[f"{key}.up"], weights[f"{key}.down"]
        torch.testing.assert_close(gradients[f"{key}.down"], SCALE * up @ matrix, atol=1e-5, rtol=1e-3)
        torch.testing.assert_close(gradients[f"{key}.up"], SCALE * down @ matrix.T, atol=1e-5, rtol=1e-3)
        checked += 1
    assert checked == 6 * config.depth


def test_a_base_in_8_bits_is_close() -> None:
    config = CONFIGS["vit"]
    weights, inputs = adapted(config, 3, zero=False), random_inputs(config, 3)
    features = embedded(config, weights, inputs)
    with torch.no_grad():
        exact, rounded = (streamed(config, weights, p)(inputs, features)[-1] for p in ("float32", "int8"))
    assert F.cosine_similarity(exact, rounded).min() > 0.99
    assert not torch.equal(exact, rounded)


MEASURED = {
    "vit": ModelConfig("vit", dim=128, depth=4, heads=4, mlp=512, image=32, patch=8),
    "bert": ModelConfig("bert", dim=128, depth=4, heads=4, mlp=512, vocab=500, max_tokens=32, pooling="mean"),
    "llama": ModelConfig(
        "llama", dim=128, depth=4, heads=4, kv_heads=2, mlp=320, vocab=500, max_tokens=32, task="language-modeling"
    ),
}


def lora_order(config: ModelConfig, rank: int, frozen: int, targets: Sequence[str], **settings: Any) -> Order:
    blocks = tuple(range(frozen, config.depth))
    values = {"epochs": 1, "batch": 8, "lambda2": 0.0, "rank": rank, "blocks": blocks, "targets": tuple(targets)}
    local = LoraSettings.model_validate({**values, **settings})
    spec = whole_spec(config, frozen)
    return Order("pi", "pi#0", 0, 0, 0, 7, "lora", local.model_dump(mode="json"), 1e-3, spec, None, "float16")


@pytest.mark.parametrize(
    ("family", "rank", "frozen", "targets", "settings"),
    [
        ("vit", 8, 0, "few", {}),
        ("vit", 0, 3, "few", {}),
        ("bert", 16, 2, "all", {"optimizer": "adamw"}),
        ("llama", 8, 0, "few", {"factors": "up"}),
    ],
)
def test_bytes_are_as_promised(family: str, rank: int, frozen: int, targets: str, settings: dict[str, Any]) -> None:
    config = MEASURED[family]
    order = lora_order(config, rank, frozen, TARGETS[targets], **settings)
    contract, data = make_contract(config, order), shard(config, train=16, test=8)
    weights = adapted(config, 0, zero=False, rank=16)
    task = Task(order, contract.sent(weights), contract.sent_frozen(weights))
    given = sum(tensor.nbytes for tensor in task.weights.values())
    real = given + peak_allocated(lambda: make_trainer(config, order).run(task, data, {}))
    ledger = contract.memory(16)
    assert 0.75 * (ledger.total - ledger.overhead) < real < ledger.total - ledger.overhead + 2**16


@pytest.mark.parametrize(
    ("family", "rank", "settings"),
    [
        ("vit", 8, {}),
        ("bert", 16, {"optimizer": "adamw", "memory_optimizations": {"eight_bit": True, "micro_batch": 2}}),
        ("llama", 8, {"optimizer": "sgd", "memory_optimizations": {"step_in_backward": True}}),
    ],
)
def test_to_look_for_directions_takes_no_byte_more(family: str, rank: int, settings: dict[str, Any]) -> None:
    config = MEASURED[family]
    order = replace(lora_order(config, rank, 0, TARGETS["few"], **settings), trainer="factored")
    contract, data = make_contract(config, order), shard(config, train=16, test=8)
    weights = random_weights(config, 0)
    task = Task(order, contract.sent(weights), contract.sent_frozen(weights))
    given = sum(tensor.nbytes for tensor in task.weights.values())
    real = given + peak_allocated(lambda: make_trainer(config, order).run(task, data, {}))
    ledger = contract.memory(16)
    assert 0.6 * (ledger.total - ledger.overhead) < real < ledger.total - ledger.overhead + 2**16


def test_work_grows_with_rank_and_with_blocks() -> None:
    config = MEASURED["vit"]
    work = {
        (rank, frozen): make_contract(config, lora_order(config, rank, frozen, TARGETS["few"])).flops(16, 0)
        for rank, frozen in ((0, 3), (8, 3), (8, 0), (32, 0))
    }
    training = [flops.training for flops in work.values()]
    assert training == sorted(set(training))
    assert work[8, 0].prefix < work[8, 3].prefix  # blocks below the adapters run once

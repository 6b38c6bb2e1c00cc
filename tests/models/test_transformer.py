"""A compact submodel computes what the masked full model computes, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep
from cos2p.models.transformer import ElasticTransformer, Gates, make_context
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import extract, extract_prefix, take, window_slices
from tests.submodel.strategies import CONFIGS, random_inputs, random_weights, submodels

Case = tuple[ModelConfig, SubmodelSpec, int]


def compact_model(config: ModelConfig, spec: SubmodelSpec, weights: Weights, **options: bool) -> ElasticTransformer:
    """The submodel a device trains, with its frozen prefix held."""
    own = extract_prefix(weights, config, spec) | extract(weights, config, spec)
    return ElasticTransformer(config, spec, hold_prefix=True, **options).load(own)


def full_model(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> ElasticTransformer:
    """Every block up to the submodel's top at full width, all of it trainable."""
    whole = SubmodelSpec(0, (BlockKeep.full(config),) * spec.top, spec.exits)
    return ElasticTransformer(config, whole).load(take(weights, window_slices(config, whole)))


def kept_of(config: ModelConfig, spec: SubmodelSpec, block: int) -> BlockKeep:
    if block >= spec.frozen:
        return spec.keep(block)
    return BlockKeep.full(config)


def zero_one_gates(config: ModelConfig, spec: SubmodelSpec) -> Gates:
    def gate(kept: tuple[int, ...], size: int) -> Tensor:
        return torch.tensor([float(i in kept) for i in range(size)])

    kept = {block: kept_of(config, spec, block) for block in range(spec.top)}
    return {block: (gate(k.heads, config.groups), gate(k.units, config.mlp)) for block, k in kept.items()}


def with_segments_zeroed(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> Weights:
    """Every weight of every removed segment set to zero, row by row and column by column."""
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    queries, size = config.queries_per_group, config.head_dim
    for block in range(spec.top):
        kept, at = kept_of(config, spec, block), f"blocks.{block}."
        for head in set(range(config.groups)) - set(kept.heads):
            for name, width in (("q", queries * size), ("k", size), ("v", size)):
                for tensor in (t for n, t in weights.items() if n.startswith(f"{at}{name}.")):
                    tensor[head * width : (head + 1) * width] = 0
            weights[at + "o.weight"][:, head * queries * size : (head + 1) * queries * size] = 0
        for unit in set(range(config.mlp)) - set(kept.units):
            for tensor in (t for n, t in weights.items() if n.startswith((at + "fc1.", at + "gate."))):
                tensor[unit] = 0
            weights[at + "fc2.weight"][:, unit] = 0
    return weights


def scalar(outputs: list[Tensor]) -> Tensor:
    """A loss whose gradient differs in every output."""
    rng = torch_rng(0, "test loss")
    return torch.stack([(o.tanh() * torch.randn(o.shape, generator=rng)).sum() for o in outputs]).sum()


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    """≤ 1e-5, relative to the largest entry where that is above one."""
    assert found.shape == expected.shape, what
    if found.numel():
        limit = 1e-5 * max(1.0, expected.abs().max().item())
        assert (found - expected).abs().max().item() <= limit, what


@settings(max_examples=60)
@given(submodels())
def test_compact_forward_equals_the_masked_full_forward(case: Case) -> None:
    config, spec, seed = case
    weights, inputs = random_weights(config, seed), random_inputs(config, seed)
    with torch.no_grad():
        compact = compact_model(config, spec, weights)(inputs)
        gated = full_model(config, spec, weights)(inputs, gates=zero_one_gates(config, spec))
        zeroed = full_model(config, spec, with_segments_zeroed(config, spec, weights))(inputs)
    assert len(compact) == len(spec.exits)
    for depth, c, g, z in zip(spec.exits, compact, gated, zeroed, strict=True):
        assert_close(c, g, f"exit {depth} against gates")
        assert_close(c, z, f"exit {depth} against zeroed segments")


@settings(max_examples=60)
@given(submodels())
def test_compact_gradients_are_the_full_ones_at_the_kept_entries(case: Case) -> None:
    config, spec, seed = case
    weights, inputs = random_weights(config, seed), random_inputs(config, seed)
    compact, full = compact_model(config, spec, weights), full_model(config, spec, weights)
    scalar(compact(inputs)).backward()
    scalar(full(inputs, gates=zero_one_gates(config, spec))).backward()
    wanted = {name: p.grad for name, p in full.named_parameters()}
    for name, parameter in compact.named_parameters():
        if parameter.requires_grad:
            gradient = wanted[name]
            assert gradient is not None
            cut = window_slices(config, spec)[name]
            # A block with nothing kept never touches its empty tensors, so autograd leaves them without a gradient.
            found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            assert_close(found, gradient if cut is None else gradient.index_select(*cut), name)


@settings(max_examples=30)
@given(submodels())
def test_removed_segments_get_no_gradient_in_the_masked_model(case: Case) -> None:
    config, spec, seed = case
    full = full_model(config, spec, random_weights(config, seed))
    scalar(full(random_inputs(config, seed), gates=zero_one_gates(config, spec))).backward()
    for block in range(spec.frozen, spec.top):
        removed = sorted(set(range(config.mlp)) - set(spec.keep(block).units))
        gradient = full.blocks[str(block)].fc1.weight.grad  # type: ignore[union-attr]
        assert isinstance(gradient, Tensor)
        assert not gradient[removed].any()


@given(submodels(least_frozen=1))
def test_window_on_features_equals_the_model_that_holds_its_prefix(case: Case) -> None:
    config, spec, seed = case
    weights, inputs = random_weights(config, seed), random_inputs(config, seed)
    held = compact_model(config, spec, weights)
    table = {"embed.tokens": weights["embed.tokens"]} if config.family == "llama" else {}
    window = ElasticTransformer(config, spec).load(extract(weights, config, spec) | table)
    with torch.no_grad():
        assert held.embed is not None
        features, context = held.embed(inputs), make_context(config, inputs)
        for block in range(spec.frozen):
            features = held.blocks[str(block)](features, context)
        for a, b in zip(held(inputs), window(inputs, features), strict=True):
            assert torch.equal(a, b)


@settings(max_examples=30)
@given(submodels(least_frozen=1))
def test_only_the_window_and_its_exits_train(case: Case) -> None:
    config, spec, seed = case
    weights, inputs = random_weights(config, seed), random_inputs(config, seed)
    model = compact_model(config, spec, weights)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert model.weights().keys() == window_slices(config, spec).keys()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    scalar(model(inputs)).backward()
    optimizer.step()
    for name, parameter in model.named_parameters():
        if name not in window_slices(config, spec):
            assert parameter.grad is None, name
            assert torch.equal(parameter, before[name]), name
    top = f"blocks.{spec.top - 1}.norm2.weight"
    if spec.keep(spec.top - 1).units or not config.pre_norm:
        assert not torch.equal(dict(model.named_parameters())[top], before[top])


@pytest.mark.parametrize("name", CONFIGS)
def test_whole_model_trains_everything_it_has(name: str) -> None:
    config = CONFIGS[name]
    model = full_model(config, SubmodelSpec.full(config, exits=range(1, 5)), random_weights(config, 0))
    scalar(model(random_inputs(config, 0))).backward()
    untouched = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    # A key's bias adds the same to all scores of a query, which softmax does not see.
    assert [n for n in untouched if not n.endswith("k.bias")] == []


@settings(max_examples=60)
@given(submodels())
def test_rescale_divides_by_the_kept_share_in_training_only(case: Case) -> None:
    config, spec, seed = case
    weights, inputs = random_weights(config, seed), random_inputs(config, seed)
    scaled = {}
    for block, (heads, units) in zero_one_gates(config, spec).items():
        grow = (heads.numel() / heads.sum().clamp(min=1), units.numel() / units.sum().clamp(min=1))
        scaled[block] = (heads * grow[0], units * grow[1]) if block >= spec.frozen else (heads, units)
    rescaled = compact_model(config, spec, weights, rescale=True)
    with torch.no_grad():
        for a, b in zip(rescaled.train()(inputs), full_model(config, spec, weights)(inputs, gates=scaled), strict=True):
            assert_close(a, b, "training")
        for a, b in zip(rescaled.eval()(inputs), compact_model(config, spec, weights)(inputs), strict=True):
            assert torch.equal(a, b)


def test_nothing_kept_in_a_block_adds_the_biases_alone() -> None:
    config = CONFIGS["vit"]
    spec = SubmodelSpec(0, (BlockKeep((), ()),), (1,))
    weights, inputs = random_weights(config, 0), random_inputs(config, 0)
    model = compact_model(config, spec, weights)
    with torch.no_grad():
        assert model.embed is not None
        x = model.embed(inputs)
        found = model.blocks["0"](x, make_context(config, inputs))
    assert torch.equal(found, x + weights["blocks.0.o.bias"] + weights["blocks.0.fc2.bias"])


def test_padding_is_invisible() -> None:
    for name in ("bert", "llama classification"):
        config = CONFIGS[name]
        model = full_model(config, SubmodelSpec.full(config), random_weights(config, 1))
        short = torch.tensor([[3, 7, 5]])
        padded = torch.tensor([[3, 7, 5, 0, 0, 0]])
        with torch.no_grad():
            assert_close(model(padded)[0], model(short)[0], name)


def test_a_language_model_does_not_look_ahead() -> None:
    config = CONFIGS["llama tied"]
    model = full_model(config, SubmodelSpec.full(config), random_weights(config, 1))
    with torch.no_grad():
        a, b = (model(torch.tensor([[3, 7, 5, last]]))[0] for last in (2, 9))
    assert_close(a[:, :3], b[:, :3], "tokens before the change")
    assert not torch.allclose(a[:, 3], b[:, 3])


def test_weights_are_taken_by_reference() -> None:
    config = CONFIGS["vit"]
    weights = random_weights(config, 0)
    model = ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)
    assert all(tensor.data_ptr() == weights[name].data_ptr() for name, tensor in model.weights().items())


def test_a_window_without_its_prefix_asks_for_features() -> None:
    config = CONFIGS["vit"]
    spec = SubmodelSpec(1, (BlockKeep.full(config),), (2,))
    window = ElasticTransformer(config, spec).load(extract(random_weights(config, 0), config, spec))
    with pytest.raises(ValueError, match="does not hold its frozen prefix: give the features"):
        window(random_inputs(config, 0))


class Traced(ElasticTransformer):
    """Notes what it runs."""

    def run_embedding(self, inputs: Tensor) -> Tensor:
        self.ran = ["embedding"]
        return super().run_embedding(inputs)

    def run_block(self, i: int, *args: Any) -> Tensor:
        self.ran.append(f"block {i}")
        return super().run_block(i, *args)

    def run_exit(self, depth: int, *args: Any) -> Tensor:
        self.ran.append(f"exit {depth}")
        return super().run_exit(depth, *args)


def test_a_model_can_override_every_part_of_its_forward_pass() -> None:
    """Frozen blocks below and above the window are among them."""
    config = CONFIGS["vit"].with_(depth=4)
    spec = SubmodelSpec(1, (BlockKeep.full(config),) * 2, (2, 4), suffix=True)
    weights, inputs = random_weights(config, 0), random_inputs(config, 0)
    plain, traced = (kind(config, spec, hold_prefix=True).load(weights) for kind in (ElasticTransformer, Traced))
    outputs = traced(inputs)
    assert traced.ran == ["embedding", "block 0", "block 1", "exit 2", "block 2", "block 3", "exit 4"]  # type: ignore[attr-defined]
    for found, expected in zip(outputs, plain(inputs), strict=True):
        assert torch.equal(found, expected)

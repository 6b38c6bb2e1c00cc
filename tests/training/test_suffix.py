"""The loss at the true top, block by block: the gradients of ordinary backpropagation, one frozen block at a time."""

from __future__ import annotations

import weakref

import torch
from hypothesis import given, settings

from cos2p import ModelConfig, SubmodelSpec, extract, extract_prefix
from cos2p.models.context import make_context
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.training.prefix import PrefixFile, StreamedSuffix, encode
from tests.models.test_around import held
from tests.models.test_transformer import assert_close, scalar
from tests.submodel.strategies import CONFIGS, random_inputs, random_weights, submodels_around


def streamed(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> ElasticTransformer:
    """As on a device: the window in memory, the rest of its blocks too, what is above read when it is needed."""
    file = PrefixFile(extract_prefix(weights, config, spec))
    own = extract(weights, config, spec)
    if spec.rest:
        for block in range(spec.frozen, spec.top):
            own |= {f"blocks.{block}.rest.{name}": t for name, t in file.part(f"blocks.{block}.rest.").items()}
    if config.tied and config.task == "language-modeling" and spec.has_prefix:
        own["embed.tokens"] = file.part("embed.")["tokens"]
    model = ElasticTransformer(config, spec).load(own)
    model.above = StreamedSuffix(config, spec, file)
    return model


@settings(max_examples=50)
@given(submodels_around())
def test_gradients_are_those_of_a_model_that_holds_everything(case: tuple[ModelConfig, SubmodelSpec, int]) -> None:
    config, spec, seed = case
    weights, inputs = random_weights(config, seed), random_inputs(config, seed, rows=spec.rows)
    whole, part = held(config, spec, weights), streamed(config, spec, weights)
    features = None
    if spec.has_prefix:
        features, _ = whole._start(inputs, None, make_context(config, inputs))
    expected, found = whole(inputs), part(inputs, features)
    for depth, a, b in zip(spec.exits, found, expected, strict=True):
        assert_close(a, b, f"exit {depth}")
    scalar(expected).backward()
    scalar(found).backward()
    wanted = dict(whole.named_parameters())
    for name, parameter in part.named_parameters():
        if parameter.requires_grad and parameter.grad is not None:
            gradient = wanted[name].grad
            assert gradient is not None
            assert_close(parameter.grad, gradient, name)


def test_one_block_above_is_in_memory_at_a_time() -> None:
    config = CONFIGS["bert"]
    spec = SubmodelSpec(0, SubmodelSpec.full(config).window[:1], (4,), suffix=True)
    alive: list[weakref.ref[torch.nn.Module]] = []

    class Watched(StreamedSuffix):
        def block(self, index: int):  # type: ignore[no-untyped-def]
            assert all(reference() is None for reference in alive)
            block = super().block(index)
            alive.append(weakref.ref(block))
            return block

    weights = random_weights(config, 1)
    model = ElasticTransformer(config, spec).load(extract(weights, config, spec))
    model.above = Watched(config, spec, PrefixFile(encode(extract_prefix(weights, config, spec), "int8")))
    scalar(model(random_inputs(config, 1))).backward()
    assert len(alive) == 2 * 3  # three blocks above, up and down
    assert model.embed is not None
    assert model.embed.tokens.grad is not None

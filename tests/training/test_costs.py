from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cos2p import ElasticTransformer, ModelConfig
from cos2p.costs.fitting import make_spec
from cos2p.methods import LocalSettings, forward_flops, forward_memory
from cos2p.models.layout import init_weights
from cos2p.submodel.slicing import extract
from cos2p.testing.gpu import peak_allocated
from tests.submodel.strategies import random_inputs

CONFIGS = {
    "vit": ModelConfig("vit", dim=128, depth=3, heads=4, mlp=512, classes=10, image=32, patch=4, channels=3),
    "bert": ModelConfig("bert", dim=128, depth=3, heads=4, mlp=512, classes=10, vocab=500, max_tokens=64),
    "llama": ModelConfig(
        "llama", dim=128, depth=3, heads=4, mlp=512, vocab=500, max_tokens=64, task="language-modeling"
    ),
}


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("rescale", [False, True])
def test_forward_memory_covers_what_a_pass_allocates(family: str, rescale: bool) -> None:
    config = CONFIGS[family]
    spec = make_spec(config, 0.5, ratio=0.0)
    settings = LocalSettings(batch=16, rescale=rescale)
    weights = extract(init_weights(config, 0), config, spec)
    model = ElasticTransformer(config, spec, rescale=rescale).load(weights).train()

    @torch.no_grad()
    def one_pass() -> list[Tensor]:
        return model(random_inputs(config, 0, 16))  # type: ignore[no-any-return]

    promised = forward_memory(config, spec, settings, samples=20)
    assert promised.weights == sum(tensor.nbytes for tensor in weights.values())
    small = promised.activations // 100  # such as a padding mask, for which there is the slack
    assert 0.5 * promised.activations < peak_allocated(one_pass) <= promised.activations + promised.inputs + small


def test_copies_of_the_weights_and_what_is_needed_between_the_passes_are_counted() -> None:
    config = CONFIGS["vit"]
    spec, settings = make_spec(config, 0.5, ratio=0.0), LocalSettings(batch=16)
    one, two = (forward_memory(config, spec, settings, 20, copies=copies) for copies in (1, 2))
    assert two.weights == 2 * one.weights
    assert two.activations == one.activations == forward_memory(config, spec, settings, 20, between=1).activations
    assert forward_memory(config, spec, settings, 20, between=10**9).activations == 10**9


def test_forward_flops_by_hand() -> None:
    """Two for each weight of a matrix and token, four for each pair of tokens and width of the heads."""
    config = CONFIGS["vit"]
    spec = make_spec(config, 1.0)
    matrices = 4 * 128 * 128 + 2 * 128 * 512
    blocks = 3 * (2 * 65 * matrices + 4 * 65 * 65 * 128)
    assert forward_flops(config, spec) == blocks + 2 * 64 * 128 * 3 * 16 + 2 * 128 * 10

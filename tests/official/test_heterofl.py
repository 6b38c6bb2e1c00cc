"""`heterofl` against its official repository: leading slices, the average, and the pass through a thin model.

Different on purpose: no masking of labels that a device lacks (here every device owns all labels); the exit is ours, so
passes are compared up to the encoder's output; r is the largest whose heads and units fit the budget. A device tests
its own submodel with the Scaler on, since it learned with it; officially inference has no Scaler.
"""

from __future__ import annotations

import pytest
import torch

from cos2p import SubmodelSpec
from cos2p.methods import build_method
from cos2p.models.transformer import ElasticTransformer, make_context
from cos2p_rivals.heterofl.cut import fold_scaler, scaled_config, scaled_cut, take_scaled
from cos2p_rivals.heterofl.device import Scaler
from cos2p_rivals.heterofl.method import HeteroFl
from tests.official.case import agree, fixture, wave
from tests.official.thin_case import assert_combined, assert_index_lists, our_config, start
from tests.tiny import context

OFFICIAL = fixture("heterofl")
CONFIG = our_config(OFFICIAL["model"])
GRADIENTS = {
    "linear_q.weight": "blocks.0.q.weight",
    "linear1.bias": "blocks.0.fc1.bias",
    "linear2.weight": "blocks.0.fc2.weight",
    "embedding.weight": "embed.tokens",
}


def test_the_entries_of_every_tensor() -> None:
    method = build_method({"name": "heterofl"}, context(CONFIG, rates=(0.5,)))
    assert isinstance(method, HeteroFl)
    for rate, lists in zip(OFFICIAL["rates"], OFFICIAL["index_lists"], strict=True):
        assert_index_lists(CONFIG, scaled_cut(CONFIG, rate, method.shift(7)), lists)


def test_the_average_over_holders() -> None:
    parts = [scaled_cut(CONFIG, rate) for rate in OFFICIAL["combine"]["combine_rates"]]
    assert_combined(CONFIG, OFFICIAL["names"], parts, OFFICIAL["combine"]["after"])


def thin_model(folded: bool = False) -> ElasticTransformer:
    rate = OFFICIAL["passes"]["rate"]
    full = {name: 0.3 * tensor for name, tensor in start(CONFIG, OFFICIAL["names"]).items()}
    weights = take_scaled(full, CONFIG, scaled_cut(CONFIG, rate))
    small = scaled_config(CONFIG, rate)
    return ElasticTransformer(small, SubmodelSpec.full(small)).load(fold_scaler(weights, rate) if folded else weights)


def through(model: ElasticTransformer) -> tuple[torch.Tensor, torch.Tensor]:
    """What comes out of the embedding, and of the encoder."""
    inputs = torch.tensor(OFFICIAL["passes"]["inputs"])
    assert model.embed is not None
    embedded = model.embed(inputs)
    return embedded, model.blocks["0"](embedded, make_context(model.config, inputs))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_pass_and_its_gradients(mode: str) -> None:
    """Officially the Scaler is on in training and off in inference."""
    official = OFFICIAL["passes"][mode]
    model = thin_model()
    if mode == "train":
        Scaler(OFFICIAL["passes"]["rate"]).begin(model)
    embedded, features = through(model)
    agree(f"embedding, {mode}", embedded, official["embedded"])
    agree(f"encoder, {mode}", features, official["features"])
    (features * wave(features.shape, 60.0)).sum().backward()
    parameters = dict(model.named_parameters())
    for theirs, ours in GRADIENTS.items():
        gradient = parameters[ours].grad
        assert gradient is not None
        agree(f"gradient of {ours}, {mode}", gradient, official["gradients"][theirs], tolerance=5e-6)


def test_folded_weights_infer_as_the_official_model_trains() -> None:
    embedded, features = through(thin_model(folded=True))
    agree("embedding, folded", embedded, OFFICIAL["passes"]["train"]["embedded"])
    agree("encoder, folded", features, OFFICIAL["passes"]["train"]["features"])

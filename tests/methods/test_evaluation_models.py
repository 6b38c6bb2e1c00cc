"""A method says which forward pass its weights have; nobody guesses it from the names of tensors."""

from __future__ import annotations

import pytest

from cos2p.methods import method_class, methods
from cos2p.models.layout import Weights, init_weights
from cos2p.models.transformer import ElasticTransformer
from cos2p_rivals.adavit.model import AdaptiveTransformer, first_policies
from cos2p_rivals.heterofl.cut import scaled_config, scaled_cut, take_scaled
from cos2p_rivals.qvit.model import QuantTransformer, first_tensors
from tests.tiny import VIT

PLAIN = init_weights(VIT, 0)
POLICIES = {**PLAIN, **first_policies(VIT, 0, 0.9, 5.0)}
STEPS = {**PLAIN, **first_tensors(VIT, (4,))}
OWN = {
    "fedavg-adavit": (AdaptiveTransformer, POLICIES),
    "fedavg-qvit": (QuantTransformer, STEPS),
}


@pytest.mark.parametrize("name", sorted(methods()))
def test_every_method_names_its_forward(name: str) -> None:
    kind, weights = OWN.get(name, (ElasticTransformer, PLAIN))
    model = method_class(name).evaluation_model(VIT, weights, [4, 2])
    assert type(model) is kind
    assert (model.config, model.spec.exits) == (VIT, (2, 4))


def test_a_scaled_model_has_a_config_of_its_own() -> None:
    held: Weights = take_scaled(PLAIN, VIT, scaled_cut(VIT, 0.5), all_exits=True)
    heterofl = method_class("heterofl")
    assert heterofl.evaluation_config(VIT, held) == scaled_config(VIT, 0.5)
    assert heterofl.evaluation_model(VIT, held, [4]).config == scaled_config(VIT, 0.5)
    assert heterofl.evaluation_config(VIT, PLAIN) == VIT

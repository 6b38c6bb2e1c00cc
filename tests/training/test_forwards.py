"""Models with tensors beside the plain ones are built by whoever their names ask for."""

from __future__ import annotations

import pytest
import torch

from cos2p import SubmodelSpec
from cos2p.errors import ConfigError
from cos2p.models.layout import init_weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.training.adavit import AdaptiveTransformer, first_policies
from cos2p.training.evaluation import build_model
from cos2p.training.qvit_model import QuantTransformer, first_tensors
from tests.tiny import VIT

SPEC = SubmodelSpec.full(VIT)
PLAIN = init_weights(VIT, 0)


def test_the_names_of_the_tensors_choose_the_forward() -> None:
    assert type(build_model(VIT, SPEC, PLAIN)) is ElasticTransformer
    policies, steps = first_policies(VIT, 0, 0.9, 5.0), first_tensors(VIT, (4,))
    assert isinstance(build_model(VIT, SPEC, {**PLAIN, **policies}), AdaptiveTransformer)
    assert isinstance(build_model(VIT, SPEC, {**PLAIN, **steps}), QuantTransformer)


@pytest.mark.parametrize("names", [("strange.0",), ("adavit.1.heads.bias", "qvit.norms.0.q.weight")])
def test_tensors_that_nobody_knows_are_an_error(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="no forward is known for tensors named"):
        build_model(VIT, SPEC, {**PLAIN, **{name: torch.zeros(1) for name in names}})

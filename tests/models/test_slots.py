from __future__ import annotations

import torch

from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer, slots, trainable
from tests.tiny import VIT

SPEC = SubmodelSpec.full(VIT)


def test_slots_are_the_named_parameters() -> None:
    module = ElasticTransformer(VIT, SPEC)
    assert [(name, getattr(owner, own)) for name, owner, own in slots(module)] == list(module.named_parameters())


def test_what_trains_comes_once_and_by_its_first_name() -> None:
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    module["b"].weight = module["a"].weight
    module["a"].bias.requires_grad_(False)
    assert list(trainable(module)) == ["a.weight", "b.bias"]

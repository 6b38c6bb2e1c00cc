"""A twin is a module of its own."""

import torch

from cos2p import model_config
from cos2p.models.layout import init_weights
from cos2p.models.skeleton import Skeleton, slots, trainable
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.models.transformer import Block, ElasticTransformer
from tests.tiny import VIT

SPEC = SubmodelSpec.full(VIT)


def test_slots_are_the_named_parameters() -> None:
    module = ElasticTransformer(VIT, SPEC)
    assert [(name, getattr(owner, own)) for name, owner, own in slots(module)] == list(module.named_parameters())


def test_what_happens_to_one_model_does_not_happen_to_the_next() -> None:
    weights = init_weights(VIT, seed=0)
    first = ElasticTransformer.made(VIT, SPEC, rescale=True).load({n: t.clone() for n, t in weights.items()})
    first.blocks["0"].register_forward_hook(lambda *_: None)
    first.eval()
    first.fold_rescale()
    with torch.no_grad():
        first.blocks["0"].get_parameter("q.weight").zero_()
    second = ElasticTransformer.made(VIT, SPEC, rescale=True)
    assert second.training
    assert all(p.is_meta for p in second.parameters())
    assert not second.blocks["0"]._forward_hooks
    assert torch.equal(second.load(weights).blocks["0"].get_parameter("q.weight"), weights["blocks.0.q.weight"])


def test_a_copied_model_computes_what_a_made_one_does() -> None:
    weights, images = init_weights(VIT, seed=0), torch.randn(2, VIT.channels, VIT.image, VIT.image)
    made, copied = ElasticTransformer(VIT, SPEC), ElasticTransformer.made(VIT, SPEC)
    assert torch.equal(made.load(weights)(images)[-1], copied.load(weights)(images)[-1])


def test_a_module_that_is_used_in_two_places_is_one_in_the_copy_too() -> None:
    config = model_config("llama-nano", qk_norm=True)
    block = Block(config, BlockKeep((0,), (0, 1)), rest=True)
    copy = Skeleton(block).twin()
    assert copy.rest is not None
    assert copy.rest.q_norm is copy.q_norm is not block.q_norm


def test_what_trains_comes_once_and_by_its_first_name() -> None:
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    module["b"].weight = module["a"].weight
    module["a"].bias.requires_grad_(False)
    assert list(trainable(module)) == ["a.weight", "b.bias"]

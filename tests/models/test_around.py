"""What does not train may stay around what does: the model then computes what the whole one computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings

from cos2p import ModelConfig, SubmodelSpec, extract, extract_prefix
from cos2p.errors import SpecError
from cos2p.models.layout import Weights, layout
from cos2p.models.spec import BlockKeep
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import frozen_slices, take, window_slices
from tests.models.test_transformer import assert_close, scalar
from tests.submodel.strategies import CONFIGS, random_inputs, random_weights, submodels_around

Case = tuple[ModelConfig, SubmodelSpec, int]


def held(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> ElasticTransformer:
    own = extract_prefix(weights, config, spec) | extract(weights, config, spec)
    return ElasticTransformer(config, spec, hold_prefix=True).load(own)


def whole(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> ElasticTransformer:
    """The full model, all of it trainable, with the spec's exits."""
    full = SubmodelSpec(0, (BlockKeep.full(config),) * spec.exits[-1], spec.exits)
    return ElasticTransformer(config, full).load(take(weights, window_slices(config, full)))


def unpruned(spec: SubmodelSpec) -> SubmodelSpec:
    return replace(spec, rest=True)


@settings(max_examples=60)
@given(submodels_around())
def test_with_the_rest_kept_a_submodel_is_the_whole_model(case: Case) -> None:
    """Whatever trains: outputs of the exits and gradients of the trained tensors are those of full backpropagation."""
    config, spec, seed = case
    spec = unpruned(spec)
    weights, inputs = random_weights(config, seed), random_inputs(config, seed, rows=spec.rows)
    part, full = held(config, spec, weights), whole(config, spec, weights)
    outputs, expected = part(inputs), full(inputs)
    columns = spec.rows if config.task == "language-modeling" and spec.rows is not None else None
    if columns is not None:
        expected = [output[..., list(columns)] for output in expected]
    for depth, found, wanted in zip(spec.exits, outputs, expected, strict=True):
        assert_close(found, wanted, f"exit {depth}")
    scalar(outputs).backward()
    scalar(expected).backward()
    gradients = {name: p.grad for name, p in full.named_parameters()}
    slices = window_slices(config, spec)
    trained = {name for name, p in part.named_parameters() if p.requires_grad}
    assert trained == set(slices)
    for name, parameter in part.named_parameters():
        if name in trained:
            gradient, cut = gradients[name], slices[name]
            assert gradient is not None
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if config.tied and name == "embed.tokens" and config.task == "language-modeling":
                continue  # its gradient is also that of the output table, whose missing rows are not in the loss
            assert_close(own, gradient if cut is None else gradient.index_select(*cut), name)


@settings(max_examples=40)
@given(submodels_around())
def test_what_is_sent_frozen_and_what_trains_do_not_overlap(case: Case) -> None:
    config, spec, _ = case
    entries: dict[str, torch.Tensor] = {}
    for slices in (window_slices(config, spec), frozen_slices(config, spec)):
        for name, cut in slices.items():
            count = entries.setdefault(name, torch.zeros(layout(config)[name].shape, dtype=torch.int64))
            count.index_add_(*cut, torch.ones_like(count.index_select(*cut))) if cut is not None else count.add_(1)
    assert all(int(count.max()) <= 1 for count in entries.values() if count.numel())


def test_with_all_rows_the_cut_table_is_the_table() -> None:
    """Language modelling over the rows of a shard: with all of them the loss is the full model's."""
    config = CONFIGS["llama untied"]
    weights, inputs = random_weights(config, 3), random_inputs(config, 3)
    full = SubmodelSpec.full(config)
    every = replace(full, rows=tuple(range(config.vocab)))
    labels = torch.roll(inputs, -1, 1).masked_fill(inputs == config.pad_token, -100)
    losses = []
    for spec in (full, every):
        model = ElasticTransformer(config, spec).load(extract(weights, config, spec))
        losses.append(F.cross_entropy(model(inputs)[-1].flatten(0, 1), model.targets(labels).flatten()))
    assert losses[0].item() == losses[1].item()


def test_labels_become_places_among_the_rows() -> None:
    config = CONFIGS["llama tied"]
    spec = replace(SubmodelSpec.full(config), rows=(0, 4, 9))
    model = ElasticTransformer(config, spec)
    assert model.targets(torch.tensor([[9, 4, -100]])).tolist() == [[2, 1, -100]]
    assert (
        ElasticTransformer(CONFIGS["bert"], SubmodelSpec.full(CONFIGS["bert"])).targets(torch.tensor([2])).item() == 2
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exits": (4,)}, "end at 2"),
        ({"exits": (2,), "suffix": True}, "end at 4"),
        ({"exits": (3, 4), "suffix": True}, "behind trainable blocks"),
        ({"rows": (3, 1)}, "ascending"),
        ({"rows": ()}, "at least one"),
        ({"rows": (20,)}, "0 to 19"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], said: str) -> None:
    config = CONFIGS["bert"]
    spec = SubmodelSpec(1, (BlockKeep((0,), (1,)),), (2,))
    with pytest.raises(SpecError, match=said):
        replace(spec, **changes).check(config)  # type: ignore[arg-type]


def test_rows_of_images_are_refused() -> None:
    with pytest.raises(SpecError, match="images"):
        replace(SubmodelSpec.full(CONFIGS["vit"]), rows=(1,)).check(CONFIGS["vit"])


def test_without_what_stands_above_nothing_is_guessed() -> None:
    config = CONFIGS["vit"]
    spec = SubmodelSpec(0, (BlockKeep.full(config),), (4,), suffix=True)
    model = ElasticTransformer(config, spec).load(extract(random_weights(config, 0), config, spec))
    with pytest.raises(ValueError, match="above"):
        model(random_inputs(config, 0))

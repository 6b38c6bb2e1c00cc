from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec, model
from cos2p.costs.shape import Shape
from cos2p.costs.tape import pass_tape
from cos2p.costs.walk import walk
from cos2p.costs.workload import Workload
from cos2p.models.spec import BlockKeep
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.activations import lighten
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import compact_shapes
from cos2p.training.distillation import exits_loss
from tests.submodel.allocator import peak_allocated
from tests.submodel.strategies import specs

NANO = {
    "vit": model("vit-nano"),
    "bert": model("bert-nano"),
    "llama": model("llama-nano", task="classification"),
    "llama tied": model("llama-nano"),
    "llama untied": model("llama-nano", tied=False),
}


def real_peak(config: ModelConfig, spec: SubmodelSpec, workload: Workload, train: bool) -> int:
    """Bytes that forward and backward hold beside weights and inputs, the window's features included."""
    rng = torch_rng(0, "tape")
    shapes = compact_shapes(config, spec)
    if config.task == "language-modeling":
        shapes |= {"embed.tokens": (config.vocab, config.dim)}
    weights = {name: torch.empty(shape).normal_(std=0.02, generator=rng) for name, shape in shapes.items()}
    held = ElasticTransformer(config, spec, rescale=workload.rescale).load(weights).train(train)
    if train:
        bf16 = workload.activation_bytes == 2
        lighten(held.blocks.values(), held.exits.values(), recompute=workload.recompute, bf16=bf16)
    batch, tokens = workload.batch, workload.length(config)
    if config.family == "vit":
        inputs = torch.randn(batch, config.channels, config.image, config.image, generator=rng)
    else:
        inputs = torch.randint(1, config.vocab, (batch, tokens), generator=rng)
    features = torch.randn(batch, tokens, config.dim, generator=rng) if spec.frozen else None
    labels_shape = (batch, tokens) if config.task == "language-modeling" else (batch,)
    labels = torch.randint(0, config.outputs, labels_shape, generator=rng)
    gates = None
    if not train:
        held.requires_grad_(False)
        gates = {
            i: (torch.ones(len(keep.heads), requires_grad=True), torch.ones(len(keep.units), requires_grad=True))
            for i, keep in enumerate(spec.window, spec.frozen)
        }

    def step() -> None:
        if train:
            exits_loss(held(inputs, features), labels, 0.5 if workload.distill else 0.0).backward()
        else:
            exits_loss(held(inputs, features, gates)[-1:], labels, 0.0).backward()

    step()  # kernels that keep something for good do it here
    held.zero_grad()
    for pair in (gates or {}).values():
        pair[0].grad = pair[1].grad = None
    return peak_allocated(step) + (features.nbytes if features is not None else 0)


def full(config: ModelConfig, frozen: int, blocks: int) -> SubmodelSpec:
    return SubmodelSpec(frozen, (BlockKeep.full(config),) * blocks, (frozen + blocks,))


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("name", NANO)
def test_full_width_training_is_predicted_to_the_percent(name: str, frozen: int) -> None:
    config, workload = NANO[name], Workload(batch=8, threads=1)
    spec = full(config, frozen, 2)
    predicted = walk(pass_tape(config, Shape.of(config, spec), workload)).total
    assert real_peak(config, spec, workload, train=True) == pytest.approx(predicted, rel=0.01)


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("name", NANO)
def test_the_mask_phase_is_predicted_to_the_percent(name: str, frozen: int) -> None:
    config, workload = NANO[name], Workload(batch=8, threads=1)
    spec = full(config, frozen, 2)
    predicted = walk(pass_tape(config, Shape.of(config, spec), workload, train=False)).total
    assert real_peak(config, spec, workload, train=False) == pytest.approx(predicted, rel=0.01)


LIGHTER: list[dict[str, Any]] = [
    {"recompute": True},
    {"activation_bytes": 2},
    {"recompute": True, "activation_bytes": 2},
]


@pytest.mark.parametrize("lighter", LIGHTER)
@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("name", NANO)
def test_lighter_activations_need_at_most_what_the_tape_says_and_hardly_less(
    name: str, frozen: int, lighter: dict[str, Any]
) -> None:
    config = NANO[name]
    workload, spec = Workload(batch=8, threads=1, **lighter), full(config, frozen, 3)
    predicted = walk(pass_tape(config, Shape.of(config, spec), workload)).total
    real = real_peak(config, spec, workload, train=True)
    # A product in bf16 has scratch, which in so small a model is seen; the ledger has a line for it.
    assert 0.9 * predicted <= real <= (1.01 if workload.activation_bytes == 4 else 1.05) * predicted


@st.composite
def cases(draw: st.DrawFn) -> tuple[ModelConfig, SubmodelSpec, Workload, bool]:
    config = draw(st.sampled_from(list(NANO.values())))
    options: dict[str, Any] = {"distill": draw(st.booleans()), "rescale": draw(st.booleans())}
    workload = Workload(batch=draw(st.integers(4, 12)), threads=1, **options)
    return config, draw(specs(config)), workload, draw(st.booleans())


@settings(max_examples=30)
@given(cases())
def test_any_submodel_needs_at_most_what_the_tape_says_and_hardly_less(
    case: tuple[ModelConfig, SubmodelSpec, Workload, bool],
) -> None:
    config, spec, workload, train = case
    if not train and not any(keep.heads or keep.units for keep in spec.window):
        return  # nothing to train
    predicted = walk(pass_tape(config, Shape.of(config, spec), workload, train=train)).total
    real = real_peak(config, spec, workload, train)
    assert real <= 1.01 * predicted
    if all(keep.heads and keep.units for keep in spec.window):
        assert real >= 0.85 * predicted

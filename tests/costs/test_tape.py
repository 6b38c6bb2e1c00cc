from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec, extract_prefix, init_weights, model_config
from cos2p.costs.shape import Shape, Workload
from cos2p.costs.tape import pass_tape, walk
from cos2p.models.spec import BlockKeep
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.backward_step import recompute
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import trained_shapes
from cos2p.testing.gpu import peak_allocated
from cos2p.training.losses import exits_loss
from cos2p.training.prefix import PrefixFile, StreamedSuffix, encode
from tests.submodel.strategies import specs

PLAIN = {
    "vit": model_config("vit-nano"),
    "bert": model_config("bert-nano"),
    "llama": model_config("llama-nano", task="classification"),
    "llama tied": model_config("llama-nano"),
    "llama untied": model_config("llama-nano", tied=False),
}
SWITCHED = {
    "vit mean": model_config("vit-nano", pooling="mean"),
    "bert mean": model_config("bert-nano", pooling="mean"),
    "llama mean": model_config("llama-nano", task="classification", pooling="mean"),
    "bert without types": model_config("bert-nano", token_types=0, activation="gelu_tanh"),
    "llama qkv": model_config("llama-nano", task="classification", attention_bias="qkv"),
    "llama qk norm": model_config("llama-nano", task="classification", attention_bias="all", qk_norm=True),
}
NANO = PLAIN | SWITCHED


def real_peak(config: ModelConfig, spec: SubmodelSpec, workload: Workload, train: bool) -> int:
    """Bytes that forward and backward hold next to weights and inputs, the window's features included."""
    rng = torch_rng(0, "tape")
    shapes = dict(trained_shapes(config, spec))
    rows = config.vocab if spec.rows is None else len(spec.rows)
    if config.task == "language-modeling":
        shapes |= {"embed.tokens": (rows, config.dim)}
    file = PrefixFile(encode(extract_prefix(init_weights(config, 0), config, spec), "float16"))
    if spec.rest:
        for block in range(spec.frozen, spec.top):
            part = file.part(f"blocks.{block}.rest.")
            shapes |= {f"blocks.{block}.rest.{name}": tuple(tensor.shape) for name, tensor in part.items()}
    weights = {name: torch.empty(shape).normal_(std=0.02, generator=rng) for name, shape in shapes.items()}
    held = ElasticTransformer(config, spec, rescale=workload.rescale).load(weights).train(train)
    held.above = StreamedSuffix(config, spec, file)
    if train and workload.recompute:
        recompute(held.blocks.values())
    batch, tokens = workload.batch, workload.length(config)
    if config.family == "vit":
        inputs = torch.randn(batch, config.channels, config.image, config.image, generator=rng)
    else:
        inputs = torch.randint(1, config.vocab, (batch, tokens), generator=rng)
        inputs = inputs if spec.rows is None else torch.tensor(spec.rows)[inputs % rows]
    features = torch.randn(batch, tokens, config.dim, generator=rng) if spec.has_prefix else None
    language = config.task == "language-modeling"
    labels_shape = (batch, tokens) if language else (batch,)
    labels = torch.randint(0, rows if language else config.classes, labels_shape, generator=rng)
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


def around(config: ModelConfig, frozen: int, blocks: int, share: int) -> SubmodelSpec:
    """A window that trains one `share`-th of its blocks, with everything else kept."""
    keep = BlockKeep(tuple(range(config.groups // share)), tuple(range(config.mlp // share)))
    return SubmodelSpec(frozen, (keep,) * blocks, (config.depth,), rest=True, suffix=True)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("frozen", "blocks", "share"), [(0, 1, 1), (1, 1, 4), (1, 2, 2), (2, 2, 4)])
@pytest.mark.parametrize("name", NANO)
def test_what_stays_around_the_window_is_predicted_and_hardly_too_much(
    name: str, frozen: int, blocks: int, share: int, recompute: bool
) -> None:
    config, workload = NANO[name], Workload(batch=8, threads=1, recompute=recompute)
    spec = around(config, frozen, blocks, share)
    predicted = walk(pass_tape(config, Shape.of(config, spec), workload)).total
    real = real_peak(config, spec, workload, train=True)
    assert 0.75 * predicted <= real <= 1.01 * predicted


def test_rows_that_a_device_lacks_cost_nothing() -> None:
    config, workload = model_config("bert-nano", pooling="mean", vocab=4000), Workload(batch=2, threads=1)
    spec = replace(full(config, 0, 1), rows=tuple(range(0, 4000, 100)))
    predicted = walk(pass_tape(config, Shape.of(config, spec), workload)).total
    assert real_peak(config, spec, workload, train=True) == pytest.approx(predicted, rel=0.02)
    assert predicted < 0.6 * walk(pass_tape(config, Shape.of(config, full(config, 0, 1)), workload)).total


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize("name", NANO)
def test_recomputed_blocks_need_at_most_what_the_tape_says_and_hardly_less(name: str, frozen: int) -> None:
    config = NANO[name]
    workload, spec = Workload(batch=8, threads=1, recompute=True), full(config, frozen, 3)
    predicted = walk(pass_tape(config, Shape.of(config, spec), workload)).total
    real = real_peak(config, spec, workload, train=True)
    assert 0.9 * predicted <= real <= 1.01 * predicted


@st.composite
def cases(draw: st.DrawFn, configs: dict[str, ModelConfig]) -> tuple[ModelConfig, SubmodelSpec, Workload, bool]:
    config = draw(st.sampled_from(list(configs.values())))
    options: dict[str, Any] = {"distill": draw(st.booleans()), "rescale": draw(st.booleans())}
    workload = Workload(batch=draw(st.integers(4, 12)), threads=1, **options)
    return config, draw(specs(config)), workload, draw(st.booleans())


@settings(max_examples=30)
@given(cases(PLAIN))
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


@settings(max_examples=20)
@given(cases(SWITCHED))
def test_no_switch_of_the_block_makes_a_submodel_need_more(
    case: tuple[ModelConfig, SubmodelSpec, Workload, bool],
) -> None:
    config, spec, workload, train = case
    if not train and not any(keep.heads or keep.units for keep in spec.window):
        return  # nothing to train
    predicted = walk(pass_tape(config, Shape.of(config, spec), workload, train=train)).total
    assert real_peak(config, spec, workload, train) <= 1.01 * predicted

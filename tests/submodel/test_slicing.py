from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import SpecError
from cos2p.models.layout import Weights, layout
from cos2p.models.spec import BlockKeep
from cos2p.submodel.slicing import extract, extract_prefix, narrow, scatter, trained_shapes, window_slices
from tests.submodel.strategies import CONFIGS, random_weights, submodels

Case = tuple[ModelConfig, SubmodelSpec, int]


def entries_trained(config: ModelConfig, spec: SubmodelSpec) -> dict[str, Tensor]:
    """True at every scalar a device trains: marked one segment after the other, straight from the definition."""
    marks = {name: torch.zeros(p.shape, dtype=torch.bool) for name, p in layout(config).items()}
    whole = [name for name in marks if name.startswith("embed.") and spec.frozen == 0]
    for depth in spec.exits:
        key = "exits.shared." if config.exits == "shared" else f"exits.{depth}."
        whole += [name for name in marks if name.startswith(key)]
    for name in (*whole, *(name for name in marks if name == "lm_head.weight")):
        marks[name][:] = True
    size, queries = config.head_dim, config.heads // config.kv_heads
    for block in range(spec.frozen, spec.top):
        at = f"blocks.{block}."
        for name in (n for n in marks if n.startswith(at)):
            if "norm" in name or name in (at + "o.bias", at + "fc2.bias"):
                marks[name][:] = True
        for head in spec.keep(block).heads:
            own_queries = slice(head * queries * size, (head + 1) * queries * size)
            own_keys = slice(head * size, (head + 1) * size)
            for module, rows in (("q", own_queries), ("k", own_keys), ("v", own_keys)):
                for name in (n for n in marks if n.startswith(f"{at}{module}.")):
                    marks[name][rows] = True
            marks[at + "o.weight"][:, own_queries] = True
        for unit in spec.keep(block).units:
            for name in ("fc1.weight", "fc1.bias", "gate.weight"):
                if at + name in marks:
                    marks[at + name][unit] = True
            marks[at + "fc2.weight"][:, unit] = True
    return marks


def equal(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@given(submodels())
def test_extract_takes_exactly_the_segments_of_the_definition(case: Case) -> None:
    config, spec, seed = case
    weights = random_weights(config, seed)
    compact = extract(weights, config, spec)
    for name, mark in entries_trained(config, spec).items():
        expected = weights[name][mark]
        found = compact[name].flatten() if name in compact else torch.empty(0)
        assert torch.equal(found, expected), name


@given(submodels(), st.data())
def test_extract_takes_the_tensors_that_are_named(case: Case, data: st.DataObject) -> None:
    config, spec, seed = case
    weights = random_weights(config, seed)
    whole = extract(weights, config, spec)
    names = data.draw(st.lists(st.sampled_from(sorted(whole)), unique=True))
    assert equal(extract({name: weights[name] for name in names}, config, spec, names), {n: whole[n] for n in names})


@given(submodels())
def test_extract_then_scatter_is_a_bitwise_identity(case: Case) -> None:
    config, spec, seed = case
    weights = random_weights(config, seed)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    assert equal(scatter(extract(weights, config, spec), weights, config, spec), before)


@given(submodels())
def test_scatter_writes_the_submodel_and_leaves_all_else_bitwise(case: Case) -> None:
    config, spec, seed = case
    weights = random_weights(config, seed)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    changed = {name: tensor + 1 for name, tensor in extract(weights, config, spec).items()}
    scatter(changed, weights, config, spec)
    assert equal(extract(weights, config, spec), changed)
    for name, mark in entries_trained(config, spec).items():
        assert torch.equal(weights[name][~mark], before[name][~mark]), name
        assert torch.equal(weights[name][mark], before[name][mark] + 1), name


@given(submodels())
def test_shapes_are_those_of_the_tensors(case: Case) -> None:
    config, spec, seed = case
    compact = extract(random_weights(config, seed), config, spec)
    assert trained_shapes(config, spec) == {name: tuple(tensor.shape) for name, tensor in compact.items()}


@given(submodels(least_frozen=1))
def test_prefix_has_embeddings_and_the_blocks_below_the_window(case: Case) -> None:
    config, spec, seed = case
    prefix = extract_prefix(random_weights(config, seed), config, spec)
    assert {name.split(".")[1] for name in prefix if name.startswith("blocks.")} == {str(i) for i in range(spec.frozen)}
    assert {n for n in prefix if n.startswith("embed.")} == {n for n in layout(config) if n.startswith("embed.")}
    for block in range(spec.frozen):
        heads, units = config.groups, config.mlp
        assert prefix[f"blocks.{block}.k.weight"].shape[0] == heads * config.head_dim
        assert prefix[f"blocks.{block}.fc2.weight"].shape[1] == units


def test_without_frozen_blocks_there_is_no_prefix() -> None:
    config = CONFIGS["vit"]
    assert extract_prefix(random_weights(config, 0), config, SubmodelSpec.full(config)) == {}


def test_grouped_queries_go_with_their_kv_head_by_hand() -> None:
    config = CONFIGS["llama classification"]  # 8 query heads of size 2, 4 KV heads
    spec = SubmodelSpec(1, (BlockKeep((2,), (7,)),), (2,))
    slices = window_slices(config, spec)
    kept = {name: slices[f"blocks.1.{name}.weight"] for name in ("q", "k", "o", "gate", "fc2")}
    found = {name: (cut[0], cut[1].tolist()) for name, cut in kept.items() if cut is not None}
    assert found == {
        "q": (0, [8, 9, 10, 11]),
        "k": (0, [4, 5]),
        "o": (1, [8, 9, 10, 11]),
        "gate": (0, [7]),
        "fc2": (1, [7]),
    }


def test_what_was_extracted_is_a_copy() -> None:
    config = CONFIGS["vit"]
    weights = random_weights(config, 0)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    for tensor in extract(weights, config, SubmodelSpec.full(config)).values():
        tensor.zero_()
    assert equal(weights, before)


def test_scatter_takes_half_precision() -> None:
    config = CONFIGS["vit"]
    spec = SubmodelSpec(2, (BlockKeep((0,), (1,)),), (3,))
    weights = random_weights(config, 0)
    halves = {name: tensor.bfloat16() for name, tensor in extract(weights, config, spec).items()}
    scatter(halves, weights, config, spec)
    assert equal(extract(weights, config, spec), {name: tensor.float() for name, tensor in halves.items()})


def test_scatter_refuses_foreign_and_misshapen_tensors_and_writes_nothing() -> None:
    config = CONFIGS["vit"]
    spec = SubmodelSpec(2, (BlockKeep((0,), (1,)),), (3,))
    weights = random_weights(config, 0)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    compact = {name: tensor + 1 for name, tensor in extract(weights, config, spec).items()}
    with pytest.raises(SpecError, match=r"blocks\.0\.q\.weight is not part of this submodel"):
        scatter(compact | {"blocks.0.q.weight": torch.zeros(4, 16)}, weights, config, spec)
    with pytest.raises(SpecError, match=r"blocks\.2\.q\.weight has shape \(2, 2\), the spec says \(4, 16\)"):
        scatter(compact | {"blocks.2.q.weight": torch.zeros(2, 2)}, weights, config, spec)
    assert equal(weights, before)


def _part(data: st.DataObject, kept: tuple[int, ...]) -> tuple[int, ...]:
    chosen = data.draw(st.sets(st.sampled_from(kept))) if kept else set()
    return tuple(sorted(chosen))


@given(submodels(), st.data())
def test_narrowing_a_cut_submodel_equals_cutting_the_model(case: Case, data: st.DataObject) -> None:
    config, wide, seed = case
    weights = random_weights(config, seed)
    window = tuple(BlockKeep(_part(data, keep.heads), _part(data, keep.units)) for keep in wide.window)
    chosen = replace(wide, window=window)
    assert equal(narrow(extract(weights, config, wide), config, wide, chosen), extract(weights, config, chosen))


def test_only_a_part_of_the_same_window_is_narrower() -> None:
    config = CONFIGS["vit"]
    wide = SubmodelSpec(2, (BlockKeep((0, 1), (1,)),), (3,))
    compact = extract(random_weights(config, 0), config, wide)
    with pytest.raises(SpecError, match="block 2: the narrower submodel keeps segments that the wider one lacks"):
        narrow(compact, config, wide, replace(wide, window=(BlockKeep((0, 2), (1,)),)))
    with pytest.raises(SpecError, match="only inside the same window, with the same exits"):
        narrow(compact, config, wide, replace(wide, frozen=1, exits=(2,)))

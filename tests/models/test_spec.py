from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import SpecError
from cos2p.models.spec import BlockKeep
from tests.submodel.strategies import CONFIGS, submodels_around

CONFIG = CONFIGS["vit"]  # 4 blocks of 4 heads and 10 units
KEEP = BlockKeep((0, 2), (1, 5, 9))
SPEC = SubmodelSpec(frozen=1, window=(KEEP, KEEP), exits=(2, 3))


@given(submodels_around())
def test_json_round_trip(case: tuple[ModelConfig, SubmodelSpec, int]) -> None:
    config, spec, _ = case
    back = SubmodelSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert back == spec
    assert hash(back) == hash(spec)
    assert back.check(config) is back


def test_json_costs_one_bit_a_segment() -> None:
    config = ModelConfig("vit", dim=768, depth=12, heads=12, mlp=3072)
    assert len(json.dumps(SubmodelSpec.full(config).to_dict())) < 12 * (3072 / 4 + 12 / 4) + 200


def test_a_spec_is_a_value() -> None:
    assert len({SPEC, SubmodelSpec(1, (KEEP, KEEP), (2, 3))}) == 1
    with pytest.raises(FrozenInstanceError):
        SPEC.frozen = 0  # type: ignore[misc]


def test_keep_takes_any_integers_in_any_order() -> None:
    assert BlockKeep.of(torch.tensor([3, 1]), [2]) == BlockKeep((1, 3), (2,))


def test_properties() -> None:
    assert SPEC.check(CONFIG).top == 3
    assert not SPEC.trains_embeddings
    assert SPEC.keep(1) is SPEC.window[0]
    assert SubmodelSpec.full(CONFIG).trains_embeddings
    assert SubmodelSpec.full(CONFIG, exits=[2, 4]).exits == (2, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": (), "exits": (1,)}, "the window is empty; a submodel trains at least one block"),
        ({"frozen": 3}, "the window covers blocks 3 to 4, but the model has blocks 0 to 3"),
        ({"frozen": -1}, "the window covers blocks -1 to 0"),
        ({"window": (KEEP, BlockKeep((4,), ()))}, "block 2 has no head 4; its heads are 0 to 3"),
        ({"window": (KEEP, BlockKeep((-1,), ()))}, "block 2 has no head -1; its heads are 0 to 3"),
        ({"window": (BlockKeep((), (10,)), KEEP)}, "block 1 has no unit 10; its units are 0 to 9"),
        ({"window": (BlockKeep((1, 0), ()), KEEP)}, "block 1: heads must be ascending without repetition"),
        ({"window": (BlockKeep((), (2, 2)), KEEP)}, "block 1: units must be ascending without repetition"),
        ({"exits": ()}, r"exits \(\) must be ascending, without repetition, and at least one"),
        ({"exits": (3, 2)}, r"exits \(3, 2\) must be ascending"),
        ({"exits": (1, 3)}, r"exits \(1, 3\) must lie behind trainable blocks \(depths 2 to 3\) and end at 3"),
        ({"exits": (2,)}, r"exits \(2,\) must lie behind trainable blocks \(depths 2 to 3\) and end at 3"),
    ],
)
def test_a_spec_that_names_what_does_not_exist_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(SPEC, **changes).check(CONFIG)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"frozen":0}',
        '{"frozen":"x","window":[],"exits":[]}',
        '{"frozen":0,"window":[["zz",""]],"exits":[1]}',
        '{"frozen":0,"window":[7],"exits":[1]}',
    ],
)
def test_what_is_no_spec_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="not a submodel spec"):
        SubmodelSpec.from_dict(json.loads(text))

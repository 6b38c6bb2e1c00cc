from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cos2p import SubmodelSpec, model_config
from cos2p.models.config import ModelConfig
from cos2p.models.flat_tensors import FlatTensors, flat_layout
from cos2p.models.spec import BlockKeep
from cos2p.submodel import native
from cos2p.submodel.kernels import Scratch
from cos2p.submodel.native.passes import Passes, Table
from cos2p.submodel.slicing import compact_shapes
from cos2p.submodel.square_sums import Squares, norms, segment_squares
from tests.submodel.native import built
from tests.tiny import VIT


def by_key(squares: Squares) -> dict[str, tuple[list[float], int]]:
    return {
        key: (row.tolist(), own.size)
        for own, part in zip(squares.of, squares.parts(), strict=True)
        for key, row in zip(own.keys, part, strict=True)
    }


def filled(config: ModelConfig, spec: SubmodelSpec, seed: int = 0) -> FlatTensors:
    arranged = flat_layout(tuple(sorted(compact_shapes(config, spec).items())))
    return FlatTensors(arranged, torch.randn(arranged.scalars, generator=torch.manual_seed(seed)))


def compared(config: ModelConfig, spec: SubmodelSpec) -> int:
    """Together, in C or not, and one by one give the same bits. How many sums there were."""
    piece = filled(config, spec)
    with native.using(None):
        alone = by_key(segment_squares(dict(piece), config, Scratch()))
    for passes in (built(), None):
        with native.using(passes):
            together = segment_squares(piece, config, Scratch())
        assert by_key(together) == alone
    return len(together.of)


def test_blocks_that_are_alike_are_summed_together_bit_for_bit() -> None:
    config = model_config("vit-nano", depth=12)  # block 10 stands before block 2
    assert compared(config, SubmodelSpec.full(config)) < 20


def test_blocks_of_unequal_width_are_summed_one_by_one_or_together_with_the_same_bits() -> None:
    wide, thin = BlockKeep((0, 1, 2), (0, 3, 4)), BlockKeep((2,), (1,))
    for window in ((wide, wide, thin), (wide, thin, wide), (thin, wide, wide)):
        compared(VIT, SubmodelSpec(0, window, (3,)))


@given(
    head_dim=st.sampled_from((2, 3, 8, 16)),
    mlp=st.integers(9, 70),
    classes=st.integers(2, 20),
    depth=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_sums_and_norms_in_c_have_the_bits_of_torch(
    head_dim: int, mlp: int, classes: int, depth: int, seed: int
) -> None:
    config = model_config("vit-nano", dim=8 * head_dim, heads=8, mlp=mlp, classes=classes, depth=depth)
    piece = filled(config, SubmodelSpec.full(config), seed)
    with native.using(None):
        expected = segment_squares(piece, config, Scratch()).values, norms(piece)
    passes = built()
    calls = Counted(passes.library, passes.expand)
    with native.using(calls):
        found = segment_squares(piece, config, Scratch()).values, norms(piece)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert calls.done == [True, True]


@dataclass(frozen=True)
class Counted(Passes):
    """Notes of every call by a table whether it was done in C."""

    done: list[bool] = field(default_factory=list)

    def _by_table(self, function: Callable[..., int], memory: Tensor, table: Table) -> Tensor | None:
        found = super()._by_table(function, memory, table)
        self.done.append(found is not None)
        return found

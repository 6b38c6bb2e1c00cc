from __future__ import annotations

import torch

from cos2p import SubmodelSpec, model
from cos2p.models.one_piece import OnePiece, arrangement
from cos2p.models.spec import BlockKeep
from cos2p.submodel.kernels import Scratch
from cos2p.submodel.slicing import compact_shapes
from cos2p.submodel.square_sums import Squares, segment_squares
from tests.tiny import VIT


def by_key(squares: list[Squares]) -> dict[str, tuple[list[float], int]]:
    return {key: (row.tolist(), own.size) for own in squares for key, row in zip(own.keys, own.values, strict=True)}


def compared(config: object, spec: SubmodelSpec) -> int:
    """Together and one by one give the same bits. How many sums there were."""
    shapes = compact_shapes(config, spec)  # type: ignore[arg-type]
    arranged = arrangement(tuple(sorted(shapes.items())))
    piece = OnePiece(arranged, torch.randn(arranged.scalars, generator=torch.manual_seed(0)))
    together = segment_squares(piece, config, Scratch())  # type: ignore[arg-type]
    assert by_key(together) == by_key(segment_squares(dict(piece), config, Scratch()))  # type: ignore[arg-type]
    return len(together)


def test_blocks_that_are_alike_are_summed_together_bit_for_bit() -> None:
    config = model("vit-nano", depth=12)  # block 10 stands before block 2
    assert compared(config, SubmodelSpec.full(config)) < 20


def test_blocks_of_unequal_width_are_summed_one_by_one_or_together_with_the_same_bits() -> None:
    wide, thin = BlockKeep((0, 1, 2), (0, 3, 4)), BlockKeep((2,), (1,))
    for window in ((wide, wide, thin), (wide, thin, wide), (thin, wide, wide)):
        compared(VIT, SubmodelSpec(0, window, (3,)))

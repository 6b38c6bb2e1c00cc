"""The C functions of this folder, for tensors. Nothing reaches C that is not what it expects.

Float32 on the processor, in one piece, of shapes that fit; indices are looked at in C. Whatever is otherwise is
not done (False, None), nothing is changed then, and torch does it or says what is wrong.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from cos2p.accelerator import CPU

VERSION = 1
"""`cos2p_version` must say this. Both are raised when the arguments of a function change: an older build is then not
called, which would write anywhere."""

_FLOATS, _INDEX, _LENGTH, _FLAG = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_ADD = (_FLOATS, _LENGTH, _LENGTH, _FLOATS, _INDEX, _LENGTH, _FLOATS, _LENGTH, _LENGTH, _FLAG)
_ARGUMENTS = {
    "cos2p_can_run": (),
    "cos2p_has_expand": (),
    "cos2p_add_rows": _ADD,
    "cos2p_add_columns": _ADD,
    "cos2p_add_columns_expanded": _ADD,
    "cos2p_row_sums": (_FLOATS, _FLOATS, _FLOATS, _LENGTH, _LENGTH, _INDEX, _LENGTH),
    "cos2p_column_sums": (_FLOATS, _FLOATS, _FLOATS, _LENGTH, _LENGTH, _LENGTH),
    "cos2p_step_rows": (_FLOATS, _FLOATS, _FLOATS, _LENGTH, _LENGTH, _FLOATS),
    "cos2p_step_columns": (_FLOATS, _FLOATS, _FLOATS, _LENGTH, _LENGTH, _FLOATS, _LENGTH),
}


def load(folder: Path = Path(__file__).parent) -> ctypes.CDLL | None:
    """None if it was not built, was built from other sources than these, or cannot run on this processor."""
    for path in (folder / f"_library{suffix}" for suffix in EXTENSION_SUFFIXES):
        if not path.is_file():
            continue
        try:
            library = ctypes.CDLL(str(path))
            if library.cos2p_version() != VERSION:
                continue
            for name, arguments in _ARGUMENTS.items():
                getattr(library, name).argtypes = arguments
        except (OSError, AttributeError):  # of another machine; or of other sources
            continue
        return library if library.cos2p_can_run() else None
    return None


@dataclass(frozen=True)
class Passes:
    library: ctypes.CDLL
    expand: bool
    """Whether the processor spreads numbers by a mask (AVX-512): columns are added several times as fast."""
    adds: bool = True
    """Trusted with products and their sums: they come out as torch's."""
    sums: bool = True
    """Trusted with the order of long sums."""

    def add_part(self, total: Tensor, part: Tensor, factor: Tensor, dim: int, index: Tensor, *,
                 worth: int, first: bool) -> bool:  # fmt: skip
        """total[index] += part · factor along `dim`; `factor` has an entry for each of the index, or is a scalar.

        Where the index has runs of `worth` entries on average, rounded as by addcmul_, else as by mul and index_add_.
        With `first` whatever is in `total` does not count: the rest of it becomes zero.
        """
        if not self.adds or not (_plain(total) and _plain(part) and _plain(factor)) or total.requires_grad:
            return False
        shape, kept = list(total.shape), _length(index)
        if dim not in (0, 1) or dim >= len(shape) or (dim == 1 and len(shape) != 2) or kept is None:
            return False
        rows, width = shape[0], total.numel() // max(1, shape[0])
        shape[dim] = kept
        if list(part.shape) != shape or not _along(factor, dim, kept, len(shape)):
            return False
        columns = self.library.cos2p_add_columns_expanded if self.expand else self.library.cos2p_add_columns
        refused = (columns if dim else self.library.cos2p_add_rows)(
            total.data_ptr(), rows, width, part.data_ptr(), index.data_ptr(), kept,
            factor.data_ptr(), 1 if factor.ndim else 0, worth, first,
        )  # fmt: skip
        if not refused:
            increment_version(total)
        return not refused

    def row_sums(self, a: Tensor, b: Tensor | None = None) -> Tensor | None:
        """Σ|a|, or Σ|a − b|, of every row of a matrix."""
        if not self.sums_of(a, b):
            return None
        sums = torch.empty(a.shape[0])
        refused = self.library.cos2p_row_sums(
            sums.data_ptr(), a.data_ptr(), None if b is None else b.data_ptr(), *a.shape, None, a.shape[0]
        )
        return None if refused else sums

    def column_sums(self, a: Tensor, b: Tensor | None = None, *, piece: int) -> Tensor | None:
        """The same of every column, `piece` rows at a time."""
        if not self.sums_of(a, b):
            return None
        sums = torch.empty(a.shape[1])
        refused = self.library.cos2p_column_sums(
            sums.data_ptr(), a.data_ptr(), None if b is None else b.data_ptr(), *a.shape, piece
        )
        return None if refused else sums

    def step(self, total: Tensor, current: Tensor, inverse: Tensor, dim: int, *, piece: int) -> Tensor | None:
        """Write current − total · inverse into `total`. Returns Σ|current − total| then, of every entry along `dim`."""
        if not self.adds or not self.sums_of(total, current) or not _plain(inverse) or total.requires_grad:
            return None
        if dim not in (0, 1) or not _along(inverse, dim, total.shape[dim], 2) or not inverse.ndim:
            return None
        way = torch.empty(total.shape[dim])
        arguments = (total.data_ptr(), current.data_ptr(), inverse.data_ptr(), *total.shape, way.data_ptr())
        if self.library.cos2p_step_columns(*arguments, piece) if dim else self.library.cos2p_step_rows(*arguments):
            return None
        increment_version(total)
        return way

    def sums_of(self, a: Tensor, b: Tensor | None) -> bool:
        """Whether these are matrices to be summed here."""
        return self.sums and a.ndim == 2 and _plain(a) and (b is None or (_plain(b) and a.shape == b.shape))


def _plain(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor  # others may only look as if they had memory
        and tensor.dtype is torch.float32
        and tensor.device == CPU
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
    )


def _length(index: Tensor) -> int | None:
    plain = type(index) is Tensor and index.dtype is torch.int64 and index.ndim == 1 and index.device == CPU
    return index.shape[0] if plain and index.is_contiguous() else None


def _along(factor: Tensor, dim: int, kept: int, axes: int) -> bool:
    """One for all, or one for each entry of the axis, in a shape that multiplies them."""
    if factor.ndim == 0:
        return True
    return list(factor.shape) == [kept if axis == dim else 1 for axis in range(axes)]

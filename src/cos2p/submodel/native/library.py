"""The C functions of this folder as ctypes knows them: where they are, and what they take."""

from __future__ import annotations

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

VERSION = 1
"""What `cos2p_version` must say. Both are raised when the arguments of a function change: an older build is then not
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
    "cos2p_norms": (_FLOATS, _FLOATS, _INDEX, _LENGTH),
    "cos2p_segment_squares": (_FLOATS, _FLOATS, _INDEX, _LENGTH),
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

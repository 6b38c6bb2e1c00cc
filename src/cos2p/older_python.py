"""Stand-ins for things that Python 3.10 lacks, so that no other file asks for the version."""

from __future__ import annotations

import hashlib
import sys
from typing import BinaryIO

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["add_note", "sha256_of", "tomllib"]

_PIECE = 2**20


def add_note(error: BaseException, note: str) -> None:
    """`error.add_note(note)`; Python 3.10 keeps the note as later ones do, and does not print it."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), note]


def sha256_of(file: BinaryIO) -> str:
    """The digest of all that is left in the file, a piece at a time."""
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()

"""Columns of a table, and what the cells of an image column can be: bytes, a file name, or base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cos2p.data import paths
from cos2p.data.images import BadImage, Content
from cos2p.data.select import IntArray
from cos2p.errors import DataError


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns that are read one at a time, when they are needed."""

    where: str
    columns: tuple[str, ...]
    read: Callable[[list[str]], pa.Table]
    folder: Path | None = None
    """Where image files named in the table are; None: there are none."""
    class_names: tuple[str, ...] | None = None
    stream: Callable[[str], Iterator[pa.Array]] | None = None
    """One column piece by piece, for columns that do not fit into memory; None: `read` is all there is."""
    identity: str = ""
    """Changes when the content does."""


def image_cells(table: Table, column: str, rows: IntArray) -> Iterator[Content]:
    """The encoded images of these rows, ascending; a file name becomes its file."""
    start = 0
    for piece in _pieces(table, column):
        first, last = np.searchsorted(rows, (start, start + len(piece)))
        for row in rows[first:last].tolist():
            yield _image(table, f"{table.where}, row {row}", piece[row - start].as_py())
        start += len(piece)


def _pieces(table: Table, column: str) -> Iterator[pa.Array]:
    if table.stream is not None:
        return table.stream(column)
    chunks: list[pa.Array] = table.read([column]).column(column).chunks
    return iter(chunks)


def _image(table: Table, name: str, value: Any) -> Content:
    if isinstance(value, dict):  # the hub's way: {"bytes": ..., "path": ...}
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes) and value:
        return value
    if isinstance(value, str) and value:
        return _file_or_base64(table, name, value)
    if value in (None, "", b""):
        return BadImage(name, "it is empty; encoded bytes or a file name were expected")
    raise DataError(f"{name}: the image holds {type(value).__name__}; encoded bytes or a file name were expected")


def _file_or_base64(table: Table, name: str, value: str) -> Content:
    # File names are short; asking the system about a megabyte of base64 is an error of its own.
    if table.folder is not None and len(value) < 1024 and (table.folder / value).is_file():
        return paths.opened(table.folder / value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        shown = value if len(value) < 80 else value[:77] + "..."
        return BadImage(name, f"{shown!r} is neither a file in {table.folder} nor an image in base64")

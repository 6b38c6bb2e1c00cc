"""Checksums of what a run depends on: a disk that gave back other bytes is named, and nothing is computed with them.

They find damage, not malice: CRC-32 costs a second for four gigabytes. A file of tensors has its own in its header
(`of_tensors`), a log has one in each line; of other files a folder's `checksums.json` has them, by name. That file is
written first and keeps the checksum before, too: after a crash in between, the old content is as good as the new.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cos2p.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor  # the command line starts without torch

MANIFEST = "checksums.json"
_OWN = "of this list"
_PIECE = 2**22


def crc(*pieces: bytes | memoryview) -> str:
    """The checksum of these bytes one after the other.

    >>> crc(b"12345", b"6789")
    'cbf43926'
    """
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return f"{value:08x}"


def of_tensors(meta: str, tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The checksum of tensors with their names, types and shapes, in any order, and of the text that goes with them."""
    lines = []
    for name, tensor in tensors:
        content = _bytes_of(tensor)
        lines.append(f"{name} {tensor.dtype} {tuple(tensor.shape)} {crc(content)}")
    return crc("\n".join([meta, *sorted(lines)]).encode())


def _bytes_of(tensor: Tensor) -> memoryview:
    import torch  # slow to import, and not needed for files

    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def of_file(path: Path) -> str:
    value = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
    return f"{value:08x}"


def note(path: Path, checksum: str) -> None:
    """The file is about to be written with this content."""
    known = _listed(path.parent)
    _write(path.parent, known | {path.name: [checksum, *known.get(path.name, ())[:1]]})


def note_folder(folder: Path, but: Collection[str] = ()) -> None:
    """All files below the folder are as they shall be."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in (MANIFEST, *but))
    _write(folder, {str(path.relative_to(folder)): [of_file(path)] for path in files})


def check(path: Path) -> Path:
    """The path; RunError if the file is not as it was written. One that its folder does not list is let through."""
    _compare(path, _listed(path.parent).get(path.name), path.parent)
    return path


def check_folder(folder: Path) -> None:
    """RunError that names the first file that is not as it was written."""
    for name, expected in _listed(folder).items():
        _compare(folder / name, expected, folder)


def _compare(path: Path, expected: list[str] | None, folder: Path) -> None:
    if expected is not None and path.is_file() and of_file(path) not in expected:
        raise RunError(
            f"{path} is damaged: its checksum is not the one it was written with; put a copy in its place (if you "
            f"changed it yourself, delete {folder / MANIFEST})"
        )


def _listed(folder: Path) -> dict[str, list[str]]:
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if listed.pop(_OWN) != _sum_of(listed):
            raise ValueError("its own checksum differs")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{folder / MANIFEST} is damaged ({error}); delete it to go on without checksums") from None
    return dict(listed)


def _write(folder: Path, listed: Mapping[str, list[str]]) -> None:
    unfinished = folder / f".{MANIFEST}.{os.getpid()}.cos2p-tmp"
    with unfinished.open("w", encoding="utf-8") as file:
        json.dump({**listed, _OWN: _sum_of(listed)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / MANIFEST)


def _sum_of(listed: Mapping[str, list[str]]) -> str:
    return crc(json.dumps(listed, sort_keys=True).encode())

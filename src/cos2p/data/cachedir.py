"""What is worth remembering between two starts: small files in $XDG_CACHE_HOME/cos2p, or ~/.cache/cos2p.

A file is named after everything its content depends on, and is whole or not there: processes that write the same one
at the same time write the same bytes. To remember is a kindness, never a duty: a folder that cannot be written, or a
full disk, costs time at the next start and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def cache_folder(kind: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path there is to be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "cos2p" / kind


def key_of(*parts: str | bytes) -> str:
    """A name for what depends on exactly these parts."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def recall(kind: str, name: str) -> bytes | None:
    """What was remembered under this name, if anything."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        return (cache_folder(kind) / name).read_bytes()
    return None


def remember(kind: str, name: str, content: bytes) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        write_whole(cache_folder(kind) / name, lambda file: file.write(content))


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that appears under its name when all of it is there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".unfinished-", delete=False) as file:
        try:
            write(file)
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise

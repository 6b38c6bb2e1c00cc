"""`ClientCache`: frozen parts and features that a device keeps from task to task, in files named by their content.

A part (the embeddings, a frozen block) is named by the hash of its bytes as they travelled, so that a file that was
damaged is known by its name. Features are named by the chain of the parts they went through. In simulation all devices
share one shelf: they are sent the same parts.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from cos2p.errors import TrainingError
from cos2p.messages import load_tensors
from cos2p.models.layout import Weights

_SUFFIX = ".part"


class CacheMiss(TrainingError):
    """The device does not have what the server thinks it has: it wants the task again, with all parts."""


def part_name(tensors: Mapping[str, Tensor]) -> str:
    """The name of a part by its content: tensors by name, type, shape and bytes.

    >>> import torch
    >>> part_name({"a": torch.zeros(2)}) == part_name({"a": torch.zeros(2)}) != part_name({"a": torch.ones(2)})
    True
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}\n".encode())
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def chain(parts: Iterable[str]) -> str:
    """The name of what comes out of these parts, run one after the other."""
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()


class ClientCache:
    """A folder of files. `limit` bounds its bytes; the parts that were not used for longest go first."""

    def __init__(self, folder: Path, limit: int = 0) -> None:
        self.folder, self.limit = folder, limit

    # ------------------------------------------------------------ parts

    def put(self, tensors: Mapping[str, Tensor]) -> str:
        name = part_name(tensors)
        path = self._path(name)
        if path.exists():
            path.touch()
        else:
            _write(path, safetensors.torch.save(dict(tensors)))
        return name

    def get(self, name: str) -> Weights:
        """The part of this name; CacheMiss if it is not there, or is not what its name says."""
        path = self._path(name)
        try:
            tensors = load_tensors(path.read_bytes())
        except (OSError, SafetensorError):
            tensors = {}
        if not tensors or part_name(tensors) != name:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise CacheMiss(f"a frozen part ({name[:8]}) that was kept from an earlier task is gone or damaged")
        path.touch()
        return tensors

    # ------------------------------------------------------------ features

    def put_features(self, owner: str, through: str, values: Tensor) -> None:
        """The features of an owner's samples behind the parts of a chain: their bytes, and a seal behind them."""
        _write(self._path(_features(owner, through)), _bytes(values), bytes.fromhex(part_name({"": values})))

    def read_features(self, owner: str, through: str, into: Tensor) -> bool:
        """Fill `into`, byte by byte. False if they are not there or damaged: they can always be computed again."""
        try:
            with self._path(_features(owner, through)).open("rb") as file:
                whole = file.readinto(_bytes(into)) == into.nbytes
                return whole and file.read().hex() == part_name({"": into})
        except OSError:
            return False

    # ------------------------------------------------------------ room

    def keep_only(self, parts: Iterable[str], chains: Iterable[str] = ()) -> None:
        """Drop every part that is not named, and all features that did not go through one of these chains."""
        wanted, ways = set(parts), set(chains)
        for path in self.folder.glob("*" + _SUFFIX):
            if path.stem not in wanted and path.stem.rpartition("-")[2] not in ways:
                path.unlink(missing_ok=True)

    def shrink(self) -> None:
        """Down to the limit, the oldest first."""
        if not self.limit:
            return
        files = sorted(self.folder.glob("*" + _SUFFIX), key=lambda path: path.stat().st_mtime)
        held = sum(path.stat().st_size for path in files)
        for path in files:
            if held <= self.limit:
                return
            held -= path.stat().st_size
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if Path(name).name != name:  # a task's word: it must not lead out of the shelf
            raise CacheMiss("a frozen part is asked for by a name that no part has")
        return self.folder / (name + _SUFFIX)


def _features(owner: str, through: str) -> str:
    """A name of file that no owner's name can break out of."""
    return f"{hashlib.blake2b(owner.encode(), digest_size=8).hexdigest()}-{through}"


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def _write(path: Path, *pieces: bytes | memoryview) -> None:
    """Whole or not at all for other processes; what a crash of the machine leaves is found out by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        for piece in pieces:
            file.write(piece)
    temporary.replace(path)

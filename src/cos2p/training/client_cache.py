"""`ClientCache`: frozen parts and features that a device keeps from task to task, in files named by their content.

A part (the embeddings, a frozen block) is named by the hash of its bytes as they travelled, so that a file that was
damaged is known by its name. Features are named by the chain of the parts they went through. Simulated devices share
one folder for features; their tasks always come whole, and only the bytes that would travel are counted.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from cos2p.data.examples import Examples
from cos2p.data.ragged import Ragged
from cos2p.errors import TrainingError
from cos2p.messages.envelope import TASK_HEADER_BYTES, Envelope, mapped
from cos2p.messages.packing import pack
from cos2p.models.layout import Weights

_SUFFIX = ".part"
SHARE_OF_FREE = 4
"""A device's cache takes at most one in so many of the bytes that are free on its disk."""


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


def disk_limit(folder: Path, owners: int = 0) -> int:
    """Bytes for a cache in `folder`: a share of what is free, at most half of the disk that the owner gives (0: any).

    Tasks and updates need the rest.
    """
    own = sum(path.stat().st_size for path in folder.glob("*" + _SUFFIX))
    place = next(path for path in (folder, *folder.parents) if path.exists())
    share = (own + shutil.disk_usage(place).free) // SHARE_OF_FREE
    return max(1, min(share, owners // 2) if owners else share)


class ClientCache:
    """A folder of files. `limit` bounds its bytes (0: any number); what was not used for longest goes first.

    `parts` False: it is for features alone.
    """

    def __init__(self, folder: Path, limit: int = 0, parts: bool = True) -> None:
        self.folder, self.limit, self.parts = folder, limit, parts
        self._opened: dict[str, Weights] = {}
        self._needed: set[Path] = set()
        """Files of the present task: they do not make room for more."""

    def begin(self, names: Iterable[str] = ()) -> None:
        """A task begins that counts on these parts."""
        self._opened.clear()
        self._needed = {self._path(name) for name in names}
        if self.limit:
            self._make_room(0)

    # ------------------------------------------------------------ parts

    def put(self, tensors: Mapping[str, Tensor]) -> bool:
        """Keep a part; False if there is no room for it."""
        path = self._path(part_name(tensors))
        self._needed.add(path)
        if path.exists():
            path.touch()
            return True
        packet = pack({}, p=tensors)
        return self._write(path, packet.head, *packet.bodies)

    def get(self, name: str) -> Weights:
        """The part of this name, mapped from its file and verified once a task.

        CacheMiss if it is not there, or is not what its name says.
        """
        if name not in self._opened:
            path = self._path(name)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # torch warns that nobody must write here; nobody does
                try:
                    tensors = Envelope.open(mapped(path, mmap.ACCESS_READ), TASK_HEADER_BYTES).part("p")
                except (OSError, ValueError):
                    tensors = {}
            if not tensors or part_name(tensors) != name:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
                raise CacheMiss(f"a frozen part ({name[:8]}) that was kept from an earlier task is gone or damaged")
            path.touch()
            self._opened[name] = tensors
        return self._opened[name]

    # ------------------------------------------------------------ features

    def put_features(self, owner: str, through: str, values: Tensor) -> bool:
        """The features of an owner's samples behind the parts of a chain: their bytes, and a seal behind them."""
        path = self._path(_features(owner, through))
        for older in self.folder.glob(f"{_features(owner, '')}*"):  # one for each owner: windows move
            older.unlink(missing_ok=True)
        return self._write(path, _bytes(values), bytes.fromhex(part_name({"": values})))

    def read_features(self, owner: str, through: str, into: Tensor) -> bool:
        """Fill `into`, byte by byte. False if they are not there or damaged: they can always be computed again."""
        path = self._path(_features(owner, through))
        try:
            with path.open("rb") as file:
                whole = file.readinto(_bytes(into)) == into.nbytes
                if whole and file.read().hex() == part_name({"": into}):
                    path.touch()
                    return True
        except OSError:
            pass
        return False

    # ------------------------------------------------------------ room

    def keep_chains(self, chains: Iterable[str]) -> None:
        """Drop all features that did not go through one of these chains."""
        ways = set(chains)
        for path in self.folder.glob("*-*" + _SUFFIX):
            if path.stem.rpartition("-")[2] not in ways:
                path.unlink(missing_ok=True)

    def _make_room(self, size: int) -> bool:
        """Drop what was not used for longest, and never what the present task needs; False if that is not enough."""
        files = {path: path.stat() for path in self.folder.glob("*" + _SUFFIX)}
        held = size + sum(stat.st_size for stat in files.values())
        for path in sorted(files.keys() - self._needed, key=lambda path: files[path].st_mtime_ns):
            if held <= self.limit:
                break
            held -= files[path].st_size
            path.unlink(missing_ok=True)
        return held <= self.limit

    def _write(self, path: Path, *pieces: bytes | memoryview) -> bool:
        """Whole or not at all for other processes; what a crash of the machine leaves is found out by its name."""
        if self.limit and not self._make_room(sum(memoryview(piece).nbytes for piece in pieces)):
            return False
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
            temporary.replace(path)
        except OSError:  # a full disk: the task is done without
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            return False
        return True

    def _path(self, name: str) -> Path:
        if Path(name).name != name:  # a task's word: it must not lead out of the folder
            raise CacheMiss("a frozen part is asked for by a name that no part has")
        return self.folder / (name + _SUFFIX)


_digests: WeakKeyDictionary[Examples, str] = WeakKeyDictionary()


def data_digest(part: Examples) -> str:
    """The name of samples by their content, worked out once; of images that stay in files by their labels."""
    if part not in _digests:
        tensors = {"labels": part.labels}
        if isinstance(part.inputs, Tensor):
            tensors["inputs"] = part.inputs
        elif isinstance(part.inputs, Ragged):
            tensors |= {"values": part.inputs.values, "starts": part.inputs.starts, "lengths": part.inputs.lengths}
        _digests[part] = part_name(tensors)
    return _digests[part]


def _features(owner: str, through: str) -> str:
    """A name of file that no owner's name can break out of."""
    return f"{hashlib.blake2b(owner.encode(), digest_size=8).hexdigest()}-{through}"


def _bytes(tensor: Tensor) -> memoryview:
    if tensor.is_meta:  # of plans that count bytes and hold none
        return memoryview(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data

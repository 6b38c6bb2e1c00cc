"""A checkpoint: one file, replaced atomically. JSON, named groups of tensors, blobs; never pickle.

Tensors that several groups share (a version and its successor, mostly) are stored once. The file holds a
`Snapshot`: it does not change when the run goes on, so a thread may write it meanwhile.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cos2p.checksums import of_tensors
from cos2p.errors import RunError
from cos2p.tracking.files import replacing

FORMAT = 3


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The content of the file."""

    meta: str
    tensors: dict[str, Tensor]

    def write(self, path: Path) -> None:
        """Straight from the tensors' memory; other threads run meanwhile. The one before stays next to it."""
        with replacing(path) as file:
            try:
                about = {"cos2p": self.meta, "checksum": of_tensors(self.meta, self.tensors.items())}
                safetensors.torch.save_file(self.tensors, file, metadata=about)
                _keep_before(path)
            except SafetensorError as error:  # it hides the system's reason in its text
                raise RunError(f"{path}: {error}; free some space, then go on with --resume") from error


@dataclass(frozen=True, eq=False)
class Checkpoint:
    values: dict[str, Any]
    """Anything JSON can hold."""
    groups: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        self.snapshot().write(path)

    def snapshot(self, growing: Container[str] = ()) -> Snapshot:
        """As things stand now. The tensors of the groups that are `growing`, in place, are copied."""
        tensors: dict[str, Tensor] = {}
        places: dict[int, str] = {}
        index: dict[str, dict[str, str]] = {}
        for group, members in self.groups.items():
            index[group] = {}
            for name, tensor in members.items():
                if id(tensor) not in places:
                    places[id(tensor)] = f"t{len(tensors)}"
                    tensors[places[id(tensor)]] = tensor.clone() if group in growing else tensor.contiguous()
                index[group][name] = places[id(tensor)]
        for name, blob in self.blobs.items():
            tensors[f"blob:{name}"] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        return Snapshot(json.dumps({"format": FORMAT, "values": self.values, "groups": index}), tensors)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata()
                meta = json.loads(about["cos2p"])
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  not a dict
            if meta["format"] == FORMAT and about["checksum"] != of_tensors(about["cos2p"], tensors.items()):
                raise ValueError("its checksum differs")
        except FileNotFoundError:
            raise RunError(f"there is no checkpoint {path}; start the run without --resume") from None
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"the checkpoint {path} is damaged: {error}; {_way_out(path)}") from None
        if meta.get("format") != FORMAT:
            age = "an older" if str(meta.get("format")) < str(FORMAT) else "a newer"
            raise RunError(
                f"the checkpoint {path} was written by {age} version of cos2p (format {meta.get('format')}, this one "
                f"reads {FORMAT}); go on with that version, or start again with --overwrite"
            )
        groups = {
            group: {name: tensors[place] for name, place in members.items()}
            for group, members in meta["groups"].items()
        }
        blobs = {n.removeprefix("blob:"): t.numpy().tobytes() for n, t in tensors.items() if n.startswith("blob:")}
        return cls(meta["values"], groups, blobs)


def before(path: Path) -> Path:
    """The last but one."""
    return path.with_stem(f"{path.stem}-before")


def _keep_before(path: Path) -> None:
    """A second name for the file that is about to be replaced; where a file system has no such names, it is lost."""
    with suppress(OSError):
        before(path).unlink(missing_ok=True)
        before(path).hardlink_to(path)


def _way_out(path: Path) -> str:
    if path != before(path) and before(path).exists():
        with suppress(RunError):
            Checkpoint.read(before(path))
            return f"the one before it is good, go on from there:  mv {before(path)} {path}  and --resume again"
    return "start again with --overwrite"


class BackgroundWriter:
    """Writes one checkpoint at a time in a thread while the run goes on. Only one thread may use it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0
        """How long the last one took."""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def write(self, snapshot: Snapshot, path: Path) -> None:
        """Begin to write; waits for the one before. What went wrong with that one is raised here or by `wait`."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(snapshot, path), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is under way; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, snapshot: Snapshot, path: Path) -> None:
        began = time.monotonic()
        try:
            snapshot.write(path)
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - began

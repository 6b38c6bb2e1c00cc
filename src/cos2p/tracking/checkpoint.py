"""A checkpoint: one file, replaced atomically. JSON, named groups of tensors, blobs; never pickle.

Tensors that several groups share (a version and its successor, mostly) are stored once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cos2p.errors import RunError
from cos2p.tracking.files import write_atomic

FORMAT = 2


@dataclass(frozen=True, eq=False)
class Checkpoint:
    values: dict[str, Any]
    """Anything JSON can hold."""
    groups: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {}
        places: dict[int, str] = {}
        index: dict[str, dict[str, str]] = {}
        for group, members in self.groups.items():
            index[group] = {}
            for name, tensor in members.items():
                if id(tensor) not in places:
                    places[id(tensor)] = f"t{len(tensors)}"
                    tensors[places[id(tensor)]] = tensor.contiguous()
                index[group][name] = places[id(tensor)]
        for name, blob in self.blobs.items():
            tensors[f"blob:{name}"] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        meta = json.dumps({"format": FORMAT, "values": self.values, "groups": index})
        write_atomic(path, safetensors.torch.save(tensors, metadata={"cos2p": meta}))

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        try:
            with safe_open(path, framework="pt") as file:
                meta = json.loads(file.metadata()["cos2p"])
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  not a dict
        except FileNotFoundError:
            raise RunError(f"there is no checkpoint {path}; start the run without --resume") from None
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"the checkpoint {path} cannot be read: {error}") from None
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

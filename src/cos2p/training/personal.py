"""A device's own submodel as it was trained and tested: what the device needs to use it, in one file.

The file holds what trained (w/) and the frozen part as it travelled (p/); in its header what both are parts of, and
whatever else is needed to prepare an input and to name an answer. Removed heads and units are zeros in the full shape:
they add nothing to any sum, so that a plain model of that shape computes the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cos2p.checksums import of_tensors
from cos2p.errors import CheckpointError
from cos2p.messages import Order
from cos2p.messages.packing import write_file
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, layout
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import frozen_slices, scatter, trained_shapes
from cos2p.training.prefix import PrefixFile, decode

KIND = "a device's own submodel"


@dataclass(frozen=True, eq=False)
class Personal:
    config: ModelConfig
    spec: SubmodelSpec
    weights: Weights
    """The trained tensors, compact."""
    frozen: Weights
    """The frozen part, encoded as it travelled."""
    facts: Mapping[str, Any]
    """JSON: whose it is, of which task, and what the caller wants to find next to it."""

    @property
    def depth(self) -> int:
        """Blocks below the exit that answers."""
        return self.spec.exits[-1]

    def full(self) -> tuple[ModelConfig, Weights]:
        """A plain model of as many blocks as the submodel has, that computes what the submodel computes."""
        full: Weights = {name: torch.zeros(entry.shape) for name, entry in layout(self.config).items()}
        slices = frozen_slices(self.config, self.spec)
        for name, tensor in decode(self.frozen).items():
            place = name.replace(".rest.", ".", 1)
            cut = slices[place]
            if cut is None:
                full[place].copy_(tensor)
            else:
                full[place].index_copy_(*cut, tensor)
        scatter(self.weights, full, self.config, self.spec)
        config = self.config.with_(depth=self.depth)
        return config, {name: full[name] for name in layout(config)}

    @classmethod
    def read(cls, path: Path) -> Personal:
        """CheckpointError for any other file."""
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                meta = json.loads(about["cos2p"])
            if meta["kind"] != KIND:
                raise KeyError("kind")
            tensors = safetensors.torch.load_file(path)
            if about["checksum"] != of_tensors(about["cos2p"], tensors.items()):
                raise ValueError("its checksum differs")
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is not {KIND}, or damaged ({error!r})") from None
        parts: dict[str, Weights] = {"w": {}, "p": {}}
        for key, tensor in tensors.items():
            parts[key[0]][key[2:]] = tensor
        spec = SubmodelSpec.from_dict(meta["spec"])
        return cls(ModelConfig.from_dict(meta["config"]), spec, parts["w"], parts["p"], meta["facts"])


def write_personal(
    file: Path,
    most: int,
    model: ElasticTransformer,
    order: Order,
    frozen: PrefixFile,
    facts: Mapping[str, Any],
) -> bool:
    """Write the trained model of a task; False if it would take more than `most` bytes, or if it is more than the plain
    tensors of its spec (quantised, with hooks ...).

    Tensor by tensor: a device that has just trained has no room for a second copy.
    """
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    if type(model) is not ElasticTransformer or hooked:
        return False
    model.fold_rescale()
    held = dict(model.named_parameters())
    shapes = trained_shapes(model.config, model.spec)
    if any(name not in held or tuple(held[name].shape) != shape for name, shape in shapes.items()):
        return False
    trained = {f"w/{name}": held[name].detach() for name in shapes}
    whose = {"device": order.client, "task": order.task, "version": order.version}
    meta = {"kind": KIND, "config": model.config.to_dict(), "spec": model.spec.to_dict(), "facts": {**facts, **whose}}
    written = json.dumps(meta)
    about = {"cos2p": written, "checksum": of_tensors(written, _tensors(trained, frozen))}
    forms = [(name, tensor.dtype, tensor.shape) for name, tensor in _tensors(trained, frozen)]
    if sum(shape.numel() * dtype.itemsize for _, dtype, shape in forms) > most:
        return False
    write_file(file, about, forms, (tensor for _, tensor in _tensors(trained, frozen)))
    return True


def _tensors(trained: Weights, frozen: PrefixFile) -> Iterator[tuple[str, Tensor]]:
    yield from trained.items()
    for part in frozen.parts():
        yield from ((f"p/{name}", tensor) for name, tensor in part.items())

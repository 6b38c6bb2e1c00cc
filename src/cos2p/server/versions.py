"""Model versions still in flight. Tensors that did not change are shared between versions, so one costs little.

Of a large model even those that did change are too many to hold: what an older version has alone goes into a file that
is mapped, so that the system reads the pages somebody asks for and takes them back when memory is short.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch

from cos2p.models.layout import Weights

SPOOLED_BYTES = 64 * 2**20
"""What an older version has alone goes to disk if it is more than this."""


class Versions:
    """The current version, and every older one that an unanswered task was cut from."""

    def __init__(self, weights: Weights, version: int = 0, spool: Path | None = None) -> None:
        self.current = version
        self.spool = spool
        """Folder for older versions; None: they stay in memory."""
        self._held: dict[int, Weights] = {version: weights}

    @classmethod
    def restored(cls, current: int, groups: Mapping[str, Weights], spool: Path | None) -> Versions:
        """From a checkpoint's groups of tensors, in which `version.N` is a version."""
        versions = cls(groups[f"version.{current}"], current, spool)
        for name, group in groups.items():
            kind, _, number = name.partition(".")
            if kind == "version" and int(number) != current:
                versions.restore(int(number), group)
        return versions

    def __getitem__(self, version: int) -> Weights:
        return self._held[version]

    @property
    def weights(self) -> Weights:
        return self._held[self.current]

    @property
    def held(self) -> tuple[int, ...]:
        return tuple(sorted(self._held))

    def advance(self, weights: Weights, keep: bool = True) -> None:
        """The next version. `keep`: the one before may still be asked for."""
        before = self._held.pop(self.current)
        old, self.current = self.current, self.current + 1
        self._held[self.current] = weights
        if keep:
            self.restore(old, before)

    def restore(self, version: int, weights: Weights) -> None:
        """Put back an older version."""
        self._held[version] = dict(weights)
        if self.spool is None:
            return
        current = self.weights
        alone = {name: tensor for name, tensor in weights.items() if tensor is not current.get(name)}
        if sum(tensor.nbytes for tensor in alone.values()) <= SPOOLED_BYTES:
            return
        mapped = _mapped(alone, self.spool / f".version-{version}.cos2p-tmp")
        for number, held in self._held.items():
            if number != self.current:  # an older one may share it
                held.update({name: mapped[name] for name, tensor in alone.items() if held.get(name) is tensor})

    def forget(self, version: int) -> None:
        """Nobody will ask for this one any more, unless it is the current."""
        if version != self.current:
            self._held.pop(version, None)


def _mapped(tensors: Weights, path: Path) -> Weights:
    """The same values in a file that has no name any more: it is gone with the tensors, however the process ends."""
    try:
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        return safetensors.torch.load_file(path)
    finally:
        path.unlink(missing_ok=True)

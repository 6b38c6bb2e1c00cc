"""A merge on an accelerator: sums grow there, and the model as far as it is asked for is there too.

    host:         door, guard, decoding │ versions, tasks, checkpoints
                          update ↓      │      ↑ next version
    accelerator:               γ, sums, merge

An update is copied when it is added and waited for by nobody; the one thing the host then asks for is what it counted,
for the log. When a round closes, tensors that moved come back, each once. All that travels or is written down is the
host's. Random numbers are the host's too. A GPU adds in another order: the next version differs in its last bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from cos2p.accelerator import CPU, place
from cos2p.aggregation.head_merge import HeadMerge
from cos2p.aggregation.merge import Contribution, Merge, Place
from cos2p.models.layout import Weights
from cos2p.submodel.segments import SegmentValues


def placed(merge: Merge, device: torch.device) -> Merge:
    """The merge with its sums on `device`; itself, if that is the processor or its sums can be nowhere else."""
    if isinstance(merge, HeadMerge):  # what devices told of their features is small, and stays on the host
        merge.own = placed(merge.own, device)
        return merge
    return PlacedMerge(merge, device) if device != CPU and "accelerated" in vars(type(merge)) else merge


class PlacedMerge(Merge):
    def __init__(self, inner: Merge, device: torch.device) -> None:
        super().__init__(inner.config)
        self.inner, self.device = inner, device
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}
        """Of the model's tensors: those of the host that have a twin on the device, by identity."""

    @property
    def holders(self) -> SegmentValues:
        return {key: place(value, CPU) for key, value in self.inner.holders.items()}

    @holders.setter
    def holders(self, values: SegmentValues) -> None:
        """The inner merge's own."""

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        return self.inner.decode(item, current)

    def places(self, item: Contribution) -> Mapping[str, Place]:
        return self.inner.places(item)

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float] | None:
        return self.inner.weigh(item, current)

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        delta = {name: tensor if self.inner.stays(name) else self._there(tensor) for name, tensor in item.delta.items()}
        return self.inner.add(replace(item, delta=delta, received=_There(item.received, self)), _There(current, self))

    def apply(self, current: Weights) -> Weights:
        moved = self.inner.apply(_There(current, self))
        twins = {id(there): here for here, there in self._copies.values()}
        updated: Weights = {}
        copies: dict[int, tuple[Tensor, Tensor]] = {}
        for name, tensor in moved.items():
            updated[name] = here = tensor if tensor.device == CPU else twins.get(id(tensor), place(tensor, CPU))
            if tensor.device != CPU:
                copies[id(here)] = here, tensor
            elif id(here) in self._copies:
                copies[id(here)] = self._copies[id(here)]
        self._copies = copies
        return updated

    def twin(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the model where the inner merge computes with it."""
        if self.inner.stays(name):
            return tensor
        if id(tensor) not in self._copies:
            self._copies[id(tensor)] = tensor, self._there(tensor)
        return self._copies[id(tensor)][1]

    def _there(self, tensor: Tensor) -> Tensor:
        return place(tensor, self.device)

    # ------------------------------------------------------------ checkpoint

    def take_over(self, other: Self) -> None:
        self.inner.take_over(other.inner)
        self._copies = other._copies

    def state(self) -> dict[str, Weights]:
        return {
            group: {name: place(tensor, CPU) for name, tensor in tensors.items()}
            for group, tensors in self.inner.state().items()
        }

    def load_state(self, state: Mapping[str, Weights]) -> None:
        accelerated = vars(type(self.inner))["accelerated"]
        self.inner.load_state(
            {
                group: {name: self._there(tensor) for name, tensor in tensors.items()}
                if group.partition(".")[0] in accelerated
                else tensors
                for group, tensors in state.items()
            }
        )
        self._copies = {}


class _There(dict[str, Tensor]):
    """A version of the model whose tensors are copied to the device when they are asked for; a copy of the whole, which
    merges begin the next version with, asks for none."""

    def __init__(self, weights: Weights, merge: PlacedMerge) -> None:
        super().__init__(weights)
        self._merge = merge

    def __getitem__(self, name: str) -> Tensor:
        return self._merge.twin(name, super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self._merge.twin(name, super().__getitem__(name)) if name in self else default

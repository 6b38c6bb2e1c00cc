"""Reports of devices about the heads and units they held, one number each (PLATON, PruneFL): both ends of it.

On the device a trainer with a `ReportingContract` trains plainly, watches its steps, and sends the numbers with its
update; on the server they are checked when they come in (`extra_tensors`) and read (`reported`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.methods import TaskContract, TensorForm, Update, segment_costs
from cos2p_rivals.segments import Kind, held, per_block

LARGEST_REPORT = 1e12
"""Sums over updates and samples stay finite."""


class SegmentContract(TaskContract):
    """Something is done to every scalar of heads and units in every step."""

    flops_per_scalar: ClassVar[float]

    def prunable_scalars(self) -> int:
        """Scalars of the heads and units that the task trains."""
        head, unit = segment_costs(self.config)
        return sum(head * len(keep.heads) + unit * len(keep.units) for keep in self.order.spec.window)

    def step_flops(self) -> float:
        return self.flops_per_scalar * self.prunable_scalars()


class ReportingContract(SegmentContract):
    """The same steps, in the same order, as plain training; what was seen goes back as `heads.3`, `units.3`, ..."""

    def segments(self) -> int:
        """Heads and units that the task trains."""
        return sum(len(keep.heads) + len(keep.units) for keep in self.order.spec.window)

    def upload(self) -> int:
        """The update, and one number for each head and unit in it."""
        return super().upload() + 4 * self.segments()

    def extra_tensors(self, spec: SubmodelSpec) -> Mapping[str, TensorForm]:
        """A number at or above 0 for each held segment."""
        return {
            f"{kind}.{block}": TensorForm((len(kept),), low=0.0, high=LARGEST_REPORT, optional=True)
            for block in range(spec.frozen, spec.top)
            for kind, kept in (("heads", spec.keep(block).heads), ("units", spec.keep(block).units))
        }


def reported(update: Update, config: ModelConfig, kind: Kind) -> tuple[Tensor, Tensor]:
    """A device's report on the segments it held: their numbers through all blocks, and a value for each.

    The values were checked when they came in (`ReportingContract.extra_tensors`).
    """
    segments = per_block(config, kind)
    numbers, values = [torch.empty(0, dtype=torch.int64)], [torch.empty(0)]
    for block in range(update.spec.frozen, update.spec.top):
        said = update.extras.get(f"{kind}.{block}")
        if said is not None:
            numbers.append(block * segments + held(update.spec, f"{kind}.{block}"))
            values.append(said)
    return torch.cat(numbers), torch.cat(values)

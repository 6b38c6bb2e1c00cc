"""Which ways of training in fewer bytes make a submodel fit, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cos2p.costs.ledger import shape_peak
from cos2p.costs.shape import Shape
from cos2p.costs.workload import Workload
from cos2p.models.config import ModelConfig
from cos2p.numerics.optimizers import eight_bit
from cos2p.units import parse_bytes

SAVINGS: dict[str, Callable[[Workload], Workload]] = {
    "step in backward": lambda workload: workload.with_(step_in_backward=workload.micro == workload.batch),
    "8-bit states": lambda workload: workload.with_(optimizer=eight_bit(workload.optimizer)),
    "recomputation": lambda workload: workload.with_(recompute=True),
    "bf16 activations": lambda workload: workload.with_(activation_bytes=2),
}
"""By name, in the order of their price.

The step in backward is free and exact, if a step is one pass; states in 8 bits cost some processor time and are nearly
exact; recomputation is exact and costs a third more time. bf16 comes last because it changes what is computed.
"""


def cheapest(
    config: ModelConfig, shape: Shape, workload: Workload, memory: int | str, *, bf16: bool = False
) -> Workload | None:
    """The workload with as few savings as let `shape` train in `memory`, each on top of those before; None if none do.

    bf16 is tried only when it is allowed: it is a choice about the numbers, not about the memory alone.
    """
    budget = parse_bytes(memory)
    for name, candidate in savings(workload):
        if (bf16 or name != "bf16 activations") and shape_peak(config, shape, candidate).total <= budget:
            return candidate
    return None


def savings(workload: Workload) -> Iterator[tuple[str, Workload]]:
    """The workload as it is ("plain"), and with one saving more at a time, by the name of the last."""
    yield "plain", workload
    for name, saved in SAVINGS.items():
        workload = saved(workload)
        yield name, workload

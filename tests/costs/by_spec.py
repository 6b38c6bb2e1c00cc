from __future__ import annotations

from cos2p import ModelConfig, SubmodelSpec
from cos2p.costs.flops import Phase, shape_flops
from cos2p.costs.ledger import Ledger, shape_ledger
from cos2p.costs.shape import Shape, Workload


def ledger(config: ModelConfig, spec: SubmodelSpec, workload: Workload, phase: Phase = "weight") -> Ledger:
    """The worst moment of one phase. In the mask phase `spec` names the candidates."""
    return shape_ledger(config, Shape.of(config, spec), workload, phase)


def flops(config: ModelConfig, spec: SubmodelSpec, workload: Workload, phase: Phase = "weight") -> float:
    """A step on one batch, or the one pass of the shard (`prefix`)."""
    return shape_flops(config, Shape.of(config, spec), workload, phase)

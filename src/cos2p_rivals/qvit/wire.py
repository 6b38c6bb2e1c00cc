"""Which tensors a device gets and returns, which of them as codes, and where the step of a coded tensor is kept."""

from __future__ import annotations

from collections.abc import Mapping

from cos2p import ModelConfig, SubmodelSpec
from cos2p.methods import trained_shapes
from cos2p_rivals.qvit.model import ENDS, norm_table, step_table
from cos2p_rivals.side_tensors import SideTensor


def quant_table(config: ModelConfig, bits: int, spec: SubmodelSpec) -> dict[str, SideTensor]:
    return {**norm_table(config), **step_table(config, bits, spec.exits)}


def code_shapes(config: ModelConfig, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
    """The tensors that travel as codes: all matrices of the blocks, the patch kernel and the classifier."""
    layers = (".q.weight", ".k.weight", ".v.weight", ".o.weight", ".fc1.weight", ".fc2.weight")
    return {
        name: shape
        for name, shape in trained_shapes(config, spec).items()
        if name.endswith((*layers, ".linear.weight")) or name == "embed.patch.weight"
    }


def code_bits(names: Mapping[str, object], bits: int) -> dict[str, int]:
    return {name: bits if name.startswith("blocks.") else ENDS for name in names}


def step_name(name: str, bits: int) -> str:
    """Where the step of a coded tensor is kept: `blocks.3.q.weight` → `qvit.b2.3.q.step`."""
    if name == "embed.patch.weight":
        return f"qvit.b{bits}.embed.weight.step"
    _, place, layer, _ = name.split(".")
    return f"qvit.b{bits}.exit-{place}.weight.step" if layer == "linear" else f"qvit.b{bits}.{place}.{layer}.step"

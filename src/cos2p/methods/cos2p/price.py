"""What frozen blocks cost a client, for windows that know their price."""

from __future__ import annotations

from cos2p.costs.flops import block_forward
from cos2p.messages import Precision
from cos2p.methods.base import Member
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockSize
from cos2p.submodel.rates import segment_costs

WIRE_BYTES: dict[Precision, int] = {"float32": 4, "float16": 2, "int8": 1}


def frozen_block_seconds(config: ModelConfig, member: Member, precision: Precision) -> float:
    """What one more block below its window costs a client: to get it, and to run its samples through it."""
    full = BlockSize.full(config)
    head, unit = segment_costs(config)
    size = (head * full.heads + unit * full.units) * WIRE_BYTES[precision]
    work = (member.samples + member.test_samples) * block_forward(config, full, config.tokens)
    return member.device.compute_seconds(work) + member.device.download_seconds(size)

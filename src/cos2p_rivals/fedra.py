"""FedRA (Su et al., ECCV 2024): every device gets a random part of the blocks, the others are left out altogether.

Each task the server draws K_n of the L blocks for a device, keeps their order, and sends embeddings, these blocks and
the head; the device trains adapters in them, and the head. Each block's adapters are averaged over the devices that had
it, unweighted; those of a block that nobody had keep their values. What is evaluated is the model with all its blocks.

From the paper and its public code: adapters of rank 8, α 8 (s = 1) on the attention's output and fc2, uniform draws
without replacement. Ours: K_n is the largest number of blocks that fits the device's memory, where theirs are given by
tiers; blocks are streamed, as for all methods on a frozen base; no dropout, so that runs repeat bit for bit; norms are
not trained, nor sent back. `keep_ends` always gives the first and the last block: without them the part is far from
anything the pretrained blocks have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field

from cos2p.methods import (
    AdapterMethod,
    AdapterMethodSettings,
    Assignment,
    Call,
    Forms,
    Member,
    Part,
    Settings,
    Target,
    torch_rng,
)


class FedRaSettings(AdapterMethodSettings):
    targets: tuple[Target, ...] = Field(
        default=("o", "fc2"), min_length=1, description="Matrices with an adapter: q, k, v, o, fc1, gate, fc2."
    )
    scale: float = Field(default=1.0, gt=0, description="s = α/r; 1 to 4.")
    keep_ends: bool = Field(default=False, description="The first and the last block are always among the drawn.")


class FedRA(AdapterMethod):
    name: ClassVar[str] = "fedra"
    title: ClassVar[str] = "FedRA"
    settings_type: ClassVar[type[Settings]] = FedRaSettings
    settings: FedRaSettings
    forms: ClassVar[Forms] = {"ends kept": ("method.keep_ends=true",)}

    def parts(self, member: Member) -> Sequence[Part]:
        return Part.blocks(self.context.config.depth)

    def assign(self, call: Call) -> Assignment:
        """Adapters of the recipe's rank in the blocks that are drawn, which alone are sent."""
        member, part = call.member, self.part_of(call.member)
        if part.kind == "head":
            return self.head_alone(member)
        return self.adapters(member, self.settings.rank, self.drawn(member, call.attempt, int(part.size)))

    def drawn(self, member: Member, attempt: int, count: int) -> tuple[int, ...]:
        """`count` blocks without repetition, ascending."""
        depth = self.context.config.depth
        order = torch.randperm(depth, generator=torch_rng(self.context.seed, "fedra", member.name, attempt)).tolist()
        if self.settings.keep_ends:
            ends = [0, depth - 1]
            order = [*ends, *(block for block in order if block not in ends)]
        return tuple(sorted(order[:count]))

"""A window that never moves: Co-S²P with every device at the top of the model, as deep and wide as its rate allows.

Everything below stays as it was, so its features are the pretrained model's for good: what fine-tuning the last blocks
gives, and a yardstick for every window that moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cos2p.memory.parts import Part
from cos2p.methods.base import Member, Method
from cos2p.methods.cos2p import Cos2p


class TopWindow(Cos2p):
    name: ClassVar[str] = "topwindow"
    title: ClassVar[str] = "top window"

    def next_blocks(self, member: Member, cycle: int) -> range:
        depth = self.context.config.depth
        return range(depth - self.cuts[member.name].blocks, depth)

    def parts(self, member: Member) -> Sequence[Part]:
        return Method.parts(self, member)

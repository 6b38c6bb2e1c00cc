"""HeteroFL (Diao, Ding, Tarokh, ICLR 2021): the leading part of every dimension, the same in every round.

FedRolex's official cut without the roll; see `fedrolex_official` for what is taken from the official code. The tail
of the model is trained by large devices only, and by nobody if none holds all of it.
"""

from __future__ import annotations

from typing import ClassVar

from cos2p.methods.fedrolex_official import Shift, ThinMethod


class HeteroFl(ThinMethod):
    name: ClassVar[str] = "heterofl"
    title: ClassVar[str] = "HeteroFL"

    def shift(self, round: int) -> Shift:
        return 0, 0, 0

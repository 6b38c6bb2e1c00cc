"""A split before anything costly is done: labels and groups are known, samples are read when they are chosen.

So 50,000 JPEGs are not decoded when a run needs 3,000 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cos2p.data.encoded import Encoded
from cos2p.data.groups import Groups
from cos2p.data.select import IntArray
from cos2p.data.text import Tokens


@dataclass(frozen=True, eq=False)
class Raw:
    """One split as a source offers it. Exactly one of `images`, `encoded`, `texts` and `tokens` is set."""

    where: str
    """File or folder, for messages."""
    count: int
    labels: Sequence[Any] | None
    """One per sample, as stored: integers, strings of digits, or names. None: there are no labels."""
    images: Callable[[IntArray], torch.Tensor] | None = None
    """Reads the images at these indices: (n, C, H, W), uint8 or float32."""
    encoded: Callable[[IntArray], Encoded] | None = None
    """The images at these indices, ascending, as they are stored."""
    texts: Callable[[IntArray], list[str]] | None = None
    answers: Callable[[IntArray], list[str]] | None = None
    """What each text is to be answered, if the source says so in words."""
    tokens: Tokens | None = None
    """All texts, where they had to be tokenised to know how many there are."""
    groups: Groups | None = None
    class_names: tuple[str, ...] | None = None
    """If the source states them; name i belongs to label i."""


@dataclass(frozen=True, eq=False)
class RawSplits:
    train: Raw
    validation: Raw | None = None
    test: Raw | None = None

    def named(self) -> dict[str, Raw]:
        """The splits there are, training first."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: raw for name, raw in splits.items() if raw is not None}

"""`Part`: what of the model a device trains. A method offers parts, those that learn most first.

    window    weights of some blocks, R of all of them
    factors   low-rank factors of all blocks
    blocks    whole blocks, of methods that train some at a time
    head      alone, where nothing else fits

Co-S²P prefers, of a pretrained classifier, by the validation images of Caltech-101 that were right in trials
(docs/results/pretrained.md, "Factors that look first"; the last row from "In 80 MB"):

    everything                      66.5
    windows from `WIDE` on          65.7 (R 0.42)
    factors up to `RANK`            65.5 (rank 32), 64.0 (rank 8); rank 128 had 65.7 in four times the bytes
    smaller windows                 63.8 (R 0.21), 62.4 (R 0.0625)
    the head alone                  three points below the smallest window

A language model has factors before any window: full fine-tuning harms what models below 300 M parameters write, LoRA
does not (arXiv 2606.06920).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["window", "factors", "blocks", "head"]

WIDE = 0.42
"""The smallest window that learns as much as factors of all blocks."""
RANK = 32
"""The largest rank of factors."""
RATES = tuple(float(f"{2 ** (-step / 16):.4g}") for step in range(145))
"""From 1 down to 1/512, sixteen to a halving."""


@dataclass(frozen=True)
class Part:
    kind: Kind
    size: float = 1.0
    """R of a window, rank of factors, number of blocks."""

    @classmethod
    def blocks(cls, most: int) -> list[Part]:
        """As many whole blocks as fit, or the head alone."""
        return [*(cls("blocks", count) for count in range(most, 0, -1)), HEAD]

    def words(self) -> str:
        return {
            "window": "everything" if self.size == 1 else f"a window, R {self.size:.3g}",
            "factors": f"factors of rank {self.size:g}",
            "blocks": f"{self.size:g} block{'s' if self.size > 1 else ''} at a time",
            "head": "the head alone",
        }[self.kind]


HEAD = Part("head")


def windows(below: float = 2.0, least: float = 0.0) -> list[Part]:
    """Windows of rates from `least` on, smaller than `below`, the largest first."""
    return [Part("window", rate) for rate in RATES if least <= rate < below]


def factors(most: int = RANK) -> list[Part]:
    return [Part("factors", rank) for rank in range(most, 0, -1)]


def runs(parts: Sequence[Part]) -> list[list[Part]]:
    """Neighbours of one kind together: within a run fewer bytes mean a smaller size."""
    found: list[list[Part]] = []
    for part in parts:
        if found and found[-1][-1].kind == part.kind:
            found[-1].append(part)
        else:
            found.append([part])
    return found

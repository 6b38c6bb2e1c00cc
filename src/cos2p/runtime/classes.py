"""What a run's data are divided into, and what an accuracy on them is worth: chance, and always saying the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from cos2p.data import Bundle, Examples


@dataclass(frozen=True)
class Classes:
    names: tuple[str, ...] = ()
    """Empty for language modelling."""
    majority: float | None = None
    """Share of the test samples that belong to its most frequent class."""
    client_majority: float | None = None
    """The same for the devices' own test samples, each device naming its own most frequent class; None where they
    are not known, as on a real fleet."""
    samples: dict[str, int] = field(default_factory=dict)
    """Of `train`, `validation` and `test`."""

    @classmethod
    def of(cls, bundle: Bundle, own: Iterable[Examples] = ()) -> Classes:
        """`own`: the test samples of each device."""
        samples = {"train": len(bundle.train), "validation": len(bundle.validation), "test": len(bundle.test)}
        if not bundle.classes and not (bundle.test.answers and bundle.test.labels.ndim == 1):
            return cls(samples=samples)
        # Answers that are names of classes have no chance, a model may answer anything; but a most frequent one.
        return cls(bundle.class_names, _majority([bundle.test]), _majority(own), samples)

    @property
    def chance(self) -> float | None:
        return 1 / len(self.names) if self.names else None

    def figures(self) -> dict[str, Any]:
        """For `result.json`."""
        return {
            "classes": list(self.names),
            "chance": self.chance,
            "majority": self.majority,
            "client_majority": self.client_majority,
        }

    def facts(self) -> dict[str, Any]:
        """For the log: what a reader needs to evaluate an accuracy before the run is over."""
        known = self.figures() | {"classes": len(self.names)}
        return {**self.samples, **{name: value for name, value in known.items() if value is not None}}


def _majority(sets: Iterable[Examples]) -> float | None:
    """Share of the samples that belong to the most frequent class of their set; None without samples."""
    counts = [torch.bincount(one.labels) for one in sets if len(one)]
    total = sum(int(count.sum()) for count in counts)
    return sum(int(count.max()) for count in counts) / total if total else None

"""What a run's data are divided into, and what an accuracy on them is worth: chance, and always saying the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cos2p.data import Bundle


@dataclass(frozen=True)
class Classes:
    names: tuple[str, ...] = ()
    """Empty for language modelling."""
    majority: float | None = None
    """Share of the test samples that belong to its most frequent class."""

    @classmethod
    def of(cls, bundle: Bundle) -> Classes:
        if not bundle.classes:
            return cls()
        counts = torch.bincount(bundle.test.labels, minlength=bundle.classes)
        return cls(bundle.class_names, float(counts.max()) / max(1, int(counts.sum())))

    def figures(self) -> dict[str, Any]:
        """For `result.json`."""
        chance = 1 / len(self.names) if self.names else None
        return {"classes": list(self.names), "chance": chance, "majority": self.majority}

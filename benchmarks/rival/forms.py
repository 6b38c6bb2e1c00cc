"""The forms of Co-S²P that are measured against FedRolex, as changes to the recipes of the paper's vision runs."""

from __future__ import annotations

from dataclasses import dataclass

RECIPES = ("e1", "e2", "e3")
RIVAL = "fedrolex"
ROUNDS, MASK_ROUNDS = 120, 20
"""A run, and how many of its rounds train masks."""
EPOCHS = 5
"""E and Ê of the paper."""


@dataclass(frozen=True)
class Form:
    masks: tuple[str, ...] = ()
    """What is changed in tasks that train masks."""
    wire: tuple[str, ...] = ()
    """What changes the bytes of a task and not its work: counted, not measured again."""

    def changes(self, trains_masks: bool) -> tuple[str, ...]:
        """Of the work. Tasks that train no masks are cut to drawn ones, of the size of those that were trained."""
        known = ("method.masks.heads=fixed", "method.masks.units=fixed")
        return self.masks if trains_masks else known


CHEAP_MASKS = ("method.masks.heads=first-order", "method.masks.units=first-order")
EIGHT_BITS = ("method.prefix.precision=int8",)
FORMS: dict[str, Form] = {
    "paper": Form(),
    "cheap": Form(CHEAP_MASKS, EIGHT_BITS),
}
"""`cheap`: masks by the scores of one pass, in no more memory than the training takes; the frozen part in 8 bits."""

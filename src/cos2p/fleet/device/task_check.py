"""The device's own look at a task, before it trains: it does what the recipe asks that its owner accepted, and no more.

Local privacy is the device's own, too: it counts ε itself, in a file of its kit, and stops when the budget is spent.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cos2p.aggregation.privacy.account import epsilon_of_sum
from cos2p.aggregation.privacy.checks import check_covered
from cos2p.aggregation.settings import PrivacySettings
from cos2p.errors import OwnerRefused, RecipeError, RunError
from cos2p.fleet.device.owner import OwnerFile
from cos2p.messages import Order
from cos2p.methods import method_class, method_settings
from cos2p.models.config import ModelConfig
from cos2p.recipe import Recipe
from cos2p.tracking.files import read_json, write_json

PRIVACY_FILE = "privacy.json"
"""In the kit: what the noise of this device has let through so far."""

NO_PROTECTION = 20.0
"""An update that costs more ε than this is not covered by its noise."""

OWN_DELTA = 1e-5
"""The δ of what the device counts for itself: with one of the server's, near 1, any noise would do."""

_LOCAL = ("epochs", "optimizer", "weight_decay")
"""Fields of `[training]` that every task repeats."""


def with_defaults(recipe: Recipe) -> dict[str, Any]:
    """Every field as it will hold: the owner has a word on what a server leaves out, too."""
    method = {"name": recipe.method["name"], **method_settings(recipe.method).model_dump(mode="json")}
    return recipe.model_dump(mode="json") | {"method": method}


def check_task(order: Order, name: str, recipe: Recipe, privacy: PrivacySettings, config: ModelConfig) -> None:
    """OwnerRefused, naming it, for whatever of a task does not follow from the recipe."""
    if order.client != name:
        raise _refused(f"a task of {order.client!r}")
    if foreign := method_class(str(recipe.method["name"])).not_asked(method_settings(recipe.method), order):
        raise _refused(foreign)
    training, own = recipe.training, order.settings.get("local", order.settings)
    asked = {name: (getattr(training, name), own[name]) for name in _LOCAL if name in own}
    asked["wire"] = training.wire.of_orders, order.wire
    asked["label_skew"] = training.label_skew, order.label_skew
    for field, (accepted, value) in asked.items():
        if value != accepted:
            raise _refused(f"training.{field} = {value!r}")
    if privacy.on:
        try:
            check_covered(order, config, training.embeddings)
        except RecipeError as error:
            raise OwnerRefused(f"in a task: {error}", public=f"in a task: {error}") from None


def _refused(what: str) -> OwnerRefused:
    words = f"{what}, in a task, is not what the accepted recipe asks for"
    return OwnerRefused(words, public=words)


class PrivacyAccount:
    """The losses of a device with local privacy, in all runs. Gaussian noise with multipliers σ₁, σ₂ … is as good
    as one with σ, where 1/σ² = Σ 1/σᵢ²: the file has these sums, by run and of all."""

    def __init__(self, kit: Path, run: str, privacy: PrivacySettings, owner: OwnerFile) -> None:
        assert privacy.multiplier is not None, "see checks.with_multiplier"
        self._path, self._run, self._delta = kit / PRIVACY_FILE, run, privacy.delta
        self._one = 1 / privacy.multiplier**2 if privacy.multiplier else math.inf
        self._of_run, self._of_all = privacy.epsilon, owner.spend.epsilon or None
        if (cost := epsilon_of_sum(self._one, OWN_DELTA)) > NO_PROTECTION:
            words = (
                f"privacy.multiplier = {privacy.multiplier:g} gives no protection: one update costs ε = {cost:.3g}, "
                f"more than {NO_PROTECTION:g}"
            )
            raise OwnerRefused(words, public=words)

    def check(self) -> None:
        """OwnerRefused if one more update is beyond the recipe's budget for this run, or the owner's for all."""
        spent = self._spent()
        for words, budget, delta, so_far in (
            ("privacy.epsilon of the run", self._of_run, self._delta, spent["runs"].get(self._run, 0.0)),
            ("spend.epsilon of all runs", self._of_all, OWN_DELTA, spent["all"]),
        ):
            if budget is not None and epsilon_of_sum(so_far + self._one, delta) > budget * (1 + 1e-6):
                so_much = f"{epsilon_of_sum(so_far, delta):.3g} of {budget:g} are spent"
                reached = f"{words}: {so_much}, one more update is too much"
                raise OwnerRefused(f"the device's own account: {reached}", public=reached)

    def add(self) -> None:
        """One more update. Called before it leaves: a crash in between costs ε, never hides it."""
        spent = self._spent()
        runs = spent["runs"] | {self._run: spent["runs"].get(self._run, 0.0) + self._one}
        write_json(self._path, {"all": spent["all"] + self._one, "runs": runs})

    def _spent(self) -> dict[str, Any]:
        """An account that cannot be read counts as spent: a budget is not lost with a file."""
        try:
            found: dict[str, Any] = {"all": 0.0, "runs": {}}
            if self._path.exists():
                found = read_json(self._path)
            sums = {str(run): float(value) for run, value in found["runs"].items()}
            total = float(found["all"])
            if not (all(0 <= value <= total * (1 + 1e-9) for value in sums.values()) and math.isfinite(total)):
                raise ValueError("the sums do not agree")
        except (RunError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise OwnerRefused(
                f"{self._path} cannot be read ({error}); put it back, or delete it to begin the account of ε anew",
                public="its account of ε cannot be read",
            ) from None
        return {"all": total, "runs": sums}

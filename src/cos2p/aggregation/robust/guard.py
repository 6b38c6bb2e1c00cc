"""`Guard`: what happens to a decoded update between the door and the merge.

    arrives     bounded; added at once, or kept until the round closes if its fellows are needed to judge it
    closes      weighed by its sender's standing, combined with the others', handed to the merge

Until three devices are known there is no measure for a bound, so a run's first updates wait for each other, at most
until their round closes. What is kept is part of the checkpoint, and never more than `most_held` updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cos2p.aggregation.merge import Contribution, Merge
from cos2p.aggregation.robust.bound import VOICES, NormBound
from cos2p.aggregation.robust.round import Judged, judge
from cos2p.aggregation.robust.settings import RobustSettings
from cos2p.aggregation.robust.standing import Standing
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec

MEMORY = 0.9
"""Of the running mean of the model's steps."""


@dataclass(frozen=True, eq=False)
class Held:
    """An update that waits for its round to close."""

    item: Contribution
    task: str
    version: int
    """What it was trained from: kept as long as the update is."""
    bounded: bool


@dataclass(frozen=True)
class Doubt:
    """An update that did not count in full."""

    client: str
    task: str
    agreement: float
    trust: float
    strikes: int
    """Updates of this device in a row that counted for nothing."""

    def __str__(self) -> str:
        return f"its update agrees by {self.agreement:.2f} with the others'; {self.trust:.0%} of it counts"


class Guard:
    def __init__(self, config: ModelConfig, settings: RobustSettings) -> None:
        self.settings = settings
        self.bound = NormBound(config, settings.bound) if settings.bound else None
        self.standing = Standing()
        self.steps: Weights = {}
        """A running mean of the model's steps, where devices are judged by it."""
        self.barred: dict[str, str] = {}
        """Devices that get no more tasks in this run, and why."""
        self._held: list[Held] = []

    @property
    def versions(self) -> set[int]:
        """Versions that updates which wait were trained from."""
        return {held.version for held in self._held}

    @property
    def full(self) -> bool:
        """Nothing is gained by keeping more: judge these by themselves."""
        if not self.settings.holds:
            return len({held.item.client for held in self._held}) >= VOICES
        return len(self._held) >= self.settings.most_held

    def take(self, item: Contribution, task: str, version: int) -> Contribution | None:
        """The update as it may be added now; None if it is kept until the round closes."""
        known = self.bound is None or self.bound.voices >= VOICES
        if known and self.bound is not None:
            item = self.bound.apply(item)
        if known and not self.settings.holds:
            return item
        self._held.append(Held(item, task, version, bounded=known))
        return None

    def drop(self, task: str) -> None:
        """The update of this task is refused after all."""
        self._held = [held for held in self._held if held.task != task]

    def release(self, merge: Merge, current: Weights) -> tuple[list[Contribution], list[Doubt]]:
        """The round closes: what is to be added now, in the order in which it came, and what was doubted of it."""
        held, self._held = self._held, []
        items = self._bounded(held)
        if not self.settings.holds or not items:
            return items, []
        judged = judge(items, merge, current, self.steps, self.settings, self.standing)
        doubts = [
            Doubt(entry.item.client, waited.task, entry.agreement, entry.trust, self._strike(entry))
            for entry, waited in zip(judged, held, strict=True)
        ]
        for doubt in doubts:
            self._bar(doubt)
        return [entry.item for entry in judged], [doubt for doubt in doubts if doubt.trust < 1.0]

    def _strike(self, entry: Judged) -> int:
        return self.standing.strike(entry.item.client, entry.trust)

    def _bar(self, doubt: Doubt) -> None:
        if self.settings.suspicion == "bench" and doubt.strikes >= self.settings.patience:
            self.barred.setdefault(
                doubt.client,
                f"its last {doubt.strikes} updates pointed elsewhere than those of the others "
                f"(agreement {doubt.agreement:.2f}); look at the device and its data before it takes part again",
            )

    def _bounded(self, held: list[Held]) -> list[Contribution]:
        """The first updates of a run are measured by each other."""
        fresh = [entry.item for entry in held if not entry.bounded]
        if self.bound is None or not fresh:
            return [entry.item for entry in held]
        known = self.bound.state()
        self.bound.learn(fresh)
        bounded = [entry.item if entry.bounded else self.bound.shortened(entry.item) for entry in held]
        self.bound.load_state(known)  # what is remembered are the bounded sizes
        self.bound.learn([item for item, entry in zip(bounded, held, strict=True) if not entry.bounded])
        return bounded

    def stepped(self, before: Weights, after: Weights) -> None:
        """The model made a step."""
        if self.settings.suspicion == "off":
            return
        for name, tensor in after.items():
            old = before.get(name)
            if old is None or old is tensor or old.shape != tensor.shape or not tensor.is_floating_point():
                continue
            step = old - tensor
            known = self.steps.get(name)
            self.steps[name] = step if known is None else known.mul(MEMORY).add_(step, alpha=1 - MEMORY)

    # ------------------------------------------------------------ checkpoint

    def state(self) -> tuple[dict[str, Any], dict[str, Weights]]:
        values = {
            "bound": self.bound.state() if self.bound else {},
            "standing": self.standing.state(),
            "barred": dict(self.barred),
            "held": [_entry(held) for held in self._held],
        }
        groups = {"steps": self.steps}
        for number, held in enumerate(self._held):
            groups |= {f"delta.{number}": held.item.delta, f"extras.{number}": held.item.extras}
        return values, groups

    def load_state(
        self, values: Mapping[str, Any], groups: Mapping[str, Weights], version: Callable[[int], Weights]
    ) -> None:
        """The counterpart of `state`; `version` gives the model of a number."""
        if self.bound:
            self.bound.load_state(values["bound"])
        self.standing.load_state(values["standing"])
        self.barred = dict(values["barred"])
        self.steps = dict(groups.get("steps", {}))
        self._held = [
            _restored(entry, groups.get(f"delta.{n}", {}), groups.get(f"extras.{n}", {}), version)
            for n, entry in enumerate(values["held"])
        ]


def _entry(held: Held) -> dict[str, Any]:
    item = held.item
    return {
        "client": item.client,
        "spec": item.spec.to_dict(),
        "samples": item.samples,
        "staleness": item.staleness,
        "settings": dict(item.settings),
        "task": held.task,
        "version": held.version,
        "bounded": held.bounded,
    }


def _restored(entry: Mapping[str, Any], delta: Weights, extras: Weights, version: Callable[[int], Weights]) -> Held:
    item = Contribution(
        client=entry["client"],
        spec=SubmodelSpec.from_dict(entry["spec"]),
        delta=dict(delta),
        samples=entry["samples"],
        staleness=entry["staleness"],
        received=version(entry["version"]),
        settings=entry["settings"],
        extras=dict(extras),
    )
    return Held(item, entry["task"], entry["version"], entry["bounded"])

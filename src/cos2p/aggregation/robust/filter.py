"""`RobustFilter`: what happens to a decoded update between the update reader and the merge.

    arrives     bounded; added at once, or kept until the round closes if its fellows are needed to evaluate it
    closes      left out if far too long, weighed by its sender's standing, combined with the others', handed to the
                merge

Until three devices are known there is no measure for a bound, so a run's first updates wait for each other, at most
until their round closes. Where devices are compared, a sample of the last update of each is kept for later ones. What
is kept is part of the checkpoint, never more than `MOST_HELD` updates of either kind, and no more than `HELD_BYTES` of
those that wait: a round that takes more is looked at in groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from torch import Tensor

from cos2p.aggregation.merge import Contribution, Merge
from cos2p.aggregation.robust.bound import MIN_DEVICES, NormBound
from cos2p.aggregation.robust.round import weigh
from cos2p.aggregation.robust.sketch import Sampler, compare
from cos2p.aggregation.robust.standing import Opinion, Standing
from cos2p.aggregation.robust.statistics import StatisticsFilter, is_statistics
from cos2p.aggregation.settings import STRIKES, RobustSettings
from cos2p.messages import Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec

ABSURD = 2.0
"""Where devices are compared: an update so many times as long as the bound allows counts for nothing."""


MOST_HELD = 32
"""Updates of a round that are kept; a larger round is compared and combined in groups of this many."""

HELD_BYTES = 2**30
"""Bytes of updates that wait for their round to close."""


@dataclass(frozen=True, eq=False)
class Held:
    """An update that waits for its round to close."""

    item: Contribution
    task: str
    version: int
    """The weights it was trained from, kept as long as the update is."""
    bounded: bool
    excess: float = 0.0
    """How many times as long as usual it came."""


@dataclass(frozen=True)
class Doubt:
    """An update that did not count in full."""

    client: str
    task: str
    agreement: float
    trust: float
    strikes: int
    """Updates of this device in a row that counted for nothing."""
    excess: float
    statistics: bool = False
    """Its class means, instead of its update."""
    stuck: float = 0.0
    """Its cosine with its own last updates."""

    def __str__(self) -> str:
        return f"its update {self.fault}; {self.trust:.0%} of it counts"

    @property
    def fault(self) -> str:
        if self.statistics:
            return f"has class means {self.excess:.3g} times as far from the others' as usual"
        if self.excess:
            return f"is {self.excess:.3g} times as long as usual"
        if self.stuck:
            return f"is nearly the same as its last ones (cosine {self.stuck:.2f}), whatever model it got"
        return f"agrees by {self.agreement:.2f} with the others'"


class RobustFilter:
    def __init__(self, config: ModelConfig, settings: RobustSettings, salt: int = 0) -> None:
        """`salt`: which scalars are compared."""
        self.settings, self.sampler = settings, Sampler(salt)
        self.bound = NormBound(config, settings.bound) if settings.bound else None
        self.standing = Standing()
        self.excluded: dict[str, str] = {}
        """Devices that get no more tasks in this run, and why."""
        self.statistics = {final: StatisticsFilter() for final in (False, True)}
        """One for the statistics of the start, one for those of the final round."""
        self._held: list[Held] = []
        self._last: dict[str, Tensor] = {}
        """A sample of the last update of each device, those heard last at the end; only where devices are compared."""
        self._trained_from: dict[str, int] = {}
        """By device: the version that this update was trained from."""

    @property
    def versions(self) -> set[int]:
        """Versions that updates which wait were trained from."""
        return {held.version for held in self._held}

    @property
    def full(self) -> bool:
        """Nothing is gained by keeping more: compare these by themselves."""
        if len(self._held) >= MOST_HELD or self._held_bytes() >= HELD_BYTES:
            return True
        waiting = {held.item.client for held in self._held if not held.bounded}
        return not self.settings.holds and len(waiting) >= MIN_DEVICES

    def _held_bytes(self) -> int:
        parts = (part for held in self._held for part in (held.item.delta, held.item.extras))
        return sum(tensor.nbytes for part in parts for tensor in part.values())

    def take(self, item: Contribution, task: str, version: int) -> Contribution | None:
        """The update as it may be added now; None if it is kept until the round closes."""
        if self._compares_statistics and is_statistics(item.extras):
            self._held.append(Held(item, task, version, bounded=True))
            return None
        known, excess = self.bound is None or self.bound.device_count >= MIN_DEVICES, 0.0
        if known and self.bound is not None:
            excess = self.bound.excess(item) if self.settings.suspicion != "off" else 0.0
            item = self.bound.apply(item)
        if known and not self.settings.holds:
            return item
        self._held.append(Held(item, task, version, bounded=known, excess=excess))
        return None

    def drop(self, task: str) -> None:
        """The update of this task is refused after all."""
        self._held = [held for held in self._held if held.task != task]

    def release(self, merge: Merge, current: Weights) -> tuple[list[Contribution], list[Doubt]]:
        """The round closes: what is to be added now, in the order in which it came, and what was doubted of it."""
        held, self._held = self._bounded(self._held), []
        statistics, doubts = self._compared([entry for entry in held if _has_statistics(entry)])
        held = [entry for entry in held if not _has_statistics(entry)]
        items = [entry.item for entry in held]
        if not self.settings.holds or not items:
            return [*statistics, *items], doubts
        absurd = [entry.excess if self._is_absurd(entry) else 0.0 for entry in held]
        opinions = self._opinions(held, absurd, merge, current)
        weighed = weigh(items, merge, current, self.settings, opinions)
        doubts += [self._doubt(entry, opinion, far) for entry, opinion, far in zip(held, opinions, absurd, strict=True)]
        for doubt in doubts:
            self._exclude(doubt)
        return statistics + [entry.item for entry in weighed], [doubt for doubt in doubts if doubt.trust < 1.0]

    @property
    def _compares_statistics(self) -> bool:
        return self.bound is not None or self.settings.suspicion != "off"

    def _compared(self, held: Sequence[Held]) -> tuple[list[Contribution], list[Doubt]]:
        """Statistics of features, bounded by those of the fleet; those that count for nothing are left out."""
        kept: list[Contribution] = []
        doubts: list[Doubt] = []
        for final in (False, True):
            mine = {entry.item.client: entry for entry in held if bool(entry.item.settings.get("final")) is final}
            found = self.statistics[final].bound({client: entry.item.extras for client, entry in mine.items()})
            for client, bounded in found.items():
                if bounded.counts:
                    kept.append(replace(mine[client].item, extras=bounded.extras))
                else:
                    strikes = self.standing.strike(client, 0.0)
                    doubts.append(Doubt(client, mine[client].task, 0.0, 0.0, strikes, bounded.excess, True))
        return kept, doubts

    def _is_absurd(self, entry: Held) -> bool:
        return self.settings.suspicion != "off" and entry.excess > ABSURD * self.settings.bound

    def _opinions(self, held: Sequence[Held], absurd: Sequence[float], merge: Merge, current: Weights) -> list[Opinion]:
        """The standing of each of the round's updates. An absurd one is no evidence of where the fleet goes."""
        if self.settings.suspicion == "off":
            return [Opinion()] * len(held)
        believable = [
            (entry, self.sampler.sketch(entry.item, merge, current))
            for entry, far in zip(held, absurd, strict=True)
            if not far and entry.item.delta
        ]
        found = compare([(entry.item.client, sketch) for entry, sketch in believable], self._last)
        for entry, sketch in believable:
            client = entry.item.client
            if self._trained_from.get(client) == entry.version:  # the same model twice may teach the same twice
                found.pop((client, client), None)
            self._last.pop(client, None)
            self._last[client], self._trained_from[client] = sketch, entry.version
        self.standing.note(found)
        for client in list(self._last)[:-MOST_HELD]:
            del self._last[client], self._trained_from[client]
        known = self.standing.opinions()
        if 3 * len(self.excluded) >= max(3, len(known) + len(self.excluded) - 2):
            # A third is out: what the rest is like among itself says no more who is honest.
            known = {client: opinion for client, opinion in known.items() if opinion.stuck}
        return [
            Opinion(0.0) if far else known.get(entry.item.client, Opinion())
            for entry, far in zip(held, absurd, strict=True)
        ]

    def _doubt(self, entry: Held, opinion: Opinion, excess: float) -> Doubt:
        client = entry.item.client
        strikes = self.standing.strike(client, opinion.trust)
        return Doubt(client, entry.task, opinion.agreement, opinion.trust, strikes, excess, stuck=opinion.stuck)

    def _exclude(self, doubt: Doubt) -> None:
        if self.settings.suspicion == "exclude" and doubt.strikes >= STRIKES:
            self.excluded.setdefault(
                doubt.client,
                f"its last {doubt.strikes} updates counted for nothing (the last {doubt.fault}); "
                "look at the device and its data before it takes part again",
            )
            self.standing.forget(doubt.client)  # no evidence of where the fleet goes
            self._last.pop(doubt.client, None)

    def _bounded(self, held: list[Held]) -> list[Held]:
        """The first updates of a run are measured by each other."""
        fresh = [entry.item for entry in held if not entry.bounded]
        if self.bound is None or not fresh:
            return held
        known = self.bound.state()
        self.bound.learn(fresh)
        done = [entry if entry.bounded else self._measured(entry, self.bound) for entry in held]
        self.bound.load_state(known)  # what is remembered are the bounded sizes
        self.bound.learn([after.item for after, entry in zip(done, held, strict=True) if not entry.bounded])
        return done

    def _measured(self, entry: Held, bound: NormBound) -> Held:
        return replace(entry, item=bound.shortened(entry.item), excess=bound.excess(entry.item), bounded=True)

    # ------------------------------------------------------------ checkpoint

    def state(self) -> tuple[dict[str, Any], dict[str, Weights]]:
        values = {
            "bound": self.bound.state() if self.bound else {},
            "standing": self.standing.state(),
            "excluded": dict(self.excluded),
            "held": [_entry(held) for held in self._held],
            "last": {client: self._trained_from[client] for client in self._last},
            "salt": self.sampler.salt,
            "statistics": [list(self.statistics[final].known) for final in (False, True)],
        }
        groups = {"last": {str(number): sketch for number, sketch in enumerate(self._last.values())}}
        for final, each in self.statistics.items():
            groups |= {f"statistics.{final:d}.{n}": extras for n, extras in enumerate(each.known.values())}
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
        self.excluded = dict(values["excluded"])
        self.sampler = Sampler(int(values["salt"]))
        self._trained_from = dict(values["last"])
        self._last = {client: groups["last"][str(number)] for number, client in enumerate(values["last"])}
        for final, names in enumerate(values["statistics"]):
            self.statistics[bool(final)].known = {
                name: dict(groups[f"statistics.{final}.{number}"]) for number, name in enumerate(names)
            }
        self._held = [
            _restored(entry, groups.get(f"delta.{n}", {}), groups.get(f"extras.{n}", {}), version)
            for n, entry in enumerate(values["held"])
        ]


def _has_statistics(held: Held) -> bool:
    return is_statistics(held.item.extras)


def _entry(held: Held) -> dict[str, Any]:
    """The part of the state that is not tensors."""
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
        "excess": held.excess,
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
    return Held(item, entry["task"], entry["version"], entry["bounded"], entry.get("excess", 0.0))


def most_credited(claims: Iterable[int], factor: float) -> float:
    """Samples of one device that count; all where there are too few devices to compare with, or `factor` is 0.

    >>> most_credited([100, 120, 2**31], 10.0)
    1200.0
    """
    counts = list(claims)
    if not factor or len(counts) < MIN_DEVICES:
        return float("inf")
    return max(1.0, factor * median_low(counts))


def credited(update: Update, most: float) -> Update:
    """The update with at most so many samples; sums over them count as if they were over that many."""
    if update.samples <= most:
        return update
    share, extras = most / update.samples, update.extras
    if "counts" in extras:  # sums of features, by class: `training.statistics`
        extras = {name: tensor * share for name, tensor in extras.items()}
    return replace(update, samples=int(most), extras=extras)

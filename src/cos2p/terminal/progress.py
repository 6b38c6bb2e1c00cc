"""Where a run is: fed by the run's events, it knows how far, how good, how long still, and who is late."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

from cos2p.numerics.metrics import perplexity
from cos2p.terminal.formatting import duration, epsilon_text, percent, printable
from cos2p.tracking.event_kinds import Aggregated, Dispatched, Event, Merged, Started
from cos2p.tracking.figure_parts import tiers
from cos2p.tracking.figures import RunFigures

Clock = Callable[[], float]

ONE_BY_ONE = 20
"""Devices; of more, those that are late are counted by kind."""


class Pace:
    """Remaining wall seconds at the pace of the last half: first the workers start and the first rounds train masks."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        """(share done, wall second), both ascending."""

    def note(self, share: float, at: float) -> None:
        if self._seen and share < self._seen[-1][0]:
            self._seen.clear()  # the run was resumed from an earlier state, or begun anew
        if not self._seen or (share > self._seen[-1][0] and at > self._seen[-1][1]):
            self._seen.append((share, at))

    def left(self, now: float | None = None) -> float | None:
        """From `now`, or from the last progress; None while there is too little to go by."""
        if len(self._seen) < 3 or self._seen[-1][0] >= 1.0:
            return None
        (first, _), (share, at) = self._seen[0], self._seen[-1]
        middle = bisect_left(self._seen, (first + (share - first) / 2, 0.0))
        then_share, then = self._seen[min(middle, len(self._seen) - 2)]
        return max(0.0, (1 - share) * (at - then) / (share - then_share) - (0.0 if now is None else now - at))


class Progress:
    """The state of the run so far, and its pace. A listener: `progress(event)`."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.began = clock()
        self.figures = RunFigures()
        self.real = False
        """Whether its seconds are the clock's: only a simulation knows beforehand how long a task will take."""
        self._pace = Pace()

    def __call__(self, event: Event) -> None:
        self.figures(event)
        if isinstance(event, Dispatched):
            self.real = event.seconds is None
        if isinstance(event, Started | Merged | Aggregated):
            self._pace.note(self.share, self._clock())

    # ------------------------------------------------------------ what people ask

    @property
    def title(self) -> str:
        return self.figures.started.title if self.figures.started is not None else ""

    @property
    def share(self) -> float:
        return self.figures.share

    def late(self) -> list[tuple[str, int]]:
        """Clients at a task that is older than the median client's last one, with its staleness; stalest first."""
        given = {name: device.given for name, device in self.figures.devices.items() if device.given is not None}
        median = statistics.median(given.values()) if given else 0.0
        behind = [
            (name, self.figures.version - device.version)
            for name, device in self.figures.devices.items()
            if device.task is not None and given.get(name, median) < median
        ]
        return sorted((entry for entry in behind if entry[1] > 0), key=lambda entry: (-entry[1], entry[0]))

    def elapsed(self) -> float:
        return self._clock() - self.began

    def remaining(self) -> float | None:
        """Wall seconds to the end; None while there is too little to go by."""
        return self._pace.left(self._clock())

    # ------------------------------------------------------------ in words

    def count_text(self) -> str:
        """The limit that decides first: rounds or updates."""
        found, started = self.figures, self.figures.started
        rounds, updates = (started.rounds, started.updates) if started is not None else (None, None)
        if updates and (not rounds or found.merged / updates >= found.version / rounds):
            return f"updates {found.merged}/{updates}, round {found.version}"
        return f"round {found.version}/{rounds or '?'}"

    def score_text(self) -> str:
        found = self.figures
        if found.last is None or found.best is None:
            return "server –"
        late = f" after round {found.last_version}" if 0 < found.last_version < found.version else ""
        chance = (found.started.data or {}).get("chance") if found.started is not None else None
        worth = f"; chance {percent(chance)}" if chance is not None else ""
        if found.score_name == "perplexity":
            return f"server perplexity {found.last:.4g}{late} (best {found.best[0]:.4g}, {found.part})"
        return f"server {percent(found.last)}{late} (best {percent(found.best[0])}, {found.part}{worth})"

    def client_text(self) -> str:
        """How good the clients' own submodels are; a private run, which reports nothing of them, says what it costs."""
        if self.figures.spent is not None:
            return epsilon_text(vars(self.figures.spent))
        loss = self.figures.client_mean("loss")
        if loss is not None:
            return f"clients' perplexity {perplexity(loss):.4g}"
        return f"clients {percent(self.figures.client_mean('top1'))}"

    def trouble_text(self, names: int = 3) -> str:
        late = self.late()
        if len(self.figures.devices) > ONE_BY_ONE:
            parts = [self._late_by_kind(late)]
        else:
            listed = ", ".join(f"{printable(name)} (τ {staleness})" for name, staleness in late[:names])
            more = f" and {len(late) - names} more" if len(late) > names else ""
            parts = [f"late: {listed}{more}"] if late else ["nobody late"]
        counts = (("refused", self.figures.refused), ("failed", self.figures.total("failed")))
        parts += [f"{name} {number}" for name, number in counts if number]
        return " · ".join(parts)

    def _late_by_kind(self, late: list[tuple[str, int]]) -> str:
        """The words for a large fleet: how many of each kind are at work, and how many of those are late."""
        kinds = tiers({name: device.rate for name, device in self.figures.devices.items()})
        kind_of = {name: kind for kind, names in kinds.items() for name in names}
        working = Counter(kind_of[name] for name, device in self.figures.devices.items() if device.task is not None)
        behind = Counter(kind_of[name] for name, _ in late)
        words = []
        for kind, names in kinds.items():
            late_text = f" ({behind[kind]} late)" if behind[kind] else ""
            words.append(f"{printable(kind)} {working[kind]:,} of {len(names):,}{late_text}")
        return "at work: " + ", ".join(words)

    def time_text(self, seconds: float) -> str:
        """The run's own time: computed in a simulation, the clock's on a fleet."""
        return f"after {duration(seconds)}" if self.real else f"virtual {duration(seconds)}"

    def remaining_text(self) -> str:
        if self.figures.finished is not None:
            return "done"
        if self.share >= 1:
            return "last evaluation on the whole test set"
        left = self.remaining()
        return f"about {duration(left)} left" if left is not None else "estimating the time"

    def line(self) -> str:
        return " · ".join(
            [
                self.count_text(),
                self.time_text(self.figures.now),
                self.score_text(),
                self.client_text(),
                self.trouble_text(),
                self.remaining_text(),
            ]
        )

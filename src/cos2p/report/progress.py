"""Where a run is: fed by the run's events, it knows how far, how good, how long still, and who is late."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from cos2p.report.words import duration, percent, printable

Clock = Callable[[], float]


class Progress:
    """What is known of the run so far. A listener: `progress(kind, fields)`."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.began = clock()
        self.title = ""
        self.rounds: int | None = None
        """Rounds until the end, if they decide it; likewise `updates`."""
        self.updates: int | None = None
        self.version = 0
        """Rounds done."""
        self.merged = 0
        self.now = 0.0
        """Seconds of the run."""
        self.real = False
        """Whether they are the clock's: only a simulation knows beforehand how long a task will take."""
        self.part = ""
        """The samples behind `last` and `best`: validation, or test where there is no validation."""
        self.last: float | None = None
        self.best: float | None = None
        self.own: dict[str, tuple[float, float]] = {}
        """Each client's top-1 with its own submodel, and the number of samples behind it."""
        self.open: dict[str, tuple[int, float]] = {}
        """Tasks under way: by client the version they were cut from and when."""
        self._given: dict[str, float] = {}
        """When each client that is here got its last task, done or not."""
        self.refused = 0
        self.failed = 0
        self.finished = False
        self._pace: list[tuple[float, float]] = []
        """(share done, wall second), ascending."""

    def __call__(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.now = fields.get("t", self.now)
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(fields)

    # ------------------------------------------------------------ what the events mean

    def _on_started(self, fields: Mapping[str, Any]) -> None:
        self.title, self.rounds, self.updates = fields["title"], fields["rounds"], fields["updates"]
        self._note_pace()

    def _on_resumed(self, fields: Mapping[str, Any]) -> None:
        self.version, self.merged = fields.get("version", 0), fields.get("merged", 0)
        self._on_started(fields)

    def _on_dispatched(self, fields: Mapping[str, Any]) -> None:
        self.open[fields["client"]] = (fields["version"], fields["t"])
        self._given[fields["client"]] = fields["t"]
        self.real = "seconds" not in fields

    def _on_arrived(self, fields: Mapping[str, Any]) -> None:
        self.open.pop(fields["client"], None)

    _on_lost = _on_arrived

    def _on_left(self, fields: Mapping[str, Any]) -> None:
        self._on_arrived(fields)
        self._given.pop(fields["client"], None)

    _on_died = _on_left

    def _on_failed(self, fields: Mapping[str, Any]) -> None:
        self._on_arrived(fields)
        self.failed += 1

    def _on_refused(self, fields: Mapping[str, Any]) -> None:
        self.refused += 1

    def _on_merged(self, fields: Mapping[str, Any]) -> None:
        self.merged += 1
        report = fields["report"]
        if report.get("local_samples"):
            self.own[fields["client"]] = (report["local_top1"], report["local_samples"])
        self._note_pace()

    def _on_aggregated(self, fields: Mapping[str, Any]) -> None:
        self.version = fields["version"]
        self._note_pace()

    def _on_evaluated(self, fields: Mapping[str, Any]) -> None:
        self.part = "validation" if fields.get("validation") else "test"
        by_exit = fields.get(self.part)
        if by_exit:
            self.last = by_exit[max(by_exit, key=int)]["top1"]
            self.best = self.last if self.best is None else max(self.best, self.last)

    def _on_finished(self, fields: Mapping[str, Any]) -> None:
        self._on_evaluated(fields)
        self.finished = True
        self.open.clear()

    # ------------------------------------------------------------ what people ask

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1, by the limit that is nearer."""
        shares = [done / goal for done, goal in ((self.version, self.rounds), (self.merged, self.updates)) if goal]
        return min(1.0, max(shares, default=0.0))

    @property
    def client_mean(self) -> float | None:
        samples = sum(weight for _, weight in self.own.values())
        return sum(top1 * weight for top1, weight in self.own.values()) / samples if samples else None

    def late(self) -> list[tuple[str, int]]:
        """Clients at a task that is older than the median client's last one, with its staleness; stalest first."""
        if not self.open:
            return []
        median = statistics.median(self._given.values())
        behind = [(name, self.version - version) for name, (version, since) in self.open.items() if since < median]
        return sorted((entry for entry in behind if entry[1] > 0), key=lambda entry: (-entry[1], entry[0]))

    def elapsed(self) -> float:
        return self._clock() - self.began

    def remaining(self) -> float | None:
        """Wall seconds to the end at the pace of the last half; None while there is too little to go by.

        The first rounds train masks and the workers are still starting, so the pace since the start would lie.
        """
        if len(self._pace) < 3 or not 0 < self.share < 1:
            return None
        (first, _), (share, at) = self._pace[0], self._pace[-1]
        middle = bisect_left(self._pace, (first + (share - first) / 2, 0.0))
        then_share, then = self._pace[min(middle, len(self._pace) - 2)]
        if at <= then or share <= then_share:
            return None
        return max(0.0, (1 - share) * (at - then) / (share - then_share) - (self._clock() - at))

    def _note_pace(self) -> None:
        if not self._pace or self.share > self._pace[-1][0]:
            self._pace.append((self.share, self._clock()))

    # ------------------------------------------------------------ in words

    def count_words(self) -> str:
        """The limit that decides first: rounds or updates."""
        by_updates = self.updates and (not self.rounds or self.merged / self.updates >= self.version / self.rounds)
        if by_updates:
            return f"updates {self.merged}/{self.updates}, round {self.version}"
        return f"round {self.version}/{self.rounds or '?'}"

    def score_words(self) -> str:
        if self.last is None:
            return "server –"
        return f"server {percent(self.last)} (best {percent(self.best)}, {self.part})"

    def trouble_words(self, names: int = 3) -> str:
        late = self.late()
        listed = ", ".join(f"{printable(name)} (τ {staleness})" for name, staleness in late[:names])
        more = f" and {len(late) - names} more" if len(late) > names else ""
        parts = [f"late: {listed}{more}"] if late else ["nobody late"]
        parts += [f"{name} {number}" for name, number in (("refused", self.refused), ("failed", self.failed)) if number]
        return " · ".join(parts)

    def time_words(self, seconds: float) -> str:
        """The run's own time: computed in a simulation, the clock's on a fleet."""
        return f"after {duration(seconds)}" if self.real else f"virtual {duration(seconds)}"

    def remaining_words(self) -> str:
        if self.finished:
            return "done"
        if self.share >= 1:
            return "last evaluation on the whole test set"
        left = self.remaining()
        return f"about {duration(left)} left" if left is not None else "estimating the time"

    def line(self) -> str:
        return " · ".join(
            [
                self.count_words(),
                self.time_words(self.now),
                self.score_words(),
                f"clients {percent(self.client_mean)}",
                self.trouble_words(),
                self.remaining_words(),
            ]
        )

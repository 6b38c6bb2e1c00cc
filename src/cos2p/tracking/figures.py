"""The figures of a run so far, folded from its events: the one place where they are counted.

    events ──► RunFigures ──► result.json, the terminal, the page, TensorBoard and MLflow, the decision to stop early

Nothing of it is kept elsewhere: a resumed run, or a reader of a finished one, replays the log and has the same figures,
to the last bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from cos2p.tracking.event_kinds import (
    Aggregated,
    Arrived,
    Dispatched,
    Doubted,
    Evaluated,
    Event,
    Failed,
    Finished,
    Joined,
    Left,
    Lost,
    Lowered,
    Merged,
    Rated,
    Refused,
    Resumed,
    Spent,
    Started,
)
from cos2p.tracking.events import read_events
from cos2p.tracking.figure_parts import (
    LIKELIHOOD,
    SCORES,
    DeviceFigures,
    RoundFigures,
    best_exit,
    deepest,
    gain_figures,
    likelihood_figures,
    merit,
    number,
    score_name,
    trains,
)

_FACTS = ("rate", "samples", "batch", "memory", "flops", "plan", "why")


class RunFigures:
    """A listener: `figures(event)`. A run that begins anew begins at nothing."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.now = 0.0
        self.version = 0
        self.merged = 0
        self.refused = 0
        """Updates, those of strangers included."""
        self.devices: dict[str, DeviceFigures] = {}
        """In the order in which the log names them."""
        self.own: dict[str, dict[str, float]] = {}
        """Each client's last scores of its own submodel, and the `samples` behind them."""
        self.staleness: Counter[int] = Counter()
        self.n_star: int | None = None
        self.rounds = 0
        self.last_round: RoundFigures | None = None
        self.utilisation: list[float] = []
        """RU of each round in which somebody was busy."""
        self.evaluated: Evaluated | Finished | None = None
        self.by_class: dict[str, list[int]] = {}
        """Counts of every class, of the last evaluation on all test samples."""
        self.base: dict[str, float] = {}
        """Scores on the test samples before anything trained: a pretrained language model, a head in closed form."""
        self.trained = False
        """Whether an update was merged that trained something."""
        self._untrained = 0
        """The last version that nothing trained."""
        self.lr: float | None = None
        """Learning rate of the last task that was given."""
        self.part: Literal["validation", "test", ""] = ""
        """The samples behind `last` and `best`: validation, or test where there is no validation."""
        self.last: float | None = None
        self.last_version = 0
        """That has the score `last`."""
        self.best: tuple[float, int] | None = None
        """Best top-1, of a language model perplexity, and the version that had it."""
        self.score_name = "top1"
        """The score in `last` and `best`: `top1`, or `perplexity`."""
        self._best_merit = -math.inf
        self.since_best = 0
        """Evaluations on validation samples that were no better."""
        self.spent: Spent | None = None
        """The cost of a private run."""
        self.rated: Rated | None = None
        """How the learning rate was found, where devices looked for it."""
        self.finished: str | None = None
        self._round_start = 0.0
        self._round: list[Merged] = []

    def __call__(self, event: Event) -> None:
        self.now = max(self.now, event.t)
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is not None:
            handler(event)

    def replay(self, events: Iterable[Event]) -> None:
        for event in events:
            self(event)

    # ------------------------------------------------------------ the run

    def _on_started(self, event: Started) -> None:
        vars(self).update(vars(RunFigures()))  # of an earlier beginning nothing is left
        self.started = event
        for name, facts in event.devices.items():
            self._meet(name, facts)

    def _on_resumed(self, event: Resumed) -> None:
        self.replay(read_events(event.log))

    def _on_finished(self, event: Finished) -> None:
        self._on_evaluated(event)
        self.finished = event.reason
        if event.t > self._round_start:
            self._end_spells(event.t)
        for device in self.devices.values():
            device.task = None

    def _on_rated(self, event: Rated) -> None:
        self.rated = event

    def _on_spent(self, event: Spent) -> None:
        self.spent = event

    # ------------------------------------------------------------ devices

    def _meet(self, name: str, facts: Mapping[str, Any]) -> DeviceFigures:
        device = self.devices.setdefault(name, DeviceFigures())
        for fact in _FACTS:
            if facts.get(fact) is not None:
                setattr(device, fact, facts[fact])
        return device

    def _on_joined(self, event: Joined) -> None:
        device = self._meet(event.client, {"rate": event.rate, "samples": event.samples, "memory": event.memory})
        device.rest(event.t)  # who joins has nothing in hand
        device.here = True

    def _on_lowered(self, event: Lowered) -> None:
        self._meet(event.client, {"rate": event.rate})

    def _on_dispatched(self, event: Dispatched) -> None:
        device = self._meet(event.client, {})
        device.rest(event.t)
        device.tasks += 1
        self.lr = event.lr
        device.bytes_down += event.bytes
        device.task, device.version, device.since, device.given = event.task, event.version, event.t, event.t
        if event.peak_memory is not None:
            device.predicted = max(event.peak_memory, device.predicted or 0)

    def _on_arrived(self, event: Arrived) -> None:
        self._done(event).bytes_up += event.bytes

    def _on_doubted(self, event: Doubted) -> None:
        self._meet(event.client, {}).doubted += 1

    def _on_failed(self, event: Failed) -> None:
        self._done(event).failed += 1

    def _done(self, event: Arrived | Failed) -> DeviceFigures:
        device = self._meet(event.client, {})
        if device.task == event.task:
            device.rest(event.t)
        peak, down, up = (number((event.measured or {}).get(name)) for name in ("peak", "down_rate", "up_rate"))
        if peak:
            device.measured = max(round(peak), device.measured or 0)
        if down and up:
            device.link = (down, up)
        return device

    def _on_lost(self, event: Lost) -> None:
        self._gone(event)

    def _on_left(self, event: Left) -> None:
        device = self._gone(event)
        device.here, device.given = False, None

    def _gone(self, event: Lost | Left) -> DeviceFigures:
        device = self._meet(event.client, {})
        device.lost += device.task is not None
        device.rest(event.t)
        return device

    # ------------------------------------------------------------ updates

    def _on_refused(self, event: Refused) -> None:
        self.refused += 1
        device = self.devices.get(event.client)
        if device is not None:
            device.refused += 1
            if device.task == event.task:
                device.rest(event.t)

    def _on_merged(self, event: Merged) -> None:
        device = self._meet(event.client, {})
        device.updates += 1
        device.staleness += event.staleness
        self.merged += 1
        self.staleness[event.staleness] += 1
        self._round.append(event)
        self.trained = self.trained or trains(event)
        scores = {name.removeprefix("local_"): number(v) for name, v in event.report.items() if name[:6] == "local_"}
        if scores.get("samples"):
            self.own[event.client] = {name: value for name, value in scores.items() if value is not None}

    # ------------------------------------------------------------ rounds

    def _on_aggregated(self, event: Aggregated) -> None:
        self.version = event.version
        if not self.trained:
            self._untrained = event.version
        self.rounds += 1
        # Where all only reported sums of features, N* says nothing.
        trained = any(merged.window[1] > merged.window[0] for merged in self._round) or not self._round
        if event.n_star is not None and trained:
            self.n_star = event.n_star if self.n_star is None else min(self.n_star, event.n_star)
        self.last_round = RoundFigures(
            event=event,
            ru=self._close_round(event.t),
            loss=self._mean_reported("loss"),
            mask_loss=self._mean_reported("mask_loss"),
            staleness=_mean([merged.staleness for merged in self._round]),
            client_top1=self.client_mean("top1"),
            reports={merged.client: merged.report for merged in self._round},
        )
        self._round = []

    def _close_round(self, now: float) -> float | None:
        """RU of the round."""
        busy = self._end_spells(now)
        present = [name for name, device in self.devices.items() if device.here or busy[name] > 0]
        longest = max((busy[name] for name in present), default=0.0)
        self._round_start = now
        if longest <= 0:
            return None
        self.utilisation.append(sum(busy[name] for name in present) / (len(present) * longest))
        return self.utilisation[-1]

    def _end_spells(self, now: float) -> dict[str, float]:
        """Seconds of the round that ends, by device; what goes on counts for the next one from now."""
        busy = {name: device.worked(now) for name, device in self.devices.items()}
        for name, device in self.devices.items():
            device.busy += busy[name]
            device.spells = []
            device.since = max(device.since, now)
        return busy

    def _mean_reported(self, name: str) -> float | None:
        values = [number(merged.report.get(name)) for merged in self._round]
        return _mean([value for value in values if value is not None])

    # ------------------------------------------------------------ scores

    def _on_evaluated(self, event: Evaluated | Finished) -> None:
        self.evaluated = event
        self.by_class = event.classes or self.by_class
        begins = isinstance(event, Evaluated) and event.version <= self._untrained
        if begins:
            top = deepest(event.test)
            self.base = {name: top[name] for name in (*LIKELIHOOD, *SCORES) if name in top}
        part: Literal["validation", "test"] = "validation" if event.validation else "test"
        scores = deepest(getattr(event, part))
        found = merit(scores)
        if found is None:
            return
        self.score_name = score_name(scores)
        self.part, self.last, self.last_version = part, scores[self.score_name], event.version
        if self.best is None or found > self._best_merit:
            # A head in closed form may be better than what comes while features move; patience begins with training.
            self.best, self.since_best = (self.last, event.version), 0
            self._best_merit = -math.inf if begins else found
        elif part == "validation":
            self.since_best += 1

    def out_of_patience(self, patience: int) -> bool:
        return 0 < patience <= self.since_best

    # ------------------------------------------------------------ what people ask

    @property
    def share(self) -> float:
        """How much of the run is done, 0 to 1, by the limit that is nearer."""
        if self.finished is not None:
            return 1.0
        goals = (self.started.rounds, self.started.updates) if self.started is not None else (None, None)
        return min(1.0, max((d / g for d, g in zip((self.version, self.merged), goals, strict=True) if g), default=0.0))

    @property
    def ru(self) -> float | None:
        return sum(self.utilisation) / len(self.utilisation) if self.utilisation else None

    def total(self, name: str) -> int:
        """A count over all devices: `bytes_up`, `failed` ..."""
        return sum(getattr(device, name) for device in self.devices.values())

    def client_mean(self, name: str) -> float | None:
        """Mean score of the clients' own submodels, weighted by the size of their local test part."""
        scored = [own for own in self.own.values() if name in own]
        samples = sum(own["samples"] for own in scored)
        return sum(own[name] * own["samples"] for own in scored) / samples if samples else None

    @property
    def over_budget(self) -> dict[str, int] | None:
        """The devices whose largest task does not fit their memory: how many, and the worst one's bytes."""
        tasks = [(d.predicted, d.memory) for d in self.devices.values() if d.predicted and d.memory]
        over = [(needs, has) for needs, has in tasks if needs > has]
        if not over:
            return None
        needs, has = max(over, key=lambda pair: pair[0] / pair[1])
        return {"devices": len(over), "needs": needs, "has": has}

    @property
    def best_exit(self) -> int | None:
        """The depth of the exit to use: the best on validation samples, or on test samples if there are none."""
        return None if self.evaluated is None else best_exit(self.evaluated.validation or self.evaluated.test)

    def result(self) -> dict[str, Any]:
        test = self.evaluated.test or {} if self.evaluated is not None else {}
        top, chosen = deepest(test), deepest(self.evaluated.validation if self.evaluated is not None else None)
        seconds = self.now or 1.0
        tests = (self.started.data or {}).get("test") if self.started is not None else None
        return {
            **{name: top.get(name) for name in SCORES},
            **{f"validation_{name}": chosen.get(name) for name in SCORES},
            **{f"client_{name}": self.client_mean(name) for name in SCORES},
            **likelihood_figures(test, top, chosen, self.client_mean),
            **({"base": self.base, **gain_figures(self.base, top, tests)} if self.base and self.trained else {}),
            "exits": {depth: scores["top1"] for depth, scores in test.items()},
            "best_exit": self.best_exit,
            **({"by_class": self.by_class} if self.by_class else {}),
            "ru": self.ru,
            "busy": sum(device.busy for device in self.devices.values()) / (max(1, len(self.devices)) * seconds),
            "virtual_seconds": self.now,
            "rounds": self.rounds,
            "updates": self.merged,
            "refused": self.refused,
            "bytes_up": self.total("bytes_up"),
            "bytes_down": self.total("bytes_down"),
            "n_star": self.n_star,
            "staleness": {str(tau): count for tau, count in sorted(self.staleness.items())},
            **self._privacy(),
            **({} if self.over_budget is None else {"over_budget": self.over_budget}),
            "full_memory": self.started.full_memory if self.started is not None else None,
            "seed": self.started.seed if self.started is not None else None,
            "devices": {name: self._device_result(name, device) for name, device in self.devices.items()},
        }

    def _privacy(self) -> dict[str, Any]:
        """The cost of a private run; nothing for another."""
        if self.spent is None:
            return {}
        return {"privacy": {name: getattr(self.spent, name) for name in self.spent.names if name != "t"}}

    def _device_result(self, name: str, device: DeviceFigures) -> dict[str, Any]:
        facts = ("rate", "samples", "tasks", "updates", "bytes_up", "bytes_down", "memory")
        return {
            **{fact: getattr(device, fact) for fact in facts},
            "busy_seconds": device.busy,
            "peak_memory": device.predicted,
            "top1": self.own.get(name, {}).get("top1"),
            **({} if device.link is None else {"link": [round(rate) for rate in device.link]}),
        }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None

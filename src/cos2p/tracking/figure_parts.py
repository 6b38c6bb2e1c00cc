"""The parts of `RunFigures`: scores of an evaluation, one device, one closed round; and kinds of devices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cos2p.numerics.metrics import perplexity
from cos2p.tracking.event_kinds import Aggregated, Merged

SCORES = ("top1", "top5", "f1")
LIKELIHOOD = ("loss", "perplexity", "answers", "generated", "likeliest")
"""Further scores of language models; a classifier has none of them."""


BASELINES = {
    "chance": "chance",
    "majority": "always the most frequent class",
    "client_majority": "each device its own most frequent class",
}
"""Figures of `result.json` that an accuracy is compared with, and their words."""


def number(value: Any) -> float | None:
    """A number of a sane size; None for anything else, because what a client reports can be anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e12:
        return None
    return value


def deepest(by_exit: Mapping[str, Mapping[str, float]] | None) -> Mapping[str, float]:
    return by_exit[max(by_exit, key=int)] if by_exit else {}


def best_exit(by_exit: Mapping[str, Mapping[str, float]] | None) -> int | None:
    """The depth of the exit with the best score, of equal ones the deepest; None without scores."""
    known = {int(depth): merit(scores) for depth, scores in (by_exit or {}).items()}
    scored = {depth: value for depth, value in known.items() if value is not None}
    return max(scored, key=lambda depth: (scored[depth], depth), default=None)


def score_name(scores: Mapping[str, float]) -> str:
    """The score that decides: a language model's perplexity, everybody else's top-1."""
    return "perplexity" if "perplexity" in scores else "top1"


def merit(scores: Mapping[str, float]) -> float | None:
    """Larger is better."""
    score = scores.get(score_name(scores))
    return -score if score is not None and score_name(scores) == "perplexity" else score


def likelihood_figures(
    test: Mapping[str, Mapping[str, float]],
    top: Mapping[str, float],
    chosen: Mapping[str, float],
    client_mean: Callable[[str], float | None],
) -> dict[str, Any]:
    """Further figures in the result of a language model; `top` and `chosen` are its deepest exit's, on
    test and validation samples."""
    if score_name(top) != "perplexity":
        return {}
    # The clients' perplexity is that of their mean loss, as it would be for all their texts together.
    loss = client_mean("loss")
    clients = {"loss": loss, "perplexity": None if loss is None else perplexity(loss)}
    if "answers" in top:
        clients["answers"] = client_mean("answers")
    return {
        **{name: top[name] for name in LIKELIHOOD if name in top},
        **{f"validation_{name}": chosen[name] for name in LIKELIHOOD if name in chosen},
        **{f"client_{name}": value for name, value in clients.items()},
        "exits_perplexity": {depth: scores["perplexity"] for depth, scores in test.items()},
    }


def trains(event: Merged) -> bool:
    """Whether the update changed weights; a task that only reports sums of features has neither blocks nor a loss."""
    return event.window[1] > event.window[0] or "loss" in event.report


def gain_figures(base: Mapping[str, float], top: Mapping[str, float], samples: int | None) -> dict[str, Any]:
    """A run's gain over its start: of `top1` with half its 95 % interval, as if the two were scored on different
    samples; they are scored on the same ones, so that the true interval is smaller.

    >>> gain_figures({"top1": 0.877}, {"top1": 0.883}, 4500)
    {'gain': {'score': 'top1', 'value': 0.006, 'interval': 0.0134}}
    """
    name = score_name(top)
    if base.get(name) is None or top.get(name) is None:
        return {}
    gain: dict[str, Any] = {"score": name, "value": round(top[name] - base[name], 6)}
    if name == "top1" and samples:
        variance = sum(share * (1 - share) for share in (base[name], top[name])) / samples
        gain["interval"] = round(1.96 * math.sqrt(variance), 4)
    return {"gain": gain}


@dataclass
class DeviceFigures:
    rate: float | None = None
    samples: int | None = None
    batch: int | None = None
    memory: int | None = None
    flops: float | None = None
    plan: str | None = None
    """Its training in words, and ..."""
    why: str | None = None

    tasks: int = 0
    updates: int = 0
    """Merged."""
    refused: int = 0
    failed: int = 0
    doubted: int = 0
    """Updates that did not count in full (`robust.suspicion`)."""
    lost: int = 0
    """Tasks it had in hand when it restarted or left."""
    bytes_up: int = 0
    bytes_down: int = 0
    staleness: int = 0
    """τ of its merged updates, added up."""
    predicted: int | None = None
    """Bytes of its largest task, by the ledger."""
    measured: int | None = None
    """Largest peak measured on the device."""
    link: tuple[float, float] | None = None
    """Bytes a second that its link carried lately, down and up, as it measured them."""

    here: bool = False
    given: float | None = None
    """When it got its last task, done or not; None if it is gone."""
    task: str | None = None
    """In hand."""
    version: int = 0
    """That it was cut from."""
    since: float = 0.0
    """When the task in hand was given, or the round began."""
    spells: list[float] = field(default_factory=list)
    """Seconds at work in this round, task by task."""
    busy: float = 0.0
    """Seconds at work until the end of the last round."""

    def rest(self, now: float) -> None:
        """Its task is over, whichever way."""
        if self.task is not None:
            self.spells.append(max(0.0, now - self.since))
            self.task = None

    def worked(self, now: float) -> float:
        """Seconds at work in this round."""
        going_on = [max(0.0, now - self.since)] if self.task is not None else []
        return math.fsum(self.spells + going_on)


@dataclass(frozen=True)
class RoundFigures:
    event: Aggregated
    ru: float | None
    """Busy seconds of those present, against as many as the busiest had; None if nobody was busy."""
    loss: float | None
    """Mean over its updates, as the devices reported it."""
    mask_loss: float | None
    staleness: float | None
    """Mean τ of its updates."""
    client_top1: float | None
    """Mean of the clients' own submodels as known then."""
    reports: Mapping[str, Mapping[str, Any]]
    """By client; its last one if it reported twice."""


MOST_KINDS = 24
"""Beyond this number, devices that train the same share of the model are of one kind."""

_NUMBER = re.compile(r"[-_ .#]?\d+$")


def tiers(rates: Mapping[str, float | None]) -> dict[str, list[str]]:
    """Kind → its devices, both in the order of the fleet. Names that differ in their number alone are of one kind.

    `rates` has R of each device by name.

    >>> tiers({"pi-1": 0.25, "orin-1": 0.5, "pi-2": 0.25})
    {'pi': ['pi-1', 'pi-2'], 'orin': ['orin-1']}
    """
    named = _grouped({name: _NUMBER.sub("", name) or name for name in rates})
    if len(named) <= MOST_KINDS:
        return named
    by_rate = _grouped({name: "R not known" if rate is None else f"R {rate:.3g}" for name, rate in rates.items()})
    return by_rate if len(by_rate) <= MOST_KINDS else {"all": list(rates)}


def _grouped(kinds: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        found.setdefault(kind, []).append(name)
    return found

"""Did it help? Where a run began, what it gained, what it could have reached, at what price: a sentence each, for the
terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cos2p.terminal.formatting import over_budget_text, percent, without_training
from cos2p.units import format_bytes

WHOLE_MODEL = ("fedavg", "fedasync", "fedbuff")
"""Methods whose devices train all of it; nothing larger is left to compare with."""

ALL_RIGHT = 0.995

HELP = (
    'try a lower training.lr (or "auto"), more updates, or more of the model on each device; '
    "docs/howto/accuracy.md has a list"
)


def verdict(result: Mapping[str, Any]) -> dict[str, str]:
    """`headline`, `outcome`, `warning`, `reference` and `memory` of a run, from the figures of `result.json`, as far as
    known."""
    found = {
        "headline": headline(result),
        "outcome": outcome_text(result),
        "warning": _warning(result),
        "reference": _reference(result),
        "memory": _memory(result),
    }
    return {name: words for name, words in found.items() if words}


def headline(result: Mapping[str, Any]) -> str:
    """Did it work, in a few words.

    >>> headline({"top1": 0.883, "gain": {"score": "top1", "value": 0.052, "interval": 0.0134}})
    'Training helped: +5.2 points'
    >>> headline({"top1": 0.631, "majority": 0.2})
    'It learned: top-1 63.1 %, the most frequent class alone 20.0 %'
    """
    if result.get("gain") is None:
        top1, least = result.get("top1"), result.get("majority") or result.get("chance")
        if top1 is None or least is None or result.get("perplexity") is not None:
            return ""
        if top1 <= least:
            return "It learned nothing: always naming the most frequent class is as good"
        return f"It learned: top-1 {percent(top1)}, the most frequent class alone {percent(least)}"
    if not (sign := _sign(result["gain"])):
        return (
            "Right from the start, nothing left to gain" if _was_right(result) else "No gain that the test samples show"
        )
    if result["gain"]["score"] == "perplexity":
        change = f"perplexity {result['base']['perplexity']:.4g} → {result['perplexity']:.4g}"
    else:
        change = f"{100 * result['gain']['value']:+.1f} points".replace("-", "−")
    return f"Training {'helped' if sign > 0 else 'did harm'}: {change}"


def _sign(gain: Mapping[str, Any]) -> int:
    """Whether the end is better (1) or worse (−1) than the start by more than the interval."""
    value, within = _better(gain), float(gain.get("interval", 0.0))
    return int(value > within) - int(value < -within)


def _better(gain: Mapping[str, Any]) -> float:
    """By how much the end is better than the start."""
    return float(-gain["value"] if gain["score"] == "perplexity" else gain["value"])


def _was_right(result: Mapping[str, Any]) -> bool:
    """Whether fewer than one test sample in two hundred was wrong before anything trained."""
    return float((result.get("base") or {}).get("top1", 0.0)) >= ALL_RIGHT


def outcome_text(result: Mapping[str, Any]) -> str:
    """
    >>> gain = {"score": "top1", "value": 0.006, "interval": 0.0134}
    >>> outcome_text({"top1": 0.883, "base": {"top1": 0.877}, "gain": gain})
    'head in closed form 87.7 % → 88.3 % after training (+0.6 ± 1.3 points)'
    >>> outcome_text({"top1": 0.6, "perplexity": 41.2, "base": {"perplexity": 97.31}, "gain": {"score": "perplexity"}})
    'perplexity 97.31 before training → 41.2'
    >>> outcome_text({"top1": 0.631, "chance": 0.1})
    'top-1 63.1 % (chance 10.0 %)'
    """
    base, gain = result.get("base") or {}, result.get("gain")
    if gain and gain["score"] == "perplexity":
        return f"perplexity {base['perplexity']:.4g} before training → {result['perplexity']:.4g}"
    if gain:
        within = f" ± {100 * gain['interval']:.1f}" if gain.get("interval") is not None else ""
        points = f"{100 * gain['value']:+.1f}".replace("-", "−")
        return (
            f"head in closed form {percent(base['top1'])} → {percent(result['top1'])} after training "
            f"({points}{within} points)"
        )
    if result.get("perplexity") is not None:
        return f"perplexity {result['perplexity']:.4g}"
    if result.get("top1") is None:
        return ""
    return f"top-1 {percent(result['top1'])}{without_training(result.get('chance'), result.get('majority'))}"


def _warning(result: Mapping[str, Any]) -> str:
    gain = result.get("gain")
    if gain is None or (sign := _sign(gain)) > 0:
        return ""
    if sign < 0:
        return f"the end is below the start: training did harm; {HELP}"
    if not _was_right(result) and _better(gain) <= 0:
        return f"the test samples are too few to show a gain: start and end differ by less than the interval; {HELP}"
    return ""


def _reference(result: Mapping[str, Any]) -> str:
    """The memory that the whole model would take: the bound that a run on small devices is compared with."""
    full = result.get("full_memory")
    memories = sorted(device["memory"] for device in result["devices"].values() if device.get("memory"))
    if full is None or not memories or result.get("method") in WHOLE_MODEL:
        return ""
    compare = "cos2p compare with --methods fedavg runs it"
    if full <= memories[0]:
        return f"training the whole model takes {format_bytes(full)} and fits every device; it was not run ({compare})"
    able = sum(memory >= full for memory in memories)
    return (
        f"training the whole model takes {format_bytes(full)}, which {able or 'none'} of {len(memories)} devices have; "
        f"it was not run ({compare}, over the budget)"
    )


def _memory(result: Mapping[str, Any]) -> str:
    """The memory of the device that comes nearest to its budget."""
    if result.get("over_budget"):
        return over_budget_text(result["over_budget"])
    tasks = [
        (device["peak_memory"], device["memory"])
        for device in result["devices"].values()
        if device.get("peak_memory") and device.get("memory")
    ]
    if not tasks:
        return ""
    needs, has = max(tasks, key=lambda task: task[0] / task[1])
    return f"{format_bytes(needs)} of {format_bytes(has)}, on the device that comes nearest to its budget"

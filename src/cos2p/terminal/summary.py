"""The outcome of a run, for a terminal: the figures of `result.json` in two small tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cos2p.terminal.formatting import (
    count,
    duration,
    epsilon_text,
    percent,
    printable,
    without_training,
)
from cos2p.terminal.verdict import verdict
from cos2p.tracking.figure_parts import tiers
from cos2p.units import format_bytes

DEVICES = 20
"""Rows of the table of devices; a larger fleet is shown by its kinds, and result.json has each device."""

_FILES = {
    "result.json": "the figures",
    "events.jsonl": "what happened",
    "recipe.toml": "the recipe as used",
    "model": "the model, as a Hugging Face folder",
    "weights.safetensors": "the weights with all exits",
    "checkpoint.safetensors": "the last state",
}


def summary(result: Mapping[str, Any], folder: str | Path) -> RenderableType:
    """Server, clients, fleet and files of a finished run."""
    headline = Text(_headline(result), style="bold")
    return Group(headline, _figures(result), _devices(result), _files(Path(folder)))


def _headline(result: Mapping[str, Any]) -> str:
    wall = f", {duration(result['wall_seconds'])} on this machine" if result.get("wall_seconds") is not None else ""
    return (
        f"{result['title']} on {result['recipe']}, seed {result['seed']}: {count(result['rounds'], 'round')}, "
        f"{count(result['updates'], 'update')}{wall}"
    )


def _figures(result: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    found = verdict(result)
    for name, words in (
        ("server", _scores(result, "", without_training(result.get("chance"), result.get("majority")))),
        ("before training", _scores({"top5": None, **result["base"]}, "") if result.get("base") else ""),
        ("gain", found["outcome"] if result.get("gain") else ""),
        ("warning", found.get("warning", "")),
        ("reference", found.get("reference", "")),
        ("validation", _scores(result, "validation_")),
        ("better exit", better_exit_text(result)),
        ("clients' own", _scores(result, "client_", without_training(None, result.get("client_majority")))),
        ("fleet", f"RU {percent(result['ru'])} · busy {percent(result['busy'])} of the time"),
        ("virtual time", duration(result["virtual_seconds"])),
        ("memory", found.get("memory", "")),
        ("sent", f"{format_bytes(result['bytes_down'])} down · {format_bytes(result['bytes_up'])} up"),
        ("coverage", coverage_text(result["n_star"])),
        ("staleness τ", staleness_text(result["staleness"])),
        ("privacy", epsilon_text(result.get("privacy"))),
        ("refused", count(result["refused"], "update") if result["refused"] else ""),
        ("ended by", _ending(result.get("finished"))),
    ):
        if words:
            table.add_row(Text(name, style="dim"), Text(words))
    return table


def _scores(result: Mapping[str, Any], prefix: str, worth: str = "") -> str:
    if result.get(f"{prefix}top1") is None:
        return ""
    numbers = {"perplexity": "perplexity", "loss": "loss"}  # of language models
    shares = {  # no top-5 of a few classes
        "generated": "generated answers right",
        "likeliest": "likeliest choice right",
        **({} if f"{prefix}generated" in result else {"answers": "right answers"}),
        "top1": "top-1",
        "top5": "top-5",
        "f1": "F1",
    }
    found = [
        f"{words} {value:.4g}" for name, words in numbers.items() if (value := result.get(prefix + name)) is not None
    ]
    found += [
        f"{words} {percent(value)}"
        for name, words in shares.items()
        if (value := result.get(prefix + name)) is not None
    ]
    return " · ".join(found) + worth


def better_exit_text(result: Mapping[str, Any]) -> str:
    """A shallower exit that is better than the deepest; empty if that one is the best.

    >>> better_exit_text({"exits": {"6": 0.783, "8": 0.738}, "best_exit": 6})
    'exit 6 of 8: top-1 78.3 %, the deepest has 73.8 %; cos2p export --exit best takes it'

    The best is chosen on validation samples; where test samples say otherwise there is nothing to recommend.

    >>> better_exit_text({"exits": {"1": 0.889, "8": 0.914}, "best_exit": 1})
    ''
    """
    perplexities = result.get("exits_perplexity")
    exits, best = perplexities or result.get("exits") or {}, result.get("best_exit")
    deepest = max(exits, key=int, default=None)
    if best is None or deepest is None or str(best) == deepest or str(best) not in exits:
        return ""
    here, there = exits[str(best)], exits[deepest]
    if (here >= there) if perplexities else (here <= there):
        return ""
    scores = f"top-1 {percent(here)}, the deepest has {percent(there)}"
    if perplexities:
        scores = f"perplexity {here:.4g}, the deepest has {there:.4g}"
    return f"exit {best} of {deepest}: {scores}; cos2p export --exit best takes it"


def coverage_text(n_star: int | None) -> str:
    """N* with what it means.

    >>> coverage_text(2)
    'N* 2: every head and unit was in at least 2 updates of every round'
    """
    if n_star is None:
        return "N* –: no round trained any block"
    if n_star == 0:
        return "N* 0: in some round some head or unit was in no update and stood still"
    return f"N* {n_star}: every head and unit was in at least {count(n_star, 'update')} of every round"


def _ending(reason: Any) -> str:
    """Only an end that the user did not plan is worth a line."""
    return "" if reason in (None, "rounds", "max_updates") else printable(reason)


def staleness_text(histogram: Mapping[str, int]) -> str:
    """The whole histogram in one line, every bar with its count.

    >>> staleness_text({"0": 120, "1": 30})
    '0 █ 120 · 1 ▂ 30'
    """
    most = max(histogram.values(), default=1)
    bars = "▁▂▃▄▅▆▇█"
    return " · ".join(
        f"{tau} {bars[(8 * number - 1) // most]} {number}"
        for tau, number in sorted(histogram.items(), key=lambda entry: int(entry[0]))
    )


def _devices(result: Mapping[str, Any]) -> Table:
    """A line for each device, of a large fleet for each kind."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    devices: Mapping[str, Mapping[str, Any]] = result["devices"]
    large = len(devices) > DEVICES
    table.add_column("kind" if large else "device", no_wrap=True)
    for name in (*(("devices",) if large else ()), "R", "samples", "updates", "busy", "down", "up", "own top-1"):
        table.add_column(name, justify="right", no_wrap=True)
    kinds = tiers({name: device["rate"] for name, device in devices.items()}) if large else {n: [n] for n in devices}
    for kind, names in kinds.items():
        members = [devices[name] for name in names]
        counted = (f"{len(members):,}",) if large else ()
        table.add_row(Text(printable(kind)), *counted, *_row(members, result["virtual_seconds"] or 1.0))
    return table


def _row(devices: Sequence[Mapping[str, Any]], seconds: float) -> list[str]:
    """The figures of one device; sums of several, and the mean of shares."""
    rates = sorted({device["rate"] for device in devices if device["rate"] is not None})
    scored = [device for device in devices if device["top1"] is not None]
    return [
        " to ".join(f"{rate:g}" for rate in dict.fromkeys((*rates[:1], *rates[-1:]))),
        f"{_total(devices, 'samples'):,}",
        f"{_total(devices, 'updates'):,}",
        percent(sum(device["busy_seconds"] for device in devices) / len(devices) / seconds, 0),
        format_bytes(_total(devices, "bytes_down")),
        format_bytes(_total(devices, "bytes_up")),
        percent(sum(device["top1"] for device in scored) / len(scored) if scored else None),
    ]


def _total(devices: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(device[name] or 0 for device in devices)


def _files(folder: Path) -> Text:
    there = [f"{name} ({what})" for name, what in _FILES.items() if (folder / name).exists()]
    return Text(f"in {shlex.quote(str(folder))}: " + ", ".join(there) if there else f"in {shlex.quote(str(folder))}")

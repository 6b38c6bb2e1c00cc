"""The facts of a run in words: recipe, data, split, model, devices, end, and what its accuracies are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cos2p.terminal.following import plans_text
from cos2p.terminal.formatting import count, end_text, form_text, over_budget_text, percent, rate_text
from cos2p.tracking.event_kinds import Started
from cos2p.tracking.figure_parts import BASELINES
from cos2p.tracking.figures import RunFigures

GROUPS = 6
"""Kinds of devices that are named one by one."""


def about(recipe: Mapping[str, Any], figures: RunFigures, shape: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """(what, words), without what is not known. `recipe` is the run's recipe.toml, or empty."""
    started = figures.started
    facts = {
        "Recipe": _joined(": ", recipe.get("name") or (started.recipe if started else ""), recipe.get("description")),
        "Method": _joined(", ", _method(recipe.get("method", {}), started), form_text(recipe.get("method", {}))),
        "Head": _head(recipe.get("method", {})),
        "Data": _data(recipe.get("data", {}), started),
        "Split over the devices": _split(recipe.get("partition", {})),
        "Model": _model(recipe.get("model", {}), shape),
        "Devices": _devices(recipe.get("fleet", {}), started),
        "Devices train": "; ".join(plans_text(started)) if started else "",
        "Memory": over_budget_text(figures.over_budget),
        "Learning rate": rate_text(figures.rated) if figures.rated else "",
        "Ends": end_text(recipe.get("schedule", {})),
        "To compare accuracies with": _worth(started),
        "Note": "; ".join((started.notes if started else None) or ()),
    }
    return [(name, words) for name, words in facts.items() if words]


def _joined(between: str, *parts: object) -> str:
    return between.join(str(part) for part in parts if part)


def _method(table: Mapping[str, Any], started: Started | None) -> str:
    return started.title or started.method if started else str(table.get("name", ""))


def _head(table: Mapping[str, Any]) -> str:
    heads = table.get("exits", table)
    start, finish = heads.get("start", "fresh"), heads.get("finish", "trained")
    if start == "fresh":
        return ""
    again = " and after the last round; in between features move ahead of it, and accuracy may dip"
    return f"in closed form ({start}) before the first{again if finish != 'trained' else ' round'}"


def _data(table: Mapping[str, Any], started: Started | None) -> str:
    known = (started.data or {}) if started else {}
    sizes = [f"{known[part]:,} {part}" for part in ("train", "validation", "test") if known.get(part)]
    classes = count(int(known["classes"]), "class").replace("classs", "classes") if known.get("classes") else ""
    return _joined(" · ", _joined(" ", table.get("source"), table.get("path")), _joined(", ", *sizes), classes)


def _split(table: Mapping[str, Any]) -> str:
    kind = str(table.get("kind", ""))
    return f"{kind}, alpha {table['alpha']:g}" if kind == "dirichlet" and "alpha" in table else kind


def _model(table: Mapping[str, Any], shape: Mapping[str, Any] | None) -> str:
    name = table.get("pretrained") or table.get("size")
    if shape is None:
        return str(name or "")
    size = f"{shape['parameters'] / 1e6:.3g} M parameters with all exits" if shape["parameters"] else ""
    blocks = f"{count(shape['depth'], 'block')} of width {shape['dim']}"
    return _joined(" · ", name, blocks, f"{shape['heads']} heads and {shape['units']:,} units each", size)


def _devices(table: Mapping[str, Any], started: Started | None) -> str:
    groups = [group for group in table.get("devices", ()) if isinstance(group, Mapping)]
    words = [_group(group) for group in groups[:GROUPS]]
    if len(groups) > GROUPS:
        words.append(f"{len(groups) - GROUPS} more kinds")
    total = len(started.devices) if started else sum(int(group.get("count", 1)) for group in groups)
    return _joined(": ", count(total, "device") if total else "", _joined(", ", *words))


def _group(group: Mapping[str, Any]) -> str:
    rate = f" (R {group['rate']:.4g})" if isinstance(group.get("rate"), int | float) else ""
    return f"{int(group.get('count', 1)):,} × {group.get('name') or group.get('preset', 'laptop')}{rate}"


def _worth(started: Started | None) -> str:
    known = (started.data or {}) if started else {}
    return _joined(" · ", *(f"{words} {percent(known[key])}" for key, words in BASELINES.items() if known.get(key)))

"""The way of a weight in CONTRIBUTING: every function that it names is there, and it stays short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def way() -> list[tuple[str, str]]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = text.partition("<!-- way -->")[2].partition("<!-- /way -->")[0]
    return re.findall(r"`([\w/]+\.py): ([\w.]+)`", listed)


def functions(file: str) -> set[str]:
    found = set()
    for node in ast.parse((ROOT / "src/cos2p" / file).read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        start = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {start + entry.name for entry in inside if isinstance(entry, ast.FunctionDef)}
    return found


def test_every_function_on_the_way_exists() -> None:
    steps = way()
    assert steps[0] == ("cli/run.py", "run")
    assert not [(file, name) for file, name in steps if name not in functions(file)]


def test_the_way_stays_short() -> None:
    steps = set(way())
    assert 40 < len(steps) <= 60
    assert len({file for file, _ in steps}) <= 20

"""cos2p_rivals stands on cos2p's public names, as a user's method does, and cos2p does without it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import cos2p_rivals
from cos2p.methods import Method, methods
from tools.layers import SOURCE

RIVALS = Path(cos2p_rivals.__file__).parent
PUBLIC = ("cos2p", "cos2p.methods")
"""Modules whose `__all__` a method may import."""


def imported(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Where, from which module, which name (empty: the module itself)."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            where = f"{file.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                yield from ((where, alias.name, "") for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((where, node.module or ".", alias.name) for alias in node.names)


def not_public(found: Iterator[tuple[str, str, str]]) -> list[str]:
    ours = [entry for entry in found if entry[1].split(".")[0] in ("cos2p", "")]
    known = {module: set(import_module(module).__all__) for module in PUBLIC}
    return [f"{where}: {module} {name}" for where, module, name in ours if name not in known.get(module, ())]


def test_rivals_import_public_names_alone() -> None:
    assert not_public(imported(RIVALS)) == []


def test_an_import_of_something_else_would_be_found(tmp_path: Path) -> None:
    lines = ["import cos2p.methods", "from cos2p.methods.base import Method", "from cos2p.methods import registry"]
    lines += ["from . import x", "from cos2p import ModelConfig", "from cos2p.methods import Method", "import torch"]
    (tmp_path / "mine.py").write_text("\n".join(lines), encoding="utf-8")
    assert [entry.split(":")[1] for entry in not_public(imported(tmp_path))] == ["1", "2", "3", "4"]


def test_cos2p_imports_no_rival() -> None:
    assert [entry for entry in imported(SOURCE) if entry[1].split(".")[0] == "cos2p_rivals"] == []


def test_every_rival_is_registered_by_the_entry_points_of_users_methods() -> None:
    registered = {e.name for e in entry_points(group="cos2p.methods") if e.value.startswith("cos2p_rivals.")}
    assert registered == {name for name, kind in methods().items() if kind.__module__.startswith("cos2p_rivals.")}
    written = set()
    for file in RIVALS.rglob("*.py"):
        module = ".".join(file.relative_to(RIVALS.parent).with_suffix("").parts)
        for value in vars(import_module(module)).values():
            if isinstance(value, type) and issubclass(value, Method) and "name" in vars(value):
                written |= {value.name} if value.__module__ == module else set()
    assert registered == written, "pyproject.toml and the methods differ; or the package was not installed since"


@pytest.mark.parametrize("name", ["cos2p", "fedavg"])
def test_a_run_of_another_method_imports_no_rival(name: str, tmp_path: Path) -> None:
    code = f"""
import sys
from cos2p import Recipe, run
short = ["schedule.rounds=1", "data.train_samples=100", "training.epochs=1", "model.depth=2", "run.workers=1"]
run(Recipe.load("quickstart", short, {name!r}), {str(tmp_path / "run")!r})
print([name for name in sys.modules if name.startswith("cos2p_rivals")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"

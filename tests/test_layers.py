"""Rooms stand on floors: no cycle, nothing that reaches up, and a picture that is true."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.layers import FLOORS, ROOT, SOURCE, Import, contributing, imports, rooms, upward

FOUND = list(imports())


def test_every_room_has_a_floor() -> None:
    assert sorted(room for floor in FLOORS for room in floor) == rooms()


def test_no_import_goes_up_or_sideways() -> None:
    assert [str(entry) for entry in upward(FOUND)] == []


def test_an_upward_import_would_be_found() -> None:
    made_up = Import(SOURCE / "models" / "x.py", 1, room="models", source="methods", inside=True)
    sideways = Import(SOURCE / "fleet" / "x.py", 1, room="fleet", source="terminal", inside=False)
    fine = Import(SOURCE / "methods" / "x.py", 1, room="methods", source="models", inside=False)
    assert upward([made_up, sideways, fine]) == [made_up, sideways]


def test_the_picture_in_contributing_is_of_today() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert contributing(FOUND) == text, "python -m tools.layers"


def test_an_import_inside_a_function_gives_its_reason() -> None:
    """Only start-up time is one; the line, or the one above it, says so in a comment."""
    silent = []
    for entry in (entry for entry in FOUND if entry.inside):
        lines = entry.file.read_text(encoding="utf-8").splitlines()
        near = lines[max(0, entry.line - 2) : entry.line]
        if not any("#" in line for line in near) and not _says_it_in_its_module(entry.file):
            silent.append(str(entry))
    assert silent == []


def _says_it_in_its_module(file: Path) -> bool:
    """The command line imports what a verb needs when it is called: said once, in its package."""
    return file.relative_to(SOURCE).parts[0] == "cli"


PACKAGES = sorted(path.parent for path in SOURCE.parent.rglob("__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE.parent)))
def test_every_package_says_what_lives_there(package: Path) -> None:
    said = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert said is not None
    assert len(said) > 40

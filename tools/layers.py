"""The floors of the house: which room may stand on which, read from every import.

python -m tools.layers            writes the picture into CONTRIBUTING.md
python -m tools.layers --check    says what is wrong, and ends with 1 if anything is

A room (a package or a module right below `cos2p`) imports from its own floor's rooms nothing, from lower floors what it
likes, from higher ones never. An import inside a function counts like any other: it hides a cycle, it does not undo it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "cos2p"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("api", "cli"),
    ("drafting",),
    ("view",),
    ("studies", "testing"),
    ("fleet", "inference", "terminal"),
    ("runtime",),
    ("server",),
    ("tracking",),
    ("recipe",),
    ("methods", "recipes"),
    ("memory",),
    ("aggregation", "devices"),
    ("training",),
    ("costs",),
    ("messages",),
    ("submodel",),
    ("models",),
    ("data", "numerics", "processes"),
    ("accelerator", "checksums", "extras", "older_python", "seeding", "settings", "strict_json", "units"),
    ("errors",),
)
"""From the roof to the ground."""

BEGIN, END = "<!-- layers -->", "<!-- /layers -->"


@dataclass(frozen=True)
class Import:
    """A line that takes something from another room."""

    file: Path
    line: int
    room: str
    source: str
    """The room it takes from."""
    inside: bool
    """In a function: not at the top of the file."""

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.room} imports {self.source}"


def room_of(module: str) -> str:
    """
    >>> room_of("cos2p.fleet.server.driver"), room_of("cos2p.units"), room_of("cos2p")
    ('fleet', 'units', '')
    """
    return module.split(".")[1] if "." in module else ""


def imports() -> Iterator[Import]:
    """Every import of one room from another. The package's own `__init__` and `__main__` are the front door."""
    for file in sorted(SOURCE.rglob("*.py")):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        if parts in (("__init__",), ("__main__",)):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        top = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            for module in _modules(node):
                source = room_of(module)
                if source and source != parts[0]:
                    yield Import(file, node.lineno, parts[0], source, id(node) not in top)  # type: ignore[attr-defined]


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.startswith("cos2p")]
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("cos2p"):
        return [node.module] if node.module != "cos2p" else [f"cos2p.{alias.name}" for alias in node.names]
    return []


def rooms() -> list[str]:
    found = {path.relative_to(SOURCE).with_suffix("").parts[0] for path in SOURCE.rglob("*.py")}
    return sorted(found - {"__init__", "__main__"})


def upward(found: list[Import]) -> list[Import]:
    """Imports that do not go down."""
    floor = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    named = [entry for entry in found if entry.source in floor]
    return [entry for entry in named if floor[entry.source] <= floor[entry.room]]


def picture(found: list[Import]) -> str:
    """A line for each room, roof first, with the rooms it stands on."""
    below: dict[str, set[str]] = {}
    for entry in found:
        below.setdefault(entry.room, set()).add(entry.source)
    order = [room for floor in FLOORS for room in floor]
    lines = []
    for number, floor in enumerate(FLOORS):
        for room in floor:
            stands_on = [other for other in order if other in below.get(room, set())]
            lines.append(f"{len(FLOORS) - number:>2}  {room:<12} {' '.join(stands_on)}".rstrip())
    return "\n".join(lines)


def contributing(found: list[Import]) -> str:
    """CONTRIBUTING.md with the picture of today."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n```\n{picture(found)}\n```\n\n{END}{after}"


def main() -> int:
    found = list(imports())
    path = ROOT / "CONTRIBUTING.md"
    if "--check" not in sys.argv:
        path.write_text(contributing(found), encoding="utf-8")
        return 0
    wrong = [f"{entry}, which is not below it" for entry in upward(found)]
    if contributing(found) != path.read_text(encoding="utf-8"):
        wrong.append("CONTRIBUTING.md: the picture is out of date; python -m tools.layers")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

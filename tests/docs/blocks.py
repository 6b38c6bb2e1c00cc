"""Code in Markdown: its blocks in order, with language and line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^(?P<mark>```+)(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=mark)\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    code: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"


def pages() -> list[Path]:
    """What a reader may copy from. Generated and recorded tables are pages too."""
    return [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


def is_record(page: Path) -> bool:
    """Pages of results: commands that gave the figures once, hours of them. They must still exist, no more."""
    return "results" in page.relative_to(REPOSITORY).parts


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["code"])
        for found in _FENCE.finditer(text)
    ]


def commands(block: Block) -> list[str]:
    """Command lines of a block: those after a `$ `, if there are any, else all; continued ones joined."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]

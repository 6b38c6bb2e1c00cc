"""Every shell and Python block of the documentation runs; what is only shown is at least a command that exists.

sh and python     run in the order of the page, in one folder and one Python namespace of the page's own
console           not run (too long, other machines): each `cos2p` command is parsed, each `make` target must exist
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cos2p.cli.app import app
from cos2p.tracking.events import event_line
from tests.docs.blocks import REPOSITORY, Block, blocks, commands, is_record, pages
from tests.events import event

RUNNABLE = ("sh", "python")
SHOWN = [b for p in pages() for b in blocks(p) if b.language == "console" or (is_record(p) and b.language == "sh")]
RUN = [p for p in pages() if not is_record(p) and any(b.language in RUNNABLE for b in blocks(p))]


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


FRONT = ("README.md",)
"""What is tried with every `make test`; the other pages are slow together."""


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=() if name(p) in FRONT else pytest.mark.slow, id=name(p)) for p in RUN]
)
def test_what_a_page_says_works(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    prepare(page, tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.language == "sh":
            shell(block)
        elif block.language == "python":
            code = "\n" * block.line + block.code  # so that a traceback names the page's own line
            with warnings.catch_warnings():
                warnings.simplefilter("default")  # other people's libraries may warn, as they do to a reader
                exec(compile(code, str(page), "exec"), namespace)


def prepare(page: Path, folder: Path) -> None:
    """What a page takes for granted."""
    if name(page) == "docs/reference/events.md":
        (folder / "runs" / "first").mkdir(parents=True)
        line = event_line(event("merged", 1.0, staleness=1))
        (folder / "runs" / "first" / "events.jsonl").write_text(line + "\n", encoding="ascii")


def shell(block: Block) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{block.place}\n{block.code}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("block", SHOWN, ids=lambda block: block.place)
def test_what_is_shown_exists(block: Block) -> None:
    for line in commands(block):
        for words in invocations(line):
            check(words, block.place)


def invocations(line: str) -> list[list[str]]:
    """The `cos2p` and `make` calls in a command line, as words.

    >>> invocations("COS2P_DATA=<folder with a/> cos2p run x --set a=1  # why")
    [['cos2p', 'run', 'x', '--set', 'a=1']]
    """
    tokens = shlex.shlex(re.sub(r"<[^>]*>", "placeholder", line), posix=True, punctuation_chars=";|&")
    tokens.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in tokens:
        if word in ("do", "until") or set(word) <= set(";|&"):
            found.append([])
        elif found[-1] or not re.match(r"\w+=", word):  # what stands before a command sets its environment
            found[-1].append(word)
    return [words for words in found if words and words[0] in ("cos2p", "make")]


def check(words: list[str], place: str) -> None:
    """The command and its options exist, and its values are of the right kind; nothing is run."""
    tool, *rest = words
    if tool == "make":
        known = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(rest) <= set(known), f"{place}: make {' '.join(rest)}"
        return
    command: Any = get_command(app)
    path = [tool]
    while hasattr(command, "commands"):
        while rest and rest[0] in ("-q", "-v", "--json", "--version", "--help"):
            path.append(rest.pop(0))
        if not rest:
            return
        assert rest[0] in command.commands, f"{place}: there is no command {' '.join([*path, rest[0]])}"
        path.append(rest[0])
        command = command.commands[rest.pop(0)]
    try:
        command.make_context(" ".join(path), rest)
    except Exception as error:
        pytest.fail(f"{place}: {shlex.join(words)}: {getattr(error, 'message', error)}")


@pytest.mark.parametrize(
    "line", ["cos2p runn quickstart", "cos2p run quickstart --sett a=1", "cos2p profile a --memory", "make tests"]
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(invocations(line)[0], "here")


def test_inline_commands_exist() -> None:
    """`cos2p …` between backticks: verbs and options, as far as they are written out."""
    for page in pages():
        if page.name == "table.md":  # a record has the command as it was run, perhaps by an earlier release
            continue
        for words in re.findall(
            r"`(cos2p [a-z][^`…]*)`", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
        ):
            group: Any = get_command(app)
            parts = words.split()[1:]
            while parts and hasattr(group, "commands"):
                assert parts[0] in group.commands, f"{name(page)}: {words}"
                group = group.commands[parts.pop(0)]
            known = {flag for parameter in group.params for flag in parameter.opts} | {"--help"}
            options = {part.partition("=")[0] for part in parts if part.startswith("-")}
            assert options <= known, f"{name(page)}: {words}: {options - known}"

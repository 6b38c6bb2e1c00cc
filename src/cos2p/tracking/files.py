"""The run folder on disk: files that are whole or not there at all, and errors that say what to do."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cos2p import checksums
from cos2p.errors import RunError

MARKER = ".cos2p-run"
"""An empty file in every run folder. Only a folder that has it is ever emptied by `overwrite`."""

_TEMPORARY = ".cos2p-tmp"


def write_atomic(path: str | Path, data: bytes | memoryview) -> None:
    """Write a file so that after a crash at any moment it holds all of the old content or all of the new."""
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(data)


def write_noted(path: Path, data: bytes) -> None:
    """The same, with its checksum in the folder's list (see `checksums`)."""
    with explained(path):
        checksums.note(path, checksums.crc(data))
    write_atomic(path, data)


def write_json(path: Path, values: Mapping[str, Any], **layout: Any) -> None:
    """JSON, with its checksum. `layout` are options of `json.dumps`."""
    write_noted(path, (json.dumps(values, **layout) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; RunError if the file cannot be read, or is damaged."""
    with explained(path):
        return dict(json.loads(checksums.check(path).read_text(encoding="utf-8")))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to be filled inside the block, which then takes the place of `path` at once, safely on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY}")
    with explained(path):
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def prepare_folder(path: str | Path, overwrite: bool = False, resume: bool = False) -> Path:
    """A folder a run can write to, made if need be.

    A folder that already holds something is refused, unless `overwrite` (an earlier run is deleted; any
    other folder is left alone and refused) or `resume` (an earlier run is kept). To resume where nothing was
    written yet is to begin: the caller looks for a checkpoint and finds none.
    """
    folder = Path(path)
    if overwrite and resume:
        raise RunError(f"{folder}: --overwrite deletes the earlier run and --resume goes on with it; choose one")
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        content = list(folder.iterdir())
        is_run = (folder / MARKER).exists()
        if content and not is_run and (overwrite or resume):
            raise RunError(
                f"{folder} is not a run folder (it has files but no {MARKER}) and was left alone; "
                "choose another folder with --out"
            )
        if is_run:
            _refuse_in_use(folder)
        if is_run and not resume and not overwrite and not _holds_work(folder):
            overwrite = True  # a start that failed left nothing to lose
        if content and not overwrite and not resume:
            raise RunError(
                f"{folder} is not empty; go on with its run by --resume, replace it by --overwrite, "
                "or choose another folder with --out"
            )
        if overwrite:
            # The marker stays: interrupted half-way, the folder is still known as a run's, and whoever locks it locks
            # the same.
            _empty(folder, but=(MARKER,))
        if resume:
            for leftover in folder.rglob(f".*{_TEMPORARY}"):  # of writes that were killed half-way
                leftover.unlink(missing_ok=True)
        _probe(folder)
    return folder


FIGURES = (MARKER, checksums.MANIFEST, "recipe.toml", "events.jsonl", "result.json")
"""Files that tables and pages are made of; the rest of a run folder is models, and what a run needs to go on."""


def keep_figures(folder: Path) -> None:
    """Delete all of a finished run but its figures. A folder that is not a run's, or of one that is not over, is left
    alone."""
    with explained(folder):
        if all((folder / name).exists() for name in (MARKER, "result.json")):
            _empty(folder, but=FIGURES)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Others are kept out of the run folder while the block runs, or until this process dies."""
    with (folder / MARKER).open("a") as marker:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _refuse_in_use(folder: Path) -> None:
    for name in (MARKER, "events.jsonl"):
        try:
            with (folder / name).open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{folder} is in use by a run that goes on; let it end, stop it (Ctrl-C), or choose another folder "
                "with --out"
            ) from None
        except OSError:
            continue  # no such file, or a file system without locks


def _holds_work(folder: Path) -> bool:
    """Whether anything was learned there: a result, a checkpoint, or an update in the log."""
    if any((folder / name).exists() for name in ("result.json", "checkpoint.safetensors")):
        return True
    log = folder / "events.jsonl"
    known = {MARKER, checksums.MANIFEST, "recipe.toml", STOP_NOTE, log.name}
    known |= {"client_cache", "devices", "tensorboard", "mlflow.json"}
    foreign = [child for child in folder.iterdir() if child.name not in known and not child.name.startswith(".")]
    return bool(foreign) or (log.exists() and b'"kind":"merged"' in log.read_bytes())


@contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Turn the operating system's errors inside the block into a RunError: one line, the path, a way out."""
    try:
        yield
    except OSError as error:
        reason, way_out = _EXPLANATIONS.get(error.errno or 0, (error.strerror or str(error), "check the folder"))
        raise RunError(f"{path}: {reason}; {way_out}") from error
    except RecursionError:
        raise RunError(f"{path} is nested too deep to be read") from None


_FULL = ("the disk is full", "free some space, then go on with --resume")
_FORBIDDEN = ("writing is not permitted", "change its permissions or choose another folder with --out")
_NOT_A_FOLDER = ("a part of this path is a file, not a folder", "choose another folder with --out")
_EXPLANATIONS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: ("the disk quota is used up", _FULL[1]),
    errno.EFBIG: ("the file is larger than this system allows", "raise the limit (ulimit -f), then --resume"),
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: ("the file system is read-only", "choose another folder with --out"),
    errno.EEXIST: _NOT_A_FOLDER,
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: ("this is a folder, not a file", "choose another path"),
    errno.ENOENT: ("no such file or folder", "check the path"),
    errno.ENAMETOOLONG: ("the path is too long", "choose a shorter one with --out"),
}


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; some file systems cannot, and say so with EINVAL."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _empty(folder: Path, but: Collection[str]) -> None:
    for child in folder.iterdir():
        if child.name in but:
            continue
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def _probe(folder: Path) -> None:
    """Find out now, not after hours of training, that the folder cannot be written to."""
    marker = folder / MARKER
    marker.touch()
    probe = folder / f".probe{_TEMPORARY}"
    probe.write_bytes(b"?")
    probe.unlink()


# ---------------------------------------------------------------- stopped.json

STOP_NOTE = "stopped.json"
REASON_CHARACTERS = 2000


@dataclass(frozen=True)
class StopNote:
    """Why a run stopped before it was over. The page shows it, the next start removes it."""

    failed: bool
    """False if the user stopped it."""
    reason: str


def write_stop_note(folder: Path, note: StopNote) -> None:
    """Write it if that is possible: a full disk may be the very reason."""
    with suppress(Exception):
        write_json(folder / STOP_NOTE, {"failed": note.failed, "reason": note.reason[:REASON_CHARACTERS]})


def read_stop_note(folder: Path) -> StopNote | None:
    try:
        found = read_json(folder / STOP_NOTE)
        return StopNote(bool(found["failed"]), str(found["reason"]))
    except (RunError, ValueError, LookupError, TypeError):
        return None


def remove_stop_note(folder: Path) -> None:
    (folder / STOP_NOTE).unlink(missing_ok=True)

"""Where files are: data, and the cache.

Data: `~` and `${VAR}` are expanded, a path is looked up in the current folder, then in $COS2P_DATA.

A process that reads for a stranger, as a device of a fleet does for whoever wrote the recipe, is confined to one
folder (`confined_to`): nothing is expanded there, and no name leads out of it.

The cache: small files in $XDG_CACHE_HOME/cos2p, or ~/.cache/cos2p. A file is named after everything its content depends
on, and is whole or not there: processes that write the same one at the same time write the same bytes. A cache that
cannot be written costs time at the next start and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cos2p.errors import DataError, OwnerRefused

DATA_FOLDER_VARIABLE = "COS2P_DATA"
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_PATTERN = re.compile(r"[*?\[]")


LEADS_OUT = "a path of the recipe leads out of the folder this device has opened"

_root: Path | None = None
"""The one place this process may read data from; None: anywhere. Of the process, not of a thread: whoever decodes
images in a thread is confined too."""


@contextmanager
def confined_to(root: str | Path) -> Iterator[None]:
    """Inside, data are read below `root` (a folder, or a single file) alone."""
    global _root
    before, _root = _root, Path(root).resolve()
    try:
        yield
    finally:
        _root = before


def is_confined() -> bool:
    return _root is not None


def is_open(path: Path) -> bool:
    """Whether this process may read there, wherever links on the way lead."""
    return _root is None or path.resolve().is_relative_to(_root)


def opened(path: Path) -> Path:
    """The path, if this process may read there; OwnerRefused otherwise."""
    if not is_open(path):
        message = f"{path} leads out of {_root}, the only folder this device has opened"
        raise OwnerRefused(message, public=LEADS_OUT)
    return path


def find(path: str, name: str = "") -> Path:
    """The existing file or folder `path`/`name`, or a `DataError` that says where it was looked for."""
    wanted = _joined(path, name)
    for place in places(wanted):
        if place.exists():
            return opened(place)
    raise _not_found(wanted)


def find_all(path: str, name: str) -> list[Path]:
    """Like `find`, but `name` may be a pattern such as `train-*.parquet`; sorted, never empty."""
    wanted = _joined(path, name)
    if not _PATTERN.search(wanted.name):
        return [find(path, name)]
    for place in places(wanted):
        matches = sorted(place.parent.glob(place.name))
        if matches:
            return [opened(match) for match in matches]
    raise _not_found(wanted)


def listed(files: list[Path]) -> str:
    """For messages."""
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def checkpoint_folder(name: str) -> str:
    """The folder of a pretrained model, looked up like data; the name as it is, perhaps a hub's, if there is none.

    A confined process fetches nothing and follows no path of the recipe: the folder of that name in its own one, or its
    own one, has what it needs of a checkpoint, the tokenizer."""
    if _root is not None:
        own = opened(_root / Path(name).name)
        return str(own if own.is_dir() else _root)
    expanded = _expand(name)
    return next((str(place) for place in places(Path(expanded)) if place.is_dir()), expanded)


def _joined(path: str, name: str) -> Path:
    if _root is not None:
        return _below_root(_root, path, name)
    return Path(_expand(path)) / _expand(name)


def _below_root(root: Path, path: str, name: str) -> Path:
    """The place that a confined process makes of a name: itself, below the root; asked before anything is looked up."""
    for text in (path, name):
        if "$" in text or text.startswith("~") or ".." in Path(text).parts:
            raise OwnerRefused(
                f"{text!r} is not followed: a recipe names files below {root}, the folder this device has opened, "
                "without variables, ~ or ..",
                public=LEADS_OUT,
            )
    return opened(root / path / name)


def _expand(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        variable = match[1] or match[2]
        if variable not in os.environ:
            raise DataError(f"{text!r} names the environment variable {variable}, which is not set")
        return os.environ[variable]

    expanded = _VARIABLE.sub(value, text)
    return str(Path(expanded).expanduser()) if expanded.startswith("~") else expanded


def places(wanted: Path) -> list[Path]:
    """Where a path is looked for: as it is, and below $COS2P_DATA."""
    data_folder = "" if _root is not None else os.environ.get(DATA_FOLDER_VARIABLE, "")
    if wanted.is_absolute() or not data_folder:
        return [wanted]
    return [wanted, Path(data_folder).expanduser() / wanted]


def _not_found(wanted: Path) -> DataError:
    looked = " or ".join(str(place.absolute()) for place in places(wanted))
    if _root is not None:
        advice = f"put it there: this device reads nothing but {_root}"
    elif wanted.is_absolute():
        advice = "check data.path"
    elif os.environ.get(DATA_FOLDER_VARIABLE):
        advice = f"check data.path and the environment variable {DATA_FOLDER_VARIABLE}"
    else:
        advice = f"set the environment variable {DATA_FOLDER_VARIABLE} to the folder that holds your data sets"
    return DataError(f"no data at {looked}; {advice}")


# ---------------------------------------------------------------- the cache


def cache_folder(kind: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The standard says that a relative path there is to be ignored.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "cos2p" / kind


def key_of(*parts: str | bytes) -> str:
    """A name for what depends on exactly these parts."""
    digest = hashlib.blake2b(digest_size=20)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def recall(kind: str, name: str) -> bytes | None:
    """The cached content of this name, if there is any."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        return (cache_folder(kind) / name).read_bytes()
    return None


def remember(kind: str, name: str, content: bytes) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        write_whole(cache_folder(kind) / name, lambda file: file.write(content))


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that appears under its name when all of it is there. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".unfinished-", delete=False) as file:
        try:
            write(file)
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise

"""Where a data file is: `~` and `${VAR}` expanded, looked up in the current folder, then in $COS2P_DATA."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cos2p.errors import DataError

DATA_FOLDER_VARIABLE = "COS2P_DATA"
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_PATTERN = re.compile(r"[*?\[]")


def find(path: str, name: str = "") -> Path:
    """The existing file or folder `path`/`name`, or a `DataError` that says where it was looked for."""
    wanted = _joined(path, name)
    for place in places(wanted):
        if place.exists():
            return place
    raise _not_found(wanted)


def find_all(path: str, name: str) -> list[Path]:
    """Like `find`, but `name` may be a pattern such as `train-*.parquet`; sorted, never empty."""
    wanted = _joined(path, name)
    if not _PATTERN.search(wanted.name):
        return [find(path, name)]
    for place in places(wanted):
        matches = sorted(place.parent.glob(place.name))
        if matches:
            return matches
    raise _not_found(wanted)


def checkpoint_folder(name: str) -> str:
    """The folder of a pretrained model, looked up like data; the name as it is, perhaps a hub's, if there is none."""
    expanded = _expand(name)
    return next((str(place) for place in places(Path(expanded)) if place.is_dir()), expanded)


def _joined(path: str, name: str) -> Path:
    return Path(_expand(path)) / _expand(name)


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
    data_folder = os.environ.get(DATA_FOLDER_VARIABLE, "")
    if wanted.is_absolute() or not data_folder:
        return [wanted]
    return [wanted, Path(data_folder).expanduser() / wanted]


def _not_found(wanted: Path) -> DataError:
    looked = " or ".join(str(place.absolute()) for place in places(wanted))
    if wanted.is_absolute():
        advice = "check data.path"
    elif os.environ.get(DATA_FOLDER_VARIABLE):
        advice = f"check data.path and the environment variable {DATA_FOLDER_VARIABLE}"
    else:
        advice = f"set the environment variable {DATA_FOLDER_VARIABLE} to the folder that holds your data sets"
    return DataError(f"no data at {looked}; {advice}")

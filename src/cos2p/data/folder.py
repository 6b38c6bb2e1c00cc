"""Image folders: path/<class>/<file>, or path/<split>/<class>/<file>."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from cos2p.data import paths
from cos2p.data.config import DataConfig
from cos2p.data.lazy import Encoded, ImageFiles
from cos2p.data.raw import Raw, RawSplits
from cos2p.data.select import IntArray
from cos2p.errors import DataError

_SUFFIXES = frozenset([".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"])
_VALIDATION_NAMES = ("validation", "valid", "val")


def read_folder(config: DataConfig) -> RawSplits:
    root = paths.find(config.path)
    if not root.is_dir():
        raise DataError(f"{root} is a file; data.path must name a folder of class folders")
    train = paths.opened(root / (config.train or "train"))
    if not train.is_dir():
        if config.train or config.test or config.validation:
            raise DataError(f"{root} has no folder {train.name!r}; it has {_listing(root)}")
        return RawSplits(_split(root, config, None))
    classes = _classes(train)
    test = _named(root, config.test, ("test",), taken=())
    taken = (train, *([test] if test else []))
    validation = _named(root, config.validation, _VALIDATION_NAMES, taken)
    return RawSplits(
        train=_split(train, config, classes),
        validation=_split(validation, config, classes) if validation else None,
        test=_split(test, config, classes) if test else None,
    )


def _named(root: Path, wanted: str, usual: tuple[str, ...], taken: tuple[Path, ...]) -> Path | None:
    """The folder asked for, or one of the usual names that is there and not already another split."""
    if wanted:
        if not (root / wanted).is_dir():
            raise DataError(f"{root} has no folder {wanted!r}; it has {_listing(root)}")
        return paths.opened(root / wanted)
    return next((root / name for name in usual if (root / name).is_dir() and root / name not in taken), None)


def _split(folder: Path, config: DataConfig, classes: tuple[str, ...] | None) -> Raw:
    classes = classes or _classes(folder)
    files: list[str] = []
    stamps: list[tuple[int, int]] = []
    labels: list[int] = []
    for name in _subfolders(folder):
        if name not in classes:
            raise DataError(f"{folder / name} is a class that the training folder does not have")
        own = _image_files(paths.opened(folder / name))
        if not own:
            raise DataError(f"{folder / name} holds no images ({', '.join(sorted(_SUFFIXES))})")
        files += [file for file, _ in own]
        stamps += [stamp for _, stamp in own]
        labels += [classes.index(name)] * len(own)

    def images(indices: IntArray) -> Encoded:
        return ImageFiles([files[i] for i in indices.tolist()], np.asarray(stamps, dtype=np.int64)[indices])

    return Raw(where=str(folder), count=len(files), labels=labels, encoded=images, class_names=classes)


def _image_files(folder: Path) -> list[tuple[str, tuple[int, int]]]:
    """Image files by name, each with its size and the time of its last change."""
    # scandir and plain strings: a Path for each of a million files takes ten times as long.
    with os.scandir(folder) as entries:
        own = [entry for entry in entries if is_image_name(entry.name) and entry.is_file()]
    found = []
    for entry in sorted(own, key=lambda entry: entry.name):
        if entry.is_symlink():
            paths.opened(Path(entry.path))
        stat = entry.stat()
        found.append((entry.path, (stat.st_size, stat.st_mtime_ns)))
    return found


def is_image_name(name: str) -> bool:
    """By its name. What begins with a dot is a file system's own: `._cat.jpg` is no image."""
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122
    return suffix in _SUFFIXES and not name.startswith(".")


def _classes(folder: Path) -> tuple[str, ...]:
    names = _subfolders(folder)
    if not names:
        raise DataError(f"{folder} has no class folders; put the images in {folder / '<class>' / '<file>'}")
    return tuple(names)


def _subfolders(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    except OSError as error:
        raise DataError(f"{folder} cannot be listed ({error})") from error


def _listing(root: Path) -> str:
    return ", ".join(_subfolders(root)[:10]) or "no folders"

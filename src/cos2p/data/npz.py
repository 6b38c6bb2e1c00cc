"""Numpy archives: one file per split with `image_column` and `label_column` as array names, or one file with
x_train, y_train, x_test, y_test (and x_val, y_val) for all splits."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cos2p.data import paths
from cos2p.data.config import DataConfig
from cos2p.data.images import adapt_array
from cos2p.data.raw import Raw, RawSplits
from cos2p.data.select import IntArray
from cos2p.errors import DataError

_SUFFIXES = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}

Arrays = dict[str, NDArray[np.generic]]


def read_npz(config: DataConfig) -> RawSplits:
    file = paths.find(config.path, config.train)
    arrays = _arrays(file)
    whole = {split: _keras_style(arrays, split) for split in _SUFFIXES}
    train = whole["train"] or (config.image_column, config.label_column)
    return RawSplits(
        train=_split(file, arrays, *train, config),
        validation=_other(file, arrays, whole["validation"], config.validation, config),
        test=_other(file, arrays, whole["test"], config.test, config),
    )


def _other(file: Path, arrays: Arrays, own: tuple[str, str] | None, name: str, config: DataConfig) -> Raw | None:
    if name:
        file = paths.find(config.path, name)
        return _split(file, _arrays(file), config.image_column, config.label_column, config)
    return _split(file, arrays, *own, config) if own else None


def _keras_style(arrays: Arrays, split: str) -> tuple[str, str] | None:
    pairs = ((f"x_{suffix}", f"y_{suffix}") for suffix in _SUFFIXES[split])
    return next((pair for pair in pairs if pair[0] in arrays and pair[1] in arrays), None)


def _arrays(file: Path) -> Arrays:
    try:
        # Pickled objects are refused: a data file must not be able to run code.
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array without a name")
        with archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read as an npz file of plain arrays ({error})") from error


def _split(file: Path, arrays: Arrays, image_name: str, label_name: str, config: DataConfig) -> Raw:
    for name, field in ((image_name, "image_column"), (label_name, "label_column")):
        if name not in arrays:
            raise DataError(
                f"{file} has no array {name!r}; it has {', '.join(sorted(arrays)) or 'none'}; set data.{field}"
            )
    pixels, labels = arrays[image_name], arrays[label_name]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or len(labels) != len(pixels):
        raise DataError(
            f"{file}: {label_name!r} has shape {labels.shape} for {len(pixels)} images; "
            f"there must be one label per image"
        )

    def images(indices: IntArray) -> torch.Tensor:
        return adapt_array(pixels[indices], str(file), config)

    values = [v.decode(errors="replace") if isinstance(v, bytes) else v for v in labels.tolist()]
    return Raw(where=str(file), count=len(pixels), labels=values, images=images)

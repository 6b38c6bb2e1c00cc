"""Images in arrays.

digits   1,797 handwritten digits of 8 by 8 pixels (UCI, as scikit-learn has them), in a small file of the package
idx      the format of MNIST: a file of images and one of labels for each split
npz      numpy archives: one file per split with `image_column` and `label_column` as names of arrays, or one file with
         x_train, y_train, x_test, y_test (and x_val, y_val) for all splits
"""

from __future__ import annotations

import gzip
import struct
import zipfile
import zlib
from importlib.resources import as_file, files
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

Array = NDArray[np.generic]
Arrays = dict[str, Array]

_INK_LEVELS = 16
"""Each pixel counts the inked ones among 4x4 of the original scan: 0 to 16."""


def read_digits(config: DataConfig) -> RawSplits:
    ink, labels = _scans()
    pixels = np.rint(ink.astype(np.float64) * (255 / _INK_LEVELS)).astype(np.uint8)
    return RawSplits(_raw("digits", pixels, labels, "digits", config))


def _raw(where: str, pixels: Array, labels: Array, labels_where: str, config: DataConfig) -> Raw:
    """A split in memory. `labels_where` names the labels in messages."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or len(labels) != len(pixels):
        raise DataError(
            f"{labels_where} has shape {labels.shape} for {len(pixels)} images of {where}; "
            f"there must be one label per image"
        )

    def images(indices: IntArray) -> torch.Tensor:
        return adapt_array(pixels[indices], where, config)

    values = [v.decode(errors="replace") if isinstance(v, bytes) else v for v in labels.tolist()]
    return Raw(where=where, count=len(pixels), labels=values, images=images)


def _scans() -> tuple[Array, IntArray]:
    """Ink levels (n, 8, 8) and labels."""
    with as_file(files("cos2p.data") / "digits.npz") as file, np.load(file) as stored:
        return stored["ink"], stored["labels"].astype(np.int64)


# ---------------------------------------------------------------- idx

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(config: DataConfig) -> RawSplits:
    def split(name: str) -> Raw:
        label_name = name.replace("images", "labels").replace("idx3", "idx1")
        file = paths.find(config.path, name)
        if label_name == name:
            raise DataError(
                f"{file}: the name of its label file cannot be guessed; call them …images-idx3… and …labels-idx1…"
            )
        label_file = paths.find(config.path, label_name)
        return _raw(str(file), read_idx_array(file), read_idx_array(label_file), str(label_file), config)

    return RawSplits.of(config, split)


def read_idx_array(file: Path) -> Array:
    """The array in an idx file."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read ({error}); fetch it again") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise DataError(f"{file} is not an idx file: it starts with {content[:4]!r}; check data.train and data.test")
    dims = content[3]
    header = 4 + 4 * dims
    dtype = np.dtype(_TYPES[content[2]])
    shape = struct.unpack(f">{dims}I", content[4:header]) if len(content) >= header else (0,)
    if len(content) != header + int(np.prod(shape)) * dtype.itemsize:
        raise DataError(f"{file} is cut short or too long for its shape {shape}; fetch it again")
    return np.frombuffer(content, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


# ---------------------------------------------------------------- npz

_SUFFIXES = {"train": ("train",), "validation": ("val", "valid", "validation"), "test": ("test",)}


def read_npz(config: DataConfig) -> RawSplits:
    file = paths.find(config.path, config.train)
    arrays = _arrays(file)
    whole = {split: _keras_style(arrays, split) for split in _SUFFIXES}
    train = whole["train"] or (config.image_column, config.label_column)
    return RawSplits(
        train=_npz_split(file, arrays, *train, config),
        validation=_other(file, arrays, whole["validation"], config.validation, config),
        test=_other(file, arrays, whole["test"], config.test, config),
    )


def _other(file: Path, arrays: Arrays, own: tuple[str, str] | None, name: str, config: DataConfig) -> Raw | None:
    if name:
        file = paths.find(config.path, name)
        return _npz_split(file, _arrays(file), config.image_column, config.label_column, config)
    return _npz_split(file, arrays, *own, config) if own else None


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


def _npz_split(file: Path, arrays: Arrays, image_name: str, label_name: str, config: DataConfig) -> Raw:
    for name, field in ((image_name, "image_column"), (label_name, "label_column")):
        if name not in arrays:
            raise DataError(
                f"{file} has no array {name!r}; it has {', '.join(sorted(arrays)) or 'none'}; set data.{field}"
            )
    return _raw(str(file), arrays[image_name], arrays[label_name], f"{file}: {label_name!r}", config)

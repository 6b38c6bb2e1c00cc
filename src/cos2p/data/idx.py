"""The idx format of MNIST and its kin: a big-endian header with type and shape, then the values. Plain or .gz."""

from __future__ import annotations

import gzip
import struct
import zlib
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

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(config: DataConfig) -> RawSplits:
    return RawSplits(
        train=_split(config.train, config.train_labels, config),
        validation=_split(config.validation, config.validation_labels, config) if config.validation else None,
        test=_split(config.test, config.test_labels, config) if config.test else None,
    )


def read_idx_array(file: Path) -> NDArray[np.generic]:
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


def _split(image_name: str, label_name: str, config: DataConfig) -> Raw:
    label_name = label_name or image_name.replace("images", "labels").replace("idx3", "idx1")
    image_file = paths.find(config.path, image_name)
    if label_name == image_name:
        raise DataError(f"{image_file}: the name of its label file cannot be guessed; give it in data.train_labels")
    label_file = paths.find(config.path, label_name)
    pixels, labels = read_idx_array(image_file), read_idx_array(label_file)
    if labels.ndim != 1 or len(labels) != len(pixels):
        raise DataError(
            f"{label_file} has shape {labels.shape}, {image_file} holds {len(pixels)} images; "
            f"there must be one label per image"
        )

    def images(indices: IntArray) -> torch.Tensor:
        return adapt_array(pixels[indices], str(image_file), config)

    return Raw(where=str(image_file), count=len(pixels), labels=labels.tolist(), images=images)

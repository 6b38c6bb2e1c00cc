from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from cos2p.data import DataConfig, load
from cos2p.data.arrays import read_idx_array
from cos2p.errors import DataError


def idx(array: np.ndarray, code: int = 0x08) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


def write_set(folder: Path, prefix: str, samples: int) -> np.ndarray:
    pixels = np.random.default_rng(samples).integers(0, 256, (samples, 5, 5), dtype=np.uint8)
    (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
    labels = (np.arange(samples) % 2).astype(np.uint8)
    (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return pixels


CONFIG = DataConfig(source="idx", train="train-images-idx3-ubyte.gz", test="t10k-images-idx3-ubyte.gz")


def test_images_and_labels_come_from_their_pair_of_files(here: Path) -> None:
    write_set(here, "train", 20)
    pixels = write_set(here, "t10k", 6)

    bundle = load(CONFIG, seed=0)

    assert torch.equal(bundle.test.inputs[:, 0], torch.from_numpy(pixels))
    assert bundle.test.labels.tolist() == [0, 1] * 3
    assert len(bundle.train) + len(bundle.validation) == 20


def test_a_name_without_images_has_no_label_file(here: Path) -> None:
    (here / "pictures").write_bytes(idx(write_set(here, "train", 20)))
    with pytest.raises(DataError, match=r"label file cannot be guessed; call them"):
        load(DataConfig(source="idx", train="pictures"), seed=0)


def test_every_type_of_the_format_is_read(here: Path) -> None:
    (here / "a").write_bytes(idx(np.array([1, 300, -2], dtype=">i4"), 0x0C))
    (here / "b").write_bytes(idx(np.array([[0.5], [1.5]], dtype=">f4"), 0x0D))

    assert read_idx_array(here / "a").tolist() == [1, 300, -2]
    assert read_idx_array(here / "b").tolist() == [[0.5], [1.5]]


def test_broken_files_are_named(here: Path) -> None:
    pixels = write_set(here, "train", 20)
    write_set(here, "t10k", 6)
    file = here / "train-images-idx3-ubyte.gz"

    for content, message in (
        (b"not gzip", "cannot be read"),
        (gzip.compress(idx(pixels))[:-20], "cannot be read"),
        (gzip.compress(b"PK\3\4"), "is not an idx file"),
        (gzip.compress(idx(pixels)[:-1]), "cut short"),
        (gzip.compress(b"\0\0\x08\x03\0\0"), "cut short"),
        (gzip.compress(idx(pixels[:19])), "there must be one label per image"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=message) as error:
            load(CONFIG, seed=0)
        assert file.name in str(error.value)


def test_fashion_mnist(shared_data: Path) -> None:
    config = CONFIG.model_copy(update={"path": "fashion-mnist", "train_samples": 2400})

    bundle = load(config, seed=0)

    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (2160, 240, 10_000)
    assert torch.bincount(bundle.train.labels).tolist() == [216] * 10
    assert torch.bincount(bundle.test.labels).tolist() == [1000] * 10
    assert bundle.test.inputs.shape == (10_000, 1, 28, 28)
    # The published mean of the training pixels is 0.2860; the test set's is close.
    assert bundle.test.inputs.float().mean().item() / 255 == pytest.approx(0.286, abs=0.005)

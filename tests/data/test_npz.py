from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cos2p.data import DataConfig, load
from cos2p.errors import DataError

PIXELS = np.arange(10, dtype=np.uint8)[:, None, None].repeat(3, 1).repeat(3, 2)
LABELS = np.arange(10) % 2


def test_one_archive_may_hold_all_splits(here: Path) -> None:
    np.savez_compressed(
        here / "all.npz",
        x_train=PIXELS, y_train=LABELS, x_test=PIXELS[:4], y_test=LABELS[:4, None], x_val=PIXELS[:2], y_val=LABELS[:2],
    )  # fmt: skip

    bundle = load(DataConfig(source="npz", train="all.npz"), seed=0)

    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (10, 2, 4)
    assert bundle.test.labels.tolist() == [0, 1, 0, 1]


def test_arrays_may_have_any_name_and_labels_may_be_names(here: Path) -> None:
    np.savez(here / "a.npz", pictures=PIXELS, what=np.where(LABELS == 0, b"cat", b"dog"))

    config = DataConfig(source="npz", train="a.npz", image_column="pictures", label_column="what")

    assert load(config, seed=0).class_names == ("cat", "dog")


def test_a_missing_array_lists_those_there_are(here: Path) -> None:
    np.savez(here / "a.npz", pictures=PIXELS, label=LABELS)

    with pytest.raises(DataError, match=r"no array 'image'; it has label, pictures; set data\.image_column"):
        load(DataConfig(source="npz", train="a.npz"), seed=0)


def test_unequal_counts_broken_files_and_pickles_are_refused(here: Path) -> None:
    config = DataConfig(source="npz", train="a.npz")
    np.savez(here / "a.npz", image=PIXELS, label=LABELS[:9])
    with pytest.raises(DataError, match=r"'label' has shape \(9,\) for 10 images"):
        load(config, seed=0)

    np.savez(here / "a.npz", image=PIXELS, label=np.array([{} for _ in range(10)]))
    with pytest.raises(DataError, match=r"cannot be read as an npz file of plain arrays"):
        load(config, seed=0)

    (here / "a.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"a\.npz cannot be read"):
        load(config, seed=0)

    np.save(here / "a.npy", PIXELS)
    with pytest.raises(DataError, match=r"a\.npy cannot be read"):
        load(DataConfig(source="npz", train="a.npy"), seed=0)

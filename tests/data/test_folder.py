from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cos2p.data import DataConfig, load
from cos2p.errors import DataError


def fill(folder: Path, count: int, shade: int, suffix: str = ".png") -> None:
    folder.mkdir(parents=True)
    for i in range(count):
        Image.fromarray(np.full((4, 4), shade, dtype=np.uint8)).save(folder / f"{i:03}{suffix}")


def test_class_folders_are_classes(here: Path) -> None:
    fill(here / "pets" / "dog", 10, shade=200)
    fill(here / "pets" / "cat", 10, shade=100)
    (here / "pets" / "dog" / "notes.txt").write_text("not an image")
    (here / "pets" / ".cache").mkdir()

    bundle = load(DataConfig(source="folder", path="pets"), seed=0)

    assert bundle.class_names == ("cat", "dog")
    assert len(bundle.train) + len(bundle.validation) + len(bundle.test) == 20
    for image, label in zip(bundle.test.inputs[:], bundle.test.labels, strict=True):
        assert int(image[0, 0, 0]) == (100, 200)[int(label)]


@pytest.mark.parametrize("validation", ["val", "valid", "validation"])
def test_split_folders_are_splits(here: Path, validation: str) -> None:
    for split, count in (("train", 5), (validation, 3), ("test", 2)):
        fill(here / split / "cat", count, 100, ".JPEG")
        fill(here / split / "dog", count, 200, ".JPEG")

    bundle = load(DataConfig(source="folder", path="."), seed=0)

    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (10, 6, 4)


def test_a_folder_used_for_testing_is_not_also_validation(here: Path) -> None:
    for split, count in (("train", 20), ("val", 3)):
        fill(here / split / "cat", count, 100)

    bundle = load(DataConfig(source="folder", path=".", test="val"), seed=0)

    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (18, 2, 3)


def test_only_the_chosen_files_are_opened(here: Path) -> None:
    fill(here / "a", 30, 100)
    fill(here / "b", 30, 100)
    config = DataConfig(source="folder", path=".", train_samples=10, test_samples=2)
    load(config, seed=0)
    for file in here.glob("*/*.png"):
        file.write_bytes(b"broken")

    with pytest.raises(DataError, match=r"12 of 12 images cannot be read(.|\n)*[ab]/\d{3}\.png"):
        load(config, seed=0)


def test_wrong_folders_are_named(here: Path) -> None:
    with pytest.raises(DataError, match="no data at"):
        load(DataConfig(source="folder", path="pets"), seed=0)
    (here / "file").touch()
    with pytest.raises(DataError, match=r"file is a file; data\.path must name a folder"):
        load(DataConfig(source="folder", path="file"), seed=0)
    (here / "pets").mkdir()
    with pytest.raises(DataError, match="pets has no class folders; put the images in"):
        load(DataConfig(source="folder", path="pets"), seed=0)
    fill(here / "pets" / "train" / "cat", 2, 0)
    with pytest.raises(DataError, match="has no folder 'testing'; it has train"):
        load(DataConfig(source="folder", path="pets", test="testing"), seed=0)
    with pytest.raises(DataError, match="has no folder 'training'; it has train"):
        load(DataConfig(source="folder", path="pets", train="training"), seed=0)
    fill(here / "pets" / "test" / "dog", 2, 0)
    with pytest.raises(DataError, match="test/dog is a class that the training folder does not have"):
        load(DataConfig(source="folder", path="pets"), seed=0)
    (here / "pets" / "train" / "dog").mkdir()
    with pytest.raises(DataError, match="train/dog holds no images"):
        load(DataConfig(source="folder", path="pets"), seed=0)

"""What becomes of images that are broken, deep, rotated, or none at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cos2p.data import DataConfig, Examples, load
from cos2p.data.images import BadImage, decode
from cos2p.errors import DataError


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png(shade: int) -> bytes:
    return encoded(Image.fromarray(np.full((4, 4), shade, dtype=np.uint8)))


def shades(part: Examples) -> list[int]:
    return part.inputs[:][:, 0, 0, 0].tolist()


# Depth and rotation


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_are_scaled_and_not_cut_off(channels: int) -> None:
    """257 steps of 16 bits are one of 8; until now all from 255 on were white."""
    deep = Image.fromarray(np.array([[0, 257], [257 * 100, 65535]], dtype=np.uint16))
    for kind in ("PNG", "TIFF"):
        pixels = decode("deep", encoded(deep, kind), DataConfig(channels=channels))  # type: ignore[arg-type]
        assert pixels.shape == (channels, 2, 2)
        assert pixels[-1].tolist() == [[0, 1], [100, 255]]


def test_whole_numbers_of_32_bits_and_floats_are_scaled_or_refused() -> None:
    def tiff(values: np.ndarray) -> bytes:
        return encoded(Image.fromarray(values), "TIFF")

    assert decode("a", tiff(np.array([[0, 65535]], dtype=np.int32)), DataConfig()).tolist() == [[[0, 255]]]
    assert decode("a", tiff(np.array([[0.0, 0.2, 1.0]], dtype=np.float32)), DataConfig()).tolist() == [[[0, 51, 255]]]
    for wrong in (
        np.array([[0, 70000]], dtype=np.int32),
        np.array([[-1, 5]], dtype=np.int32),
        np.array([[0.0, 2.0]], dtype=np.float32),
        np.array([[0.0, np.nan]], dtype=np.float32),
    ):
        with pytest.raises(BadImage, match=r"its values go from .* store 0 to"):
            decode("a", tiff(wrong), DataConfig())


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [(1, [[0, 90], [180, 255]]), (3, [[255, 180], [90, 0]]), (6, [[180, 0], [255, 90]]), (8, [[90, 255], [0, 180]])],
)
def test_a_photograph_stands_as_its_camera_says(orientation: int, expected: list[list[int]]) -> None:
    """3: upside down; 6 and 8: a quarter turn to the right and to the left."""
    image = Image.fromarray(np.array([[0, 90], [180, 255]], dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert decode("a", encoded(image, exif=exif), DataConfig())[0].tolist() == expected


# Files that are none


@pytest.fixture
def pets(here: Path) -> Path:
    """30 images of shades 0 to 29 in two classes, of which 0 to 11 are broken, and other things next to them."""
    for i in range(30):
        file = here / "pets" / "ab"[i % 2] / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(i) if i >= 12 else b"broken")
    (here / "pets" / "a" / "._00.png").write_bytes(b"a file system's own")
    (here / "pets" / "a" / ".DS_Store").touch()
    (here / "pets" / "a" / "notes.txt").touch()
    (here / "pets" / "a" / "folder.png").mkdir()
    return here / "pets"


def test_all_that_cannot_be_read_is_said_at_once(pets: Path) -> None:
    """Of all three sets; and again at the next start, which looks at none of them."""
    messages = set()
    for _ in range(2):
        with pytest.raises(DataError) as error:
            load(DataConfig(source="folder", path="pets"), seed=0)
        messages.add(str(error.value))
    assert len(messages) == 1
    lines = messages.pop().splitlines()
    assert lines[0] == "12 of 30 images cannot be read; replace them, or leave them out with data.skip_bad = true:"
    assert len(lines) == 12
    assert all(line.endswith(".png (it is in no image format that is known)") for line in lines[1:11])
    assert lines[11] == "  and 2 more"


@pytest.mark.parametrize("cache", ["1MB", "0B"])
def test_broken_images_are_left_out_if_told_with_a_note(pets: Path, cache: str) -> None:
    config = DataConfig(source="folder", path="pets", skip_bad=True, cache=cache)  # type: ignore[arg-type]
    for _ in range(2):
        bundle = load(config, seed=0)
        parts = (bundle.train, bundle.validation, bundle.test)
        found = [pair for part in parts for pair in zip(shades(part), part.labels.tolist(), strict=True)]
        assert sorted(found) == [(i, i % 2) for i in range(12, 30)]
        assert len(bundle.notes) == 1
        assert bundle.notes[0].startswith("12 of 30 images cannot be read and are left out: ")
        assert bundle.notes[0].endswith(" and 2 more")


def test_nothing_to_say_of_whole_images(here: Path) -> None:
    (here / "pets" / "a").mkdir(parents=True)
    for i in range(9):
        (here / "pets" / "a" / f"{i}.png").write_bytes(png(i))
    assert load(DataConfig(source="folder", path="pets", skip_bad=True), seed=0).notes == ()


def test_nothing_left_to_train_on_is_an_error_even_then(here: Path) -> None:
    (here / "pets" / "a").mkdir(parents=True)
    for i in range(9):
        (here / "pets" / "a" / f"{i}.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="9 of 9 images cannot be read"):
        load(DataConfig(source="folder", path="pets", skip_bad=True), seed=0)


@pytest.mark.parametrize("cache", ["1MB", "0B"])
def test_cells_without_an_image_are_left_out_too(here: Path, cache: str) -> None:
    cells = [png(i) for i in range(20)]
    cells[3], cells[7] = None, b""  # type: ignore[call-overload]
    table = pa.table({"image": cells, "label": [0, 1] * 10, "who": [str(i) for i in range(20)]})
    pq.write_table(table, here / "train.parquet")
    config = DataConfig(
        source="parquet", train="train.parquet", group_column="who", skip_bad=True, cache=cache, validation_fraction=0
    )  # type: ignore[arg-type]
    for _ in range(2):
        bundle = load(config, seed=0)
        assert "2 of 20 images" in bundle.notes[0]
        assert bundle.train.groups is not None
        assert [str(shade) for shade in shades(bundle.train)] == list(bundle.train.groups)

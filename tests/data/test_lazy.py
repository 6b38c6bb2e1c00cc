"""Images that are decoded when they are asked for: the same batches, whatever the memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cos2p.data import DataConfig, lazy, load
from cos2p.data import lazy as lazy_module
from cos2p.data.lazy import ImageFiles, ImageStore, LazyImages
from cos2p.errors import DataError

IMAGE = 4 * 4
"""Bytes of one decoded image."""


def png(seed: int, size: int = 4) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(params=["folder", "parquet"])
def source(request: pytest.FixtureRequest, here: Path) -> dict[str, Any]:
    """40 images of two classes."""
    if request.param == "folder":
        for i in range(40):
            file = here / "pets" / "ab"[i % 2] / f"{i:02}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(i))
        return {"source": "folder", "path": "pets"}
    table = pa.table({"image": [png(i) for i in range(40)], "label": [i % 2 for i in range(40)]})
    pq.write_table(table, here / "train.parquet", row_group_size=7)
    return {"source": "parquet", "train": "train.parquet"}


def batches(config: DataConfig) -> list[torch.Tensor]:
    """Two passes in different orders, over the data and over a device's part of it, and the test set."""
    bundle = load(config, seed=0)
    part = bundle.train.subset(np.arange(3, 20, 2))
    order = torch.randperm(len(bundle.train), generator=torch.Generator().manual_seed(0))
    rows = [*order.split(5), *order.flip(0).split(7)]
    return [
        *(bundle.train.batch(r, config.normalize)[0] for r in rows),
        *(part.batch(r)[0] for r in torch.arange(len(part)).split(4)),
        bundle.test.batch(torch.arange(len(bundle.test)))[0],
    ]


@pytest.mark.parametrize("cache", ["0B", f"{11 * IMAGE}B", f"{39 * IMAGE}B"])
def test_the_batches_do_not_depend_on_the_memory(source: dict[str, Any], cache: str) -> None:
    """First start and second, which has nothing to check any more."""
    everything = batches(DataConfig(**source))
    for start in range(2):
        found = batches(DataConfig(**source, cache=cache))
        assert all(torch.equal(a, b) for a, b in zip(everything, found, strict=True)), start


def test_what_fits_is_a_tensor_as_before_and_what_does_not_is_bounded(source: dict[str, Any]) -> None:
    assert isinstance(load(DataConfig(**source), seed=0).train.inputs, torch.Tensor)
    small = load(DataConfig(**source, cache=20 * IMAGE), seed=0)
    train = small.train.inputs
    assert isinstance(train, LazyImages)
    assert train.shape == (len(small.train), 1, 4, 4)
    for _ in range(2):
        train[:]
        assert train.nbytes == 20 * len(small.train) // 40 * IMAGE  # its share of the memory


def test_a_second_start_decodes_only_what_is_asked_for(source: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(**source, cache=100 * IMAGE if source["source"] == "folder" else 10 * IMAGE)
    load(config, seed=0)
    decoded = []
    decode_many = lazy_module.decode_many

    def counting(images: Any, config: DataConfig) -> Any:
        for name, pixels in decode_many(images, config):
            decoded.append(name)
            yield name, pixels

    monkeypatch.setattr(lazy_module, "decode_many", counting)
    monkeypatch.setattr(lazy, "decode_many", counting)
    bundle = load(config, seed=0)
    assert decoded == []
    bundle.train.subset(np.arange(10)).batch(torch.tensor([1, 2, 2]))
    assert len(decoded) == 3
    if source["source"] == "folder":  # there is room for all: once is enough, also for other parts
        bundle.train.batch(torch.tensor([2, 1]))
        assert len(decoded) == 3


def test_images_that_changed_are_looked_at_again(source: dict[str, Any]) -> None:
    config = DataConfig(**source, cache=0)
    before = load(config, seed=0).train.inputs[:]
    if source["source"] == "folder":
        for file in Path("pets").glob("*/*.png"):
            file.write_bytes(png(100 + int(file.stem)))
    else:
        table = pa.table({"image": [png(100 + i) for i in range(40)], "label": [i % 2 for i in range(40)]})
        pq.write_table(table, "train.parquet")
    assert not torch.equal(load(config, seed=0).train.inputs[:], before)


def test_no_room_to_lay_a_table_out_is_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"image": [png(i) for i in range(20)], "label": [0, 1] * 10}), here / "train.parquet")
    (here / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "file"))
    with pytest.raises(DataError, match=r"train\.parquet: its images are larger than data\.cache.*XDG_CACHE_HOME"):
        load(DataConfig(source="parquet", train="train.parquet", cache=0), seed=0)


def test_an_image_of_another_size_is_named(here: Path) -> None:
    (here / "pets" / "a").mkdir(parents=True)
    for i in range(5):
        (here / "pets" / "a" / f"{i}.png").write_bytes(png(i, size=5 if i == 3 else 4))
    config = DataConfig(source="folder", path="pets", test_fraction=0.2, validation_fraction=0)
    with pytest.raises(DataError, match=r"(is 5x5 pixels, .* 4x4|shape \(1, 5, 5\)).*set data\.image_size"):
        load(config, seed=0)
    assert load(config.model_copy(update={"image_size": 4}), seed=0).train.inputs.shape == (4, 1, 4, 4)


@given(st.integers(0, 12), st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=6))
def test_a_store_gives_the_images_whatever_it_keeps(room: int, asked: list[list[int]]) -> None:
    """Ten images of one shade each, asked for in any order and repeatedly."""

    class Shades:
        def __getitem__(self, number: int) -> tuple[str, bytes]:
            buffer = io.BytesIO()
            Image.fromarray(np.full((1, 1), number, dtype=np.uint8)).save(buffer, "PNG")
            return str(number), buffer.getvalue()

    store = ImageStore(Shades(), np.arange(10), DataConfig(), np.empty((room, 1, 1, 1), dtype=np.uint8), 0)
    images = LazyImages(store, np.arange(10))
    for rows in asked:
        assert images[torch.tensor(rows, dtype=torch.int64)].flatten().tolist() == rows
        assert images.nbytes <= room


def test_a_file_that_vanishes_later_is_named(here: Path) -> None:
    (here / "a.png").write_bytes(png(0))
    files = ImageFiles([str(here / "a.png")], np.zeros((1, 2), dtype=np.int64))
    store = ImageStore(files, np.arange(1), DataConfig(), np.empty((0, 1, 4, 4), dtype=np.uint8), 0)
    (here / "a.png").unlink()
    with pytest.raises(DataError, match=r"a\.png cannot be read as an image"):
        LazyImages(store, np.arange(1))[:]


def test_the_setting_is_a_size() -> None:
    assert DataConfig(cache="1.5GB").cache == 1_500_000_000  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="write it like 600MB"):
        DataConfig(cache="lots")  # type: ignore[arg-type]

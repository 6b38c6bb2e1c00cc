from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from cos2p.data import DataConfig, load
from cos2p.errors import DataError, MissingExtra


class FakeSplit:
    """As much of `datasets.Dataset` as is used, over a plain table."""

    def __init__(self, table: pa.Table, features: dict[str, Any]) -> None:
        self.table, self.features, self.decodes = table, features, True

    @property
    def column_names(self) -> list[str]:
        return list(self.table.column_names)

    def cast_column(self, name: str, feature: Any) -> FakeSplit:
        cast = FakeSplit(self.table, self.features | {name: feature})
        cast.decodes = feature.decode
        return cast

    def select_columns(self, names: list[str]) -> FakeSplit:
        part = FakeSplit(self.table.select(names), self.features)
        part.decodes = self.decodes
        return part

    def with_format(self, kind: str) -> FakeSplit:
        assert kind == "arrow"
        return self

    def __getitem__(self, rows: slice) -> pa.Table:
        assert not ("image" in self.column_names and self.decodes), "images must stay encoded"
        return self.table[rows]


def png(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), shade, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A hub with one image set and one text set; says what it was asked for."""
    names = SimpleNamespace(names=["cat", "dog"])
    images = pa.table({"image": [{"bytes": png(i), "path": None} for i in range(20)], "label": [0, 1] * 10})
    texts = pa.table({"sentence": ["good", "bad"] * 10, "label": [1, 0] * 10, "user": ["a", "b"] * 10})
    sets = {
        "pets": {"train": FakeSplit(images, {"label": names}), "test": FakeSplit(images[:4], {"label": names})},
        "moods": {
            "train": FakeSplit(texts, {}),
            "dev": FakeSplit(texts[:6], {}),
            "test": FakeSplit(texts[:2], {}),
        },
    }
    asked: dict[str, Any] = {}

    def load_dataset(path: str, name: str | None) -> Any:
        asked.update(path=path, name=name)
        if path not in sets:
            raise ConnectionError(f"no {path} on the hub\nand a long story")
        return sets[path]

    fake = SimpleNamespace(load_dataset=load_dataset, Image=lambda decode: SimpleNamespace(decode=decode))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return asked


def test_images_by_name_of_the_set(hub: dict[str, Any]) -> None:
    bundle = load(DataConfig(source="hub", path="pets:plain"), seed=0)

    assert hub == {"path": "pets", "name": "plain"}
    assert bundle.class_names == ("cat", "dog")
    assert bundle.test.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert len(bundle.train) + len(bundle.validation) == 20


def test_texts_with_groups_and_the_validation_split_there_is(hub: dict[str, Any]) -> None:
    config = DataConfig(source="hub", path="moods", text_column="sentence", group_column="user", max_tokens=8)

    bundle = load(config, seed=0)

    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (20, 6, 2)
    assert tuple(bundle.test.groups or ()) == ("a", "b")
    assert hub["name"] is None


def test_wrong_names_are_said(hub: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"'ghosts' cannot be fetched from the hub \(no ghosts on the hub\)"):
        load(DataConfig(source="hub", path="ghosts"), seed=0)
    with pytest.raises(DataError, match="'pets' has no split 'testing'; it has train, test"):
        load(DataConfig(source="hub", path="pets", test="testing"), seed=0)
    with pytest.raises(DataError, match=r"pets \(train\) has no column 'picture'; it has image, label"):
        load(DataConfig(source="hub", path="pets", image_column="picture"), seed=0)


def test_without_the_extra_the_user_learns_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(MissingExtra, match=r"pip install cos2p\[hub\]"):
        load(DataConfig(source="hub", path="pets"), seed=0)

"""Data from Python: entry points and bundles as files."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cos2p.data import Bundle, DataConfig, Examples, load
from cos2p.data import config as config_module
from cos2p.data import own as own_module
from cos2p.data.own import bundle_name, pack_bundle
from cos2p.data.select import Groups
from cos2p.errors import DataError, RunError
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run


def waves(config: DataConfig, seed: int) -> Bundle:
    """60 images of two classes, bright on the left or on the right."""
    labels = torch.arange(60) % 2
    images = torch.zeros((60, 1, 8, 8), dtype=torch.uint8)
    images[labels == 0, :, :, :4] = 200
    images[labels == 1, :, :, 4:] = 200
    everything = Examples(images, labels, ("left", "right"), groups=Groups.of([str(i) for i in range(60)]))
    return Bundle(*(everything.subset(np.arange(a, b)) for a, b in ((0, 40), (40, 50), (50, 60))))


def nothing(config: DataConfig, seed: int) -> Any:
    return [1, 2]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package had brought three sources along."""
    points = EntryPoints(
        EntryPoint(name, value, "cos2p.data")
        for name, value in (
            ("waves", f"{__name__}:waves"), ("nothing", f"{__name__}:nothing"), ("gone", f"{__name__}:gone")
        )
    )  # fmt: skip
    for module in (config_module, own_module):
        monkeypatch.setattr(module, "entry_points", lambda **wanted: points.select(**wanted))


def test_a_source_by_its_entry_point(installed: None) -> None:
    bundle = load(DataConfig(source="waves"), seed=0)
    assert bundle.class_names == ("left", "right")
    with pytest.raises(ValueError, match=r"source 'wave' is not known; known: digits, .*, gone, nothing, waves"):
        DataConfig(source="wave")
    with pytest.raises(DataError, match=r"data\.source 'nothing' gives list; a cos2p\.data\.Bundle"):
        load(DataConfig(source="nothing"), seed=0)
    with pytest.raises(DataError, match=r"'gone' is .*:gone, which cannot be loaded"):
        load(DataConfig(source="gone"), seed=0)


def same(a: Bundle, b: Bundle) -> bool:
    parts = [(getattr(a, s), getattr(b, s)) for s in ("train", "validation", "test")]
    return all(
        torch.equal(x, y)
        for p, q in parts
        for x, y in zip(p.batch(np.arange(len(p))), q.batch(np.arange(len(q))), strict=True)
    ) and all(
        (p.class_names, p.pad_id, p.vocabulary, p.groups and list(p.groups))
        == (q.class_names, q.pad_id, q.vocabulary, q.groups and list(q.groups))
        for p, q in parts
    )


@pytest.mark.parametrize("kind", ["images", "texts", "language", "lazy"])
def test_a_bundle_is_the_same_from_its_file(here: Path, kind: str) -> None:
    (here / "train.csv").write_text("label,text\n" + "0,one and two\n1,three\n" * 10)
    if kind == "images":
        bundle = waves(DataConfig(), 0)
    elif kind == "lazy":
        from PIL import Image

        (here / "pets" / "a").mkdir(parents=True)
        for i in range(9):
            Image.fromarray(np.full((4, 4), i, dtype=np.uint8)).save(here / "pets" / "a" / f"{i}.png")
        bundle = load(DataConfig(source="folder", path="pets", cache=0), seed=0)
    else:
        task = "classification" if kind == "texts" else "language-modeling"
        bundle = load(DataConfig(source="csv", train="train.csv", text_column="text", task=task), seed=0)
    content = pack_bundle(bundle)
    (here / "b.safetensors").write_bytes(content)
    again = load(DataConfig(source="bundle", path="b.safetensors"), seed=5)
    assert same(bundle, again)
    assert again.train.inputs.shape == bundle.train.inputs.shape
    assert bundle_name(content) == bundle_name(pack_bundle(again))


def test_another_file_is_no_bundle(here: Path) -> None:
    (here / "b.safetensors").write_bytes(b"other")
    with pytest.raises(DataError, match=r"b\.safetensors is not a bundle that cos2p wrote"):
        load(DataConfig(source="bundle", path="b.safetensors"), seed=0)


def recipe() -> Recipe:
    short = {"schedule": {"rounds": 1}, "run": {"workers": 1}}
    values = Recipe.load("quickstart").model_dump(mode="json")
    for table, fields in short.items():
        values[table] |= fields
    values["partition"] |= {"kind": "iid"}
    return Recipe.parse(values)


@pytest.mark.slow
def test_a_run_on_data_from_python(here: Path) -> None:
    """In processes of its own, which find the data in the run's folder; by function and by value alike. 10 to 20 s."""
    first = run(recipe(), here / "a", data=lambda config, seed: waves(config, seed))
    assert len(list((here / "a").glob("data-*.safetensors"))) == 1
    assert run(recipe(), here / "a", data=waves(DataConfig(), 0), resume=True) == first
    other = waves(DataConfig(), 0)
    other.train.labels[0] = 1
    with pytest.raises(RunError):
        run(recipe(), here / "a", data=other, resume=True)
    with pytest.raises(DataError, match="data gives list"):
        run(recipe(), here / "b", data=nothing)
    assert not (here / "b").exists()

"""No damaged file of a run is computed with: bits and pages are changed at random, and every change is noticed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cos2p.checksums import check_folder, note_folder
from cos2p.errors import Cos2pError, RunError
from cos2p.inference.sources import open_trained
from cos2p.runtime.simulation import run
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.checkpoint import before as the_one_before
from cos2p.view.document import Sources
from tests.runtime.small import small

PAGE = 256


def flipped(data: bytes, rng: random.Random) -> bytes:
    place, changed = rng.randrange(len(data)), bytearray(data)
    changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def zeroed(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(max(1, len(data) - PAGE))
    return data[:start] + bytes(len(data[start : start + PAGE])) + data[start + PAGE :]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run(small(schedule={"rounds": 3}, run={"device_models": 10**6}), folder)
    return folder


def look_at(folder: Path) -> None:
    """What `report` and `watch` read, then `predict` and `evaluate`, then `--resume` for more rounds."""
    sources = Sources([folder])
    sources.refresh()
    sources.document()
    open_trained(folder)
    open_trained(folder / "model")
    run(small(schedule={"rounds": 4}, run={"device_models": 10**6}), folder, resume=True)


FILES = (
    "checkpoint.safetensors",
    "weights.safetensors",
    "events.jsonl",
    "recipe.toml",
    "result.json",
    "checksums.json",
    "model/model.safetensors",
    "model/config.json",
    "model/checksums.json",
)


@pytest.mark.parametrize("damage", [flipped, zeroed])
@pytest.mark.parametrize("name", FILES)
def test_no_damage_goes_unnoticed(finished: Path, tmp_path: Path, name: str, damage: Callable[..., bytes]) -> None:
    """Whoever reads the file first says so, by its name; nothing trains."""
    rng, original = random.Random(f"{name} {damage.__name__}"), (finished / name).read_bytes()
    for trial in range(12):
        folder = tmp_path / f"run {trial}"
        changed = damage(original, rng)
        if changed == original:  # zeros in place of zeros
            continue
        shutil.copytree(finished, folder)
        (folder / name).write_bytes(changed)
        with pytest.raises(Cos2pError) as caught:
            look_at(folder)
        assert Path(name).name in str(caught.value), changed


def test_a_devices_own_model_is_checked(finished: Path, tmp_path: Path) -> None:
    file = next((finished / "devices").glob("*.safetensors"))
    open_trained(file)
    rng, copy = random.Random(0), tmp_path / file.name
    for damage in (flipped, zeroed) * 10:
        copy.write_bytes(damage(file.read_bytes(), rng))
        if copy.read_bytes() != file.read_bytes():
            with pytest.raises(Cos2pError):
                open_trained(copy)


def test_a_damaged_checkpoint_offers_the_one_before(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    file = folder / "checkpoint.safetensors"
    file.write_bytes(flipped(file.read_bytes(), random.Random(1)))
    longer = small(schedule={"rounds": 5}, run={"device_models": 10**6})
    with pytest.raises(RunError, match=r"is damaged.*mv .*checkpoint-before\.safetensors") as caught:
        run(longer, folder, resume=True)
    assert str(the_one_before(file)) in str(caught.value)
    the_one_before(file).replace(file)
    from_before = run(longer, folder, resume=True)
    expected = run(longer, tmp_path / "at once")
    assert from_before["top1"] == expected["top1"]
    assert (folder / "weights.safetensors").read_bytes() == (tmp_path / "at once" / "weights.safetensors").read_bytes()
    the_one_before(file).unlink()
    file.write_bytes(b"")
    with pytest.raises(RunError, match="start again with --overwrite"):
        Checkpoint.read(file)


def test_a_kit_whose_files_are_damaged_does_not_open(tmp_path: Path) -> None:
    for name in ("client.key", "fed_client.json"):
        (tmp_path / name).write_text(f"the content of {name} " * 9)
    note_folder(tmp_path)
    check_folder(tmp_path)
    (tmp_path / "client.key").write_bytes(flipped((tmp_path / "client.key").read_bytes(), random.Random(0)))
    with pytest.raises(RunError, match=r"client\.key is damaged"):
        check_folder(tmp_path)

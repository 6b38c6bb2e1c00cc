from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from cos2p.errors import RunError
from cos2p.tracking.checkpoint import BackgroundWriter, Checkpoint, Snapshot


class Slow(Snapshot):
    """Writes when it is told to."""

    go: threading.Event

    def write(self, path: Path) -> None:
        assert self.go.wait(60)
        super().write(path)


def slow(checkpoint: Checkpoint) -> tuple[Slow, threading.Event]:
    plain = checkpoint.snapshot({"sums"})
    made, go = Slow(plain.meta, plain.tensors), threading.Event()
    object.__setattr__(made, "go", go)
    return made, go


def test_what_happens_after_the_snapshot_is_not_in_it(tmp_path: Path) -> None:
    """A version never changes and is not copied; sums grow in place, values are lists that go on."""
    values, version, total = {"trained": [1, 2]}, torch.zeros(3), torch.ones(2)
    snapshot, go = slow(Checkpoint(values, {"version.1": {"w": version}, "sums": {"w": total}}))
    assert snapshot.tensors["t0"] is version
    writer, path = BackgroundWriter(), tmp_path / "checkpoint"
    writer.write(snapshot, path)
    assert writer.busy
    total += 5
    values["trained"].append(3)
    assert not path.exists()
    go.set()
    writer.wait()
    assert not writer.busy
    read = Checkpoint.read(path)
    assert read.values == {"trained": [1, 2]}
    assert read.groups["sums"]["w"].tolist() == [1.0, 1.0]
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]


def test_what_goes_wrong_is_told_once_and_the_old_file_stays(tmp_path: Path) -> None:
    writer, path = BackgroundWriter(), tmp_path / "there" / "checkpoint"
    writer.write(Checkpoint({}).snapshot(), path)
    with pytest.raises(RunError, match="checkpoint"):
        writer.wait()
    writer.wait()

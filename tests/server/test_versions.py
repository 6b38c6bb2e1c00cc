from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cos2p.server.orders import Versions


def test_versions_are_kept_as_long_as_they_are_needed() -> None:
    shared = torch.ones(2)
    versions = Versions({"a": torch.zeros(1), "b": shared})
    versions.advance({"a": torch.ones(1), "b": shared})
    versions.advance({"a": torch.full((1,), 2.0), "b": shared})
    assert (versions.current, versions.held) == (2, (0, 1, 2))
    assert versions.weights["a"].item() == 2.0
    assert versions[0]["b"] is versions[2]["b"]
    versions.forget(1)
    versions.forget(2)  # the current one stays
    assert versions.held == (0, 2)
    versions.forget(0)
    assert versions.held == (2,)
    with pytest.raises(KeyError):
        versions[0]


def test_older_versions_can_be_put_back() -> None:
    versions = Versions({"a": torch.ones(1)}, version=5)
    versions.restore(3, {"a": torch.zeros(1)})
    assert (versions.current, versions.held) == (5, (3, 5))
    assert versions[3]["a"].item() == 0.0
    assert versions.weights["a"].item() == 1.0


def test_of_a_large_model_older_versions_are_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0 and 1 share b, which version 2 changes: both then have it from the same file."""
    monkeypatch.setattr("cos2p.server.orders.SPOOLED_BYTES", 0)
    first = {"a": torch.zeros(4), "b": torch.arange(4.0), "c": torch.ones(1)}
    versions = Versions(first, spool=tmp_path)
    versions.advance(first | {"a": torch.ones(4)})
    assert versions[0]["b"] is versions[1]["b"] is first["b"]
    assert versions[0]["a"] is not first["a"]
    versions.advance(versions.weights | {"b": torch.zeros(4)})
    assert versions[0]["b"] is versions[1]["b"] is not first["b"]
    assert versions[0]["c"] is versions[2]["c"] is first["c"]
    assert [versions[v]["a"].tolist() for v in (0, 1, 2)] == [[0.0] * 4, [1.0] * 4, [1.0] * 4]
    assert [versions[v]["b"].tolist() for v in (0, 1, 2)] == [[0.0, 1.0, 2.0, 3.0]] * 2 + [[0.0] * 4]
    assert not list(tmp_path.iterdir())


def test_a_version_nobody_was_given_is_not_kept() -> None:
    versions = Versions({"a": torch.zeros(1)})
    versions.advance({"a": torch.ones(1)}, keep=False)
    assert versions.held == (1,)

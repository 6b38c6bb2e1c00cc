from __future__ import annotations

import pytest
import torch

from cos2p.aggregation.versions import Versions


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

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def shared_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the real data sets; recipes find it through COS2P_DATA."""
    folder = Path(os.environ.get("COS2P_DATA") or _REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("no real data sets: set COS2P_DATA to the folder that holds them")
    monkeypatch.setenv("COS2P_DATA", str(folder))
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and no data folder next to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COS2P_DATA", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that nobody wrote to yet."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "cos2p"

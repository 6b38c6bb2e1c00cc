from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.data import paths
from cos2p.errors import DataError


def test_the_current_folder_comes_before_the_data_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = here / "data"
    (data / "set").mkdir(parents=True)
    (data / "set" / "a.csv").write_text("far")
    (data / "set" / "b.csv").write_text("far")
    (here / "set").mkdir()
    (here / "set" / "a.csv").write_text("near")
    monkeypatch.setenv("COS2P_DATA", str(data))

    assert paths.find("set", "a.csv").read_text() == "near"
    assert paths.find("set", "b.csv").read_text() == "far"


def test_home_and_variables_are_expanded(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a.csv").write_text("x")
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("WHERE_DATA_IS", str(here))

    assert paths.find("~", "a.csv") == here / "a.csv"
    assert paths.find("${WHERE_DATA_IS}", "a.csv") == here / "a.csv"
    assert paths.find("$WHERE_DATA_IS/a.csv") == here / "a.csv"


def test_a_variable_that_is_not_set_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)

    with pytest.raises(DataError, match="variable NOT_SET_ANYWHERE, which is not set"):
        paths.find("${NOT_SET_ANYWHERE}/x")


def test_a_missing_file_says_where_it_was_looked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="set the environment variable COS2P_DATA") as nowhere:
        paths.find("set", "a.csv")
    assert str(here / "set" / "a.csv") in str(nowhere.value)

    monkeypatch.setenv("COS2P_DATA", "/somewhere/else")
    with pytest.raises(DataError, match=r"or /somewhere/else/set/a\.csv; check data\.path and"):
        paths.find("set", "a.csv")
    with pytest.raises(DataError, match=r"no data at /no/such/file; check data\.path$"):
        paths.find("/no/such/file")


def test_a_pattern_finds_all_shards_in_order(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train-1.parquet", "train-0.parquet", "test-0.parquet"):
        (here / name).touch()

    assert [file.name for file in paths.find_all("", "train-*.parquet")] == ["train-0.parquet", "train-1.parquet"]
    assert [file.name for file in paths.find_all("", "test-0.parquet")] == ["test-0.parquet"]
    with pytest.raises(DataError, match=r"valid-\*\.parquet"):
        paths.find_all("", "valid-*.parquet")
    monkeypatch.setenv("COS2P_DATA", str(here))
    monkeypatch.chdir("/")
    assert len(paths.find_all("", "train-*.parquet")) == 2

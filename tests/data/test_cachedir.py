from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.data.paths import cache_folder, key_of, recall, remember, write_whole


def test_what_was_remembered_is_recalled(cache: Path) -> None:
    assert recall("tokens", "a") is None
    remember("tokens", "a", b"one")
    assert recall("tokens", "a") == b"one"
    assert recall("images", "a") is None
    assert [file.name for file in (cache / "tokens").iterdir()] == ["a"]


def test_a_file_is_whole_or_not_there(cache: Path) -> None:
    def fails(file: object) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        write_whole(cache / "kind" / "a", fails)
    assert list((cache / "kind").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    remember("tokens", "a", b"one")
    assert recall("tokens", "a") is None


def test_the_folder_is_the_one_of_the_standard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder("images") == tmp_path / ".cache" / "cos2p" / "images"


@given(st.lists(st.binary(max_size=3), max_size=3), st.lists(st.binary(max_size=3), max_size=3))
def test_other_parts_have_another_key(a: list[bytes], b: list[bytes]) -> None:
    """Also where the parts, written one behind the other, are the same bytes."""
    assert (key_of(*a) == key_of(*b)) == (a == b)

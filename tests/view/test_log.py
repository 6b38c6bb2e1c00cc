from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.errors import RunError
from cos2p.view import log
from cos2p.view.log import LogReader


def kinds(answer: tuple[bool, list[dict[str, object]]]) -> tuple[bool, list[object]]:
    return answer[0], [event["kind"] for event in answer[1]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_only_what_is_new_and_only_whole_lines(path: Path) -> None:
    reader = LogReader(path)
    assert kinds(reader.read()) == (False, [])  # not there yet
    path.write_text('{"kind":"a"}\n{"kind":"b"}\n{"ki')
    assert kinds(reader.read()) == (False, ["a", "b"])
    assert kinds(reader.read()) == (False, [])
    with path.open("a") as file:
        file.write('nd":"c"}\n')
    assert kinds(reader.read()) == (False, ["c"])


def test_a_log_that_was_cut_back_is_read_from_the_start(path: Path) -> None:
    reader = LogReader(path)
    path.write_text('{"kind":"a"}\n{"kind":"b"}\n')
    reader.read()
    path.write_text('{"kind":"a"}\n')
    assert kinds(reader.read()) == (True, ["a"])


def test_cut_back_and_grown_again_between_two_looks(path: Path) -> None:
    reader = LogReader(path)
    path.write_text('{"kind":"a"}\n{"kind":"b","t":1}\n')
    reader.read()
    path.write_text('{"kind":"a"}\n{"kind":"b","t":2}\n{"kind":"c"}\n')
    assert kinds(reader.read()) == (True, ["a", "b", "c"])


def test_a_replaced_and_a_deleted_log(path: Path) -> None:
    reader = LogReader(path)
    path.write_text('{"kind":"a"}\n')
    reader.read()
    path.unlink()
    assert kinds(reader.read()) == (True, [])
    assert kinds(reader.read()) == (False, [])
    path.write_text('{"kind":"b"}\n')
    assert kinds(reader.read()) == (False, ["b"])


def test_a_long_log_comes_in_pieces_of_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PIECE", 40)
    path.write_text("".join(f'{{"kind":"e{number}"}}\n' for number in range(10)) + '{"kind":"half')
    reader, seen, shares = LogReader(path), [], []
    for _ in range(10):
        seen += kinds(reader.read())[1]
        shares.append(reader.read_share)
    assert seen == [f"e{number}" for number in range(10)]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] == 1.0


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"t":1}', '{"kind":3}'])
def test_damage_is_named_with_its_line(path: Path, line: str) -> None:
    path.write_text('{"kind":"a"}\n' + line + "\n")
    with pytest.raises(RunError, match=r"events\.jsonl, line 2 is not .*damaged"):
        LogReader(path).read()

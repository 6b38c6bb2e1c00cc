from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.errors import RunError
from cos2p.tracking.event_kinds import Event, Joined
from cos2p.tracking.events import event_line
from cos2p.view import log
from cos2p.view.log import LogReader


def lines(*clients: str, t: float = 0.0) -> str:
    return "".join(event_line(Joined(client=client, t=t)) + "\n" for client in clients)


def clients(answer: tuple[bool, list[Event]]) -> tuple[bool, list[str]]:
    return answer[0], [event.client for event in answer[1] if isinstance(event, Joined)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_only_what_is_new_and_only_whole_lines(path: Path) -> None:
    reader = LogReader(path)
    assert clients(reader.read()) == (False, [])  # not there yet
    whole = lines("a", "b", "c")
    path.write_text(whole[:-20])
    assert clients(reader.read()) == (False, ["a", "b"])
    assert clients(reader.read()) == (False, [])
    with path.open("a") as file:
        file.write(whole[-20:])
    assert clients(reader.read()) == (False, ["c"])


def test_a_log_that_was_cut_back_is_read_from_the_start(path: Path) -> None:
    reader = LogReader(path)
    path.write_text(lines("a", "b"))
    reader.read()
    path.write_text(lines("a"))
    assert clients(reader.read()) == (True, ["a"])


def test_cut_back_and_grown_again_between_two_looks(path: Path) -> None:
    reader = LogReader(path)
    path.write_text(lines("a") + lines("b", t=1))
    reader.read()
    path.write_text(lines("a") + lines("b", t=2) + lines("c"))
    assert clients(reader.read()) == (True, ["a", "b", "c"])


def test_a_replaced_and_a_deleted_log(path: Path) -> None:
    reader = LogReader(path)
    path.write_text(lines("a"))
    reader.read()
    path.unlink()
    assert clients(reader.read()) == (True, [])
    assert clients(reader.read()) == (False, [])
    path.write_text(lines("b"))
    assert clients(reader.read()) == (False, ["b"])


def test_a_long_log_comes_in_pieces_of_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PIECE", 40)
    path.write_text(lines(*(f"e{number}" for number in range(10))) + '{"kind":"half')
    reader, seen, shares = LogReader(path), [], []
    for _ in range(10):
        seen += clients(reader.read())[1]
        shares.append(reader.read_share)
    assert seen == [f"e{number}" for number in range(10)]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] == 1.0


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"t":1}', '{"kind":3}'])
def test_damage_is_named_with_its_line(path: Path, line: str) -> None:
    path.write_text(lines("a") + line + "\n")
    with pytest.raises(RunError, match=r"events\.jsonl, line 2 is not .*damaged"):
        LogReader(path).read()

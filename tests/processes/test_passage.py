"""Bytes that go through memory which two processes share. Both ends are one object here; processes: `test_pool`."""

from __future__ import annotations

import os
import pickle
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.processes import passage
from cos2p.processes.passage import Common, Passage, Pieces

PIECES = st.lists(st.binary(max_size=40), max_size=4)


def passed(way: Passage, value: Any) -> Any:
    return way.unpacked(way.packed(value))


@given(st.lists(st.lists(st.tuples(st.booleans(), PIECES), max_size=3)), st.booleans(), st.sampled_from([20, 2**25]))
def test_whatever_is_sent_arrives_as_bytes(
    messages: list[list[tuple[bool, list[bytes]]]], nameless: bool, most: int
) -> None:
    way = Passage() if nameless else Passage(-1)
    before, passage.MOST = passage.MOST, most
    try:
        for message in messages:
            sent = [Common(pieces) if common else Pieces(pieces) for common, pieces in message]
            for _ in range(2):
                assert passed(way, sent) == [b"".join(pieces) for _, pieces in message]
    finally:
        passage.MOST = before
        way.close()


def test_what_messages_have_in_common_is_sent_once() -> None:
    way = Passage()
    large: list[passage.Buffer] = [b"a" * 1000, memoryview(b"b" * 1000)]
    first, second = (passed(way, (number, Common(large))) for number in range(2))
    assert first == (0, b"a" * 1000 + b"b" * 1000)
    assert second[1] is first[1]
    assert passed(way, Common([b"other"])) == b"other"
    assert passed(way, Common(large)) == first[1]


def test_a_message_that_cannot_be_packed_was_not_sent() -> None:
    way, common = Passage(), Common([b"new"])
    assert passed(way, Common([b"old"])) == b"old"
    with pytest.raises((pickle.PicklingError, AttributeError)):
        way.packed((common, lambda: None))
    assert passed(way, common) == b"new"


def test_memory_grows_with_the_messages() -> None:
    way = Passage()
    for size in (10, 10_000, 100, 5_000_000):
        assert passed(way, Pieces([b"x" * size, b"y"])) == b"x" * size + b"y"
        assert len(bytes(way.packed(Pieces([b"x" * size])))) < 100, "it is part of the message"


def test_without_room_bytes_are_part_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    way = Passage()
    assert len(bytes(way.packed(Pieces([b"x" * 1000])))) > 1000
    assert passed(way, Pieces([b"x" * 1000])) == b"x" * 1000


def test_elsewhere_they_are_pickled_as_bytes() -> None:
    assert pickle.loads(pickle.dumps(Pieces([b"a", memoryview(b"b")]))) == b"ab"


def test_nothing_is_left_when_it_is_closed() -> None:
    open_files = psutil.Process().num_fds()
    way = Passage()
    assert passed(way, Pieces([b"x" * 100_000])) == b"x" * 100_000
    way.close()
    way.close()
    assert psutil.Process().num_fds() == open_files
    assert passed(way, Pieces([b"x"])) == b"x"

"""Frames and payloads: what goes in comes out, and nothing larger than agreed is ever taken."""

from __future__ import annotations

import hashlib
import resource
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.errors import UpdateRefused
from cos2p.fleet.server.transfers import Transfers
from cos2p.fleet.spool import Incoming, LinkCounts, Notice, Outgoing, clean, digest_of_file
from cos2p.fleet.wire import CHUNK_BYTES, HEAD_BYTES, LEAST_CHUNK, MESSAGE_BYTES, BadFrame, ChunkSize, pack, unpack


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.binary(max_size=1000))
def test_a_frame_is_what_was_packed(head: dict[str, object], body: bytes) -> None:
    read, rest = unpack(pack(head, body))
    assert (read, bytes(rest)) == (head, body)


@given(st.binary(max_size=200))
def test_any_other_bytes_are_no_frame_or_a_small_one(data: bytes) -> None:
    try:
        head, body = unpack(data)
    except BadFrame:
        return
    assert isinstance(head, dict)
    assert len(body) <= len(data)


@given(st.dictionaries(st.text(), st.text(), min_size=1), st.binary(max_size=50), st.data())
def test_a_frame_cut_off_in_its_head_is_refused(head: dict[str, str], body: bytes, data: st.DataObject) -> None:
    frame = pack(head, body)
    cut = data.draw(st.integers(0, 3 + int.from_bytes(frame[:4], "big")))
    with pytest.raises(BadFrame):
        unpack(frame[:cut])


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_heads_that_claim_more_than_there_may_be_are_refused_unread() -> None:
    for frame in (b"\xff\xff\xff\xff{}", (HEAD_BYTES + 1).to_bytes(4, "big") + b" " * (HEAD_BYTES + 1)):
        with pytest.raises(BadFrame, match="truncated, or no frame"):
            unpack(frame)
    with pytest.raises(BadFrame, match="at most"):
        unpack(b"\0\0\0\2{}" + b"x" * (CHUNK_BYTES + 1))
    with pytest.raises(BadFrame, match="not JSON"):
        unpack(b"\0\0\0\2{]")
    with pytest.raises(BadFrame, match="not an object"):
        unpack(b"\0\0\0\2[]")
    with pytest.raises(ValueError, match="at most"):
        pack({}, b"x" * (CHUNK_BYTES + 1))


def test_the_largest_frame_fits_the_largest_message() -> None:
    assert len(pack({"x": "y" * (HEAD_BYTES - 8)}, b"z" * CHUNK_BYTES)) < MESSAGE_BYTES


# ---------------------------------------------------------------- payloads


def parts(data: bytes, size: int) -> list[tuple[int, bytes]]:
    return [(offset, data[offset : offset + size]) for offset in range(0, len(data), size)]


def test_a_payload_arrives_chunk_by_chunk_and_a_repeated_chunk_does_no_harm(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    incoming = Incoming(tmp_path / "in", Notice("t", len(data), digest_of(data)), limit=len(data))
    for offset, chunk in parts(data, 1000):
        assert incoming.write(offset, chunk) == offset + len(chunk)
        assert incoming.write(offset, chunk) == offset + len(chunk)  # its acknowledgement was lost
    assert incoming.close().read_bytes() == data


@pytest.mark.parametrize(
    ("corrupt", "reason"),
    [
        (lambda d: d[:-1], "truncated: 9 of 10"),
        (lambda d: d + b"x", "more than the 10 bytes announced"),
        (lambda d: b"x" + d[1:], "not those that were announced"),
    ],
)
def test_a_payload_that_is_not_what_was_announced_is_refused(tmp_path: Path, corrupt: object, reason: str) -> None:
    notice = Notice("t", 10, digest_of(b"0123456789"))
    incoming = Incoming(tmp_path / "in", notice, limit=10)
    with pytest.raises(UpdateRefused, match=reason):
        _ = incoming.write(0, corrupt(b"0123456789")), incoming.close()  # type: ignore[operator]
    incoming.drop()
    assert not (tmp_path / "in").exists()


def test_chunks_out_of_order_and_sizes_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UpdateRefused, match="1000000000000 bytes is announced; at most 100"):
        Incoming(tmp_path / "in", Notice("t", 10**12, "d"), limit=100)
    assert not (tmp_path / "in").exists()  # refused before anything was opened
    incoming = Incoming(tmp_path / "in", Notice("t", 10, "d"), limit=100)
    with pytest.raises(UpdateRefused, match="byte 5 came where byte 0"):
        incoming.write(5, b"x")
    incoming.drop()


def test_a_chunk_that_the_disk_cannot_hold_comes_again(tmp_path: Path) -> None:
    """The server's disk was full for a while: the update is as whole as any."""
    data = bytes(range(256)) * 64
    incoming = Incoming(tmp_path / "in", Notice("pi-0#0", len(data), digest_of(data)), limit=2**20)
    assert incoming.write(0, data[:8000]) == 8000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="large"):
                incoming.write(8000, data[8000:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert incoming.write(8000, data[8000:]) == len(data)
    assert incoming.close().read_bytes() == data


def test_an_outgoing_payload_is_read_in_chunks(tmp_path: Path) -> None:
    data = b"a" * CHUNK_BYTES + b"b" * 10
    outgoing = Outgoing(tmp_path / "out", "t", lambda path: path.write_bytes(data))
    assert outgoing.notice == Notice("t", len(data), digest_of(data))
    assert outgoing.read(0) == b"a" * CHUNK_BYTES
    assert outgoing.read(CHUNK_BYTES) == b"b" * 10
    with pytest.raises(UpdateRefused, match="was asked for"):
        outgoing.read(len(data))
    assert digest_of_file(tmp_path / "out") == digest_of(data)


@pytest.mark.parametrize(
    "wrong", [{}, {"task": "t", "size": -1, "digest": ""}, {"task": 1, "size": 1, "digest": ""}, [1], "sent", None, 7]
)
def test_a_notice_from_outside_is_checked(wrong: object) -> None:
    with pytest.raises(UpdateRefused, match="task, size and digest"):
        Notice.from_dict(wrong)


# ---------------------------------------------------------------- the transfers


def put(transfers: Transfers, client: str, task: str, data: bytes, limit: int) -> Notice:
    return transfers.put(client, task, lambda path: path.write_bytes(data), limit)


def test_a_client_gets_its_own_task_and_no_other(tmp_path: Path) -> None:
    transfers = Transfers(tmp_path)
    put(transfers, "a", "a#0", b"for a", 100)
    put(transfers, "b", "b#0", b"for b", 100)
    assert transfers.fetch("a", "a#0", 0) == b"for a"
    for task in ("b#0", "a#1", "nothing"):
        with pytest.raises(UpdateRefused, match="is not a task of a"):
            transfers.fetch("a", task, 0)
    transfers.close()


def test_answers_are_taken_for_the_task_at_hand_up_to_its_limit(tmp_path: Path) -> None:
    transfers = Transfers(tmp_path)
    put(transfers, "a", "a#0", b"task", 8)
    good = Notice("a#0", 8, digest_of(b"12345678"))
    transfers.push("a", good, 0, memoryview(b"1234"))
    assert transfers.push("a", good, 4, memoryview(b"5678")) == 8
    assert transfers.take("a", good, Path.read_bytes) == b"12345678"
    with pytest.raises(UpdateRefused, match="did not come"):
        transfers.take("a", good, Path.read_bytes)  # only once
    with pytest.raises(UpdateRefused, match="at most 8"):
        transfers.push("a", Notice("a#0", 9, "d"), 0, memoryview(b"1"))
    with pytest.raises(UpdateRefused, match="does not have"):
        transfers.push("a", Notice("b#0", 1, "d"), 0, memoryview(b"1"))
    with pytest.raises(UpdateRefused, match="does not have"):
        transfers.push("stranger", good, 0, memoryview(b"1"))
    transfers.close()


def test_a_new_task_voids_the_old_one_and_half_its_answer(tmp_path: Path) -> None:
    transfers = Transfers(tmp_path)
    put(transfers, "a", "a#0", b"task", 8)
    old = Notice("a#0", 8, digest_of(b"12345678"))
    transfers.push("a", old, 0, memoryview(b"1234"))
    put(transfers, "a", "a#1", b"next", 8)
    with pytest.raises(UpdateRefused, match="does not have"):
        transfers.push("a", old, 4, memoryview(b"5678"))
    assert not list((tmp_path / "in").iterdir())
    transfers.void("a")
    with pytest.raises(UpdateRefused):
        transfers.fetch("a", "a#1", 0)
    assert not list((tmp_path / "out").iterdir())


def test_traffic_is_counted_by_client_and_tensors_apart_from_the_rest(tmp_path: Path) -> None:
    transfers = Transfers(tmp_path)
    payload = safetensors.torch.save({"x": torch.zeros(250_000)})
    notice = put(transfers, "a", "a#0", payload, 2 * len(payload))
    transfers.fetch("a", "a#0", 0)
    transfers.push("a", notice, 0, memoryview(payload))
    transfers.take("a", notice, Path.read_bytes)
    transfers.count("a", received=1_010_000, sent=1_020_000)
    counted = {"tensors_down": 1_000_000, "tensors_up": 1_000_000, "wire_down": 1_020_000, "wire_up": 1_010_000}
    assert transfers.traffic.of("a") == counted
    assert transfers.traffic.of("b") == dict.fromkeys(counted, 0)
    put(transfers, "a", "a#1", payload, 0)  # never fetched: nothing travelled
    again = LinkCounts()
    again.load_dict(transfers.traffic.to_dict())
    assert again.to_dict() == {"a": counted}
    transfers.close()


def test_frames_add_less_than_a_thousandth_to_full_chunks() -> None:
    """All that travels for a chunk each way, but for NVFlare's own envelope."""
    task = {"task": "device-12#1234", "offset": 10**9}
    heads = (task, {}, task | {"size": 10**9, "digest": "0" * 64}, {"received": 10**9})
    assert sum(len(pack(head)) for head in heads) < 0.001 * CHUNK_BYTES


def test_what_an_earlier_process_left_is_cleaned_away(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "old").write_bytes(b"x")
    assert not list(clean(tmp_path / "in").iterdir())


@pytest.mark.parametrize("rate", [2_000.0, 8_000.0, 200_000.0, 1e8])
def test_chunks_follow_the_measured_rate_and_one_that_is_lost_makes_the_next_smaller(rate: float) -> None:
    size = ChunkSize()
    for _ in range(20):
        size.moved(size.bytes, size.bytes / rate)
    assert size.rate == pytest.approx(rate)
    assert size.bytes == min(CHUNK_BYTES, max(LEAST_CHUNK, int(5 * rate)))
    before = size.bytes
    size.failed()
    assert size.bytes == max(LEAST_CHUNK, before // 2)


def test_a_client_with_a_slow_link_asks_for_small_chunks(tmp_path: Path) -> None:
    outgoing = Outgoing(tmp_path / "task", "t", lambda path: path.write_bytes(bytes(3 * CHUNK_BYTES)))
    assert len(outgoing.read(0, 1000)) == 1000
    assert len(outgoing.read(0, 9 * CHUNK_BYTES)) == CHUNK_BYTES

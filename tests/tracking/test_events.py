from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p.errors import RunError
from cos2p.tracking import EventLog, read_events
from cos2p.tracking.event_kinds import KINDS, Evaluated, Event, Joined, Merged, Traffic
from tests.events import event as made

LINE_A, LINE_B = (b'{"client":"%b","kind":"joined","t":0.0}\n' % name for name in (b"a", b"b"))

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def reported(client: str, t: float = 0.0) -> Event:
    return Joined(client=client, t=t)


def clients(path: Path) -> list[str]:
    return [event.client for event in read_events(path) if isinstance(event, Joined)]


class TestWrite:
    def test_one_sorted_object_per_line_and_what_is_inside_stays_in_its_order(self, path: Path) -> None:
        with closing(EventLog(path)) as log:
            log.write(Traffic(client="pi-1", tensors_down=1, tensors_up=2, wire_down=3, wire_up=4))
            log.write(Evaluated(t=1.5, version=1, test={"2": {"top1": 0.5}, "10": {"top1": 1.0}}))
        assert path.read_text() == (
            '{"client":"pi-1","kind":"traffic","t":0.0,"tensors_down":1,"tensors_up":2,"wire_down":3,"wire_up":4,'
            '"crc":"68197cc6"}\n'
            '{"kind":"evaluated","t":1.5,"test":{"2":{"top1":0.5},"10":{"top1":1.0}},"version":1,"crc":"4db20189"}\n'
        )

    @settings(max_examples=60)
    @given(report=st.dictionaries(st.text(min_size=1), values), client=st.text(), t=st.floats(0, 1e9))
    def test_round_trip(self, report: dict[str, Any], client: str, t: float) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "events.jsonl"
            event = made("merged", t, client=client, report=report)
            with closing(EventLog(path)) as log:
                log.write(event)
            assert list(read_events(path)) == [event]
            assert path.read_bytes().count(b"\n") == 1

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_comes_back_as_it_was(self, path: Path, kind: str) -> None:
        event = made(kind, 2.5)
        with closing(EventLog(path)) as log:
            log.write(event)
        assert list(read_events(path)) == [event]

    def test_numbers_that_are_not_finite_are_null(self, path: Path) -> None:
        report = {"a": math.nan, "b": [math.inf, 1.5], "c": {"d": -math.inf}}
        with closing(EventLog(path)) as log:
            log.write(made("merged", report=report))
        (event,) = read_events(path)
        assert isinstance(event, Merged)
        assert event.report == {"a": None, "b": [None, 1.5], "c": {"d": None}}

    def test_numpy_and_torch_are_numbers(self, path: Path) -> None:
        report = {
            "a": np.float32(0.1),
            "b": np.int64(3),
            "c": torch.tensor(2.5),
            "d": np.array([1, 2]),
            "e": np.float64("nan"),
            "f": (1, 2),
            "g": {3: "x"},
            "h": np.bool_(True),
            "i": {2, 1},
            "j": Path("a/b"),
        }
        with closing(EventLog(path)) as log:
            log.write(made("merged", report=report))
        (event,) = read_events(path)
        assert isinstance(event, Merged)
        assert event.report == {
            "a": float(np.float32(0.1)),
            "b": 3,
            "c": 2.5,
            "d": [1, 2],
            "e": None,
            "f": [1, 2],
            "g": {"3": "x"},
            "h": True,
            "i": [1, 2],
            "j": "a/b",
        }

    def test_strings_cannot_break_out_of_their_line(self, path: Path) -> None:
        nasty = 'a"\n{"kind":"fake"}\u2028\x00\ud800é'
        with closing(EventLog(path)) as log:
            log.write(reported(nasty))
        assert clients(path) == [nasty]

    def test_other_objects_are_named(self, path: Path) -> None:
        with closing(EventLog(path)) as log, pytest.raises(TypeError, match=r"'report\.b' is a object"):
            log.write(made("merged", report={"b": object()}))
        assert path.read_bytes() == b""

    def test_each_line_is_readable_at_once(self, path: Path) -> None:
        with closing(EventLog(path)) as log:
            log.write(reported("first"))
            assert clients(path) == ["first"]

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="no such file or folder"):
            EventLog(tmp_path / "missing" / "events.jsonl")

    def test_disk_full_leaves_whole_lines(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real_write, room = os.write, 5

        def write(descriptor: int, data: memoryview) -> int:
            nonlocal room
            if not room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = real_write(descriptor, data[:room])
            room -= written
            return written

        with closing(EventLog(path)) as log:
            log.write(reported("first"))
            monkeypatch.setattr(os, "write", write)
            with pytest.raises(RunError, match=r"events\.jsonl: the disk is full; free some space.*--resume"):
                log.write(reported("second"))
            monkeypatch.undo()
            log.write(reported("third"))
            assert log.offset() == path.stat().st_size
        assert len(path.read_bytes().splitlines()) == 2
        assert clients(path) == ["first", "third"]


class TestResume:
    def test_goes_back_to_the_checkpoint(self, path: Path) -> None:
        with closing(EventLog(path)) as log:
            log.write(reported("before"))
            offset = log.offset()
            log.write(reported("after"))
        with path.open("ab") as file:
            file.write(b'{"kind":"to')  # torn
        with closing(EventLog(path, offset)) as log:
            assert log.offset() == offset
            log.write(reported("again"))
        assert clients(path) == ["before", "again"]

    def test_from_the_very_beginning(self, path: Path) -> None:
        with closing(EventLog(path, 0)) as log:
            log.write(reported("a"))
        assert clients(path) == ["a"]

    def test_a_file_shorter_than_its_checkpoint(self, path: Path) -> None:
        path.write_bytes(b'{"kind":"a"}\n')
        with pytest.raises(RunError, match="has 13 bytes but its checkpoint counts 99"):
            EventLog(path, 99)
        assert path.read_bytes() == b'{"kind":"a"}\n'

    def test_an_offset_inside_a_line(self, path: Path) -> None:
        path.write_bytes(b'{"kind":"a"}\n')
        with pytest.raises(RunError, match="byte 5 is not the end of an event"):
            EventLog(path, 5)
        assert path.read_bytes() == b'{"kind":"a"}\n'

    def test_a_killed_writer_loses_no_finished_line(self, path: Path) -> None:
        program = (
            "import sys; from cos2p.tracking import EventLog; from cos2p.tracking.event_kinds import Failed\n"
            "log = EventLog(sys.argv[1]); n = 0\n"
            "while True:\n"
            "    log.write(Failed(t=n, client='n', task='', reason='x' * 5000)); n += 1\n"
            "    print(n, flush=True) if n == 20 else None\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        finished = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        numbers = [event.t for event in read_events(path)]
        assert len(numbers) >= finished
        assert numbers == list(range(len(numbers)))


class TestRead:
    def test_torn_last_line_is_skipped(self, path: Path) -> None:
        path.write_bytes(LINE_A + LINE_B[:-1])
        assert clients(path) == ["a"]

    @pytest.mark.parametrize("damage", [b"{\n", b"\n", b"[1]\n", b"\xff\xfe\n"])
    def test_damage_elsewhere_is_named(self, path: Path, damage: bytes) -> None:
        path.write_bytes(LINE_A + damage + LINE_B)
        events = read_events(path)
        assert next(events) == reported("a")
        with pytest.raises(RunError, match=r"events\.jsonl, line 2 is not "):
            next(events)

    def test_missing_file(self, path: Path) -> None:
        with pytest.raises(RunError, match="no such file"):
            list(read_events(path))

    def test_is_plain_json_lines(self, path: Path) -> None:
        with closing(EventLog(path)) as log:
            log.write(reported("x", 0.1))
        assert [json.loads(line) for line in path.read_text().splitlines()] == [
            {"kind": "joined", "client": "x", "t": 0.1, "crc": "2cf442ef"}
        ]

    def test_kinds_of_other_versions_are_left_out(self, path: Path) -> None:
        path.write_bytes(LINE_A + b'{"kind":"invented tomorrow","t":1}\n' + LINE_B.replace(b"0.0", b'0.0,"more":1'))
        assert clients(path) == ["a", "b"]

    def test_an_event_without_its_fields_is_damage(self, path: Path) -> None:
        path.write_bytes(b'{"kind":"joined","t":1}\n')
        with pytest.raises(RunError, match=r"line 1 is not as cos2p writes it \(an event 'joined' without 'client'\)"):
            list(read_events(path))

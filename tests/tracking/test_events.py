from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
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

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


class TestWrite:
    def test_one_sorted_object_per_line(self, path: Path) -> None:
        with EventLog(path) as log:
            log.write("task", client="pi-1", bytes=3)
            log.write("merge")
        assert path.read_bytes() == b'{"bytes":3,"client":"pi-1","kind":"task"}\n{"kind":"merge"}\n'

    @settings(max_examples=60)
    @given(fields=st.dictionaries(st.text(min_size=1).filter(lambda n: n not in ("kind", "self")), values))
    def test_round_trip(self, fields: dict[str, Any]) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "events.jsonl"
            with EventLog(path) as log:
                log.write("any", **fields)
            (event,) = read_events(path)
            assert event == {"kind": "any", **fields}
            assert path.read_bytes().count(b"\n") == 1

    def test_numbers_that_are_not_finite_are_null(self, path: Path) -> None:
        with EventLog(path) as log:
            log.write("loss", a=math.nan, b=[math.inf, 1.5], c={"d": -math.inf})
        assert list(read_events(path)) == [{"kind": "loss", "a": None, "b": [None, 1.5], "c": {"d": None}}]

    def test_numpy_and_torch_are_numbers(self, path: Path) -> None:
        with EventLog(path) as log:
            log.write(
                "n",
                a=np.float32(0.1),
                b=np.int64(3),
                c=torch.tensor(2.5),
                d=np.array([1, 2]),
                e=np.float64("nan"),
                f=(1, 2),
                g={3: "x"},
                h=np.bool_(True),
                i={2, 1},
                j=Path("a/b"),
            )
        (event,) = read_events(path)
        assert event == {
            "kind": "n",
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
        with EventLog(path) as log:
            log.write("name", client=nasty)
        (event,) = read_events(path)
        assert event["client"] == nasty

    def test_other_objects_are_named(self, path: Path) -> None:
        with EventLog(path) as log, pytest.raises(TypeError, match=r"'a\.b' is a object"):
            log.write("x", a={"b": object()})
        assert path.read_bytes() == b""

    def test_each_line_is_readable_at_once(self, path: Path) -> None:
        with EventLog(path) as log:
            log.write("first")
            assert [event["kind"] for event in read_events(path)] == ["first"]

    def test_an_existing_file_is_not_touched(self, path: Path) -> None:
        path.write_text("precious")
        with pytest.raises(RunError, match="already exists; go on with it by --resume"):
            EventLog(path)
        assert path.read_text() == "precious"

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

        with EventLog(path) as log:
            log.write("first")
            monkeypatch.setattr(os, "write", write)
            with pytest.raises(RunError, match=r"events\.jsonl: the disk is full; free some space.*--resume"):
                log.write("second")
            monkeypatch.undo()
            log.write("third")
            assert log.offset() == path.stat().st_size
        assert path.read_text() == '{"kind":"first"}\n{"kind":"third"}\n'


class TestResume:
    def test_goes_back_to_the_checkpoint(self, path: Path) -> None:
        with EventLog(path) as log:
            log.write("before")
            offset = log.offset()
            log.write("after")
        with path.open("ab") as file:
            file.write(b'{"kind":"to')  # torn
        with EventLog.resume(path, offset) as log:
            assert log.offset() == offset
            log.write("again")
        assert [event["kind"] for event in read_events(path)] == ["before", "again"]

    def test_without_offset_keeps_whole_lines(self, path: Path) -> None:
        path.write_bytes(b'{"kind":"a"}\n{"kind":"b"}\n{"ki')
        with EventLog.resume(path) as log:
            log.write("c")
        assert [event["kind"] for event in read_events(path)] == ["a", "b", "c"]

    def test_from_the_very_beginning(self, path: Path) -> None:
        with EventLog.resume(path, 0) as log:
            log.write("a")
        assert [event["kind"] for event in read_events(path)] == ["a"]

    def test_a_file_shorter_than_its_checkpoint(self, path: Path) -> None:
        path.write_bytes(b'{"kind":"a"}\n')
        with pytest.raises(RunError, match="has 13 bytes but its checkpoint counts 99"):
            EventLog.resume(path, 99)
        assert path.read_bytes() == b'{"kind":"a"}\n'

    def test_an_offset_inside_a_line(self, path: Path) -> None:
        path.write_bytes(b'{"kind":"a"}\n')
        with pytest.raises(RunError, match="byte 5 is not the end of an event"):
            EventLog.resume(path, 5)
        assert path.read_bytes() == b'{"kind":"a"}\n'

    def test_a_killed_writer_loses_no_finished_line(self, path: Path) -> None:
        program = (
            "import sys; from cos2p.tracking.events import EventLog\n"
            "log = EventLog(sys.argv[1]); n = 0\n"
            "while True:\n"
            "    log.write('n', n=n, filler='x' * 5000); n += 1\n"
            "    print(n, flush=True) if n == 20 else None\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        finished = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        numbers = [event["n"] for event in read_events(path)]
        assert len(numbers) >= finished
        assert numbers == list(range(len(numbers)))


class TestRead:
    def test_torn_last_line_is_skipped(self, path: Path) -> None:
        path.write_bytes(b'{"kind":"a"}\n{"kind":"b"}')
        assert [event["kind"] for event in read_events(path)] == ["a"]

    @pytest.mark.parametrize("damage", [b"{\n", b"\n", b"[1]\n", b"\xff\xfe\n"])
    def test_damage_elsewhere_is_named(self, path: Path, damage: bytes) -> None:
        path.write_bytes(b'{"kind":"a"}\n' + damage + b'{"kind":"b"}\n')
        events = read_events(path)
        assert next(events) == {"kind": "a"}
        with pytest.raises(RunError, match=r"events\.jsonl, line 2 is not "):
            next(events)

    def test_missing_file(self, path: Path) -> None:
        with pytest.raises(RunError, match="no such file"):
            list(read_events(path))

    def test_is_plain_json_lines(self, path: Path) -> None:
        with EventLog(path) as log:
            log.write("x", value=0.1)
        assert [json.loads(line) for line in path.read_text().splitlines()] == [{"kind": "x", "value": 0.1}]

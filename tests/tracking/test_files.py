from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cos2p.errors import RunError
from cos2p.tracking.files import MARKER, explained, keep_figures, prepare_folder, write_atomic


def names(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir())


class TestWriteAtomic:
    @pytest.mark.parametrize("old", [None, b"old and longer than the new"])
    def test_writes_and_replaces(self, tmp_path: Path, old: bytes | None) -> None:
        path = tmp_path / "result.json"
        if old is not None:
            path.write_bytes(old)
        write_atomic(path, b"new")
        assert path.read_bytes() == b"new"
        assert names(tmp_path) == ["result.json"]

    def test_takes_a_view(self, tmp_path: Path) -> None:
        write_atomic(tmp_path / "blob", memoryview(b"abcdef")[2:4])
        assert (tmp_path / "blob").read_bytes() == b"cd"

    @pytest.mark.parametrize("moment", ["fsync", "replace"])
    def test_a_failure_keeps_the_old_content(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
    ) -> None:
        path = tmp_path / "checkpoint"
        path.write_bytes(b"old")

        def fail(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, moment, fail)
        with pytest.raises(RunError, match="checkpoint: the disk is full; free some space, then go on with --resume"):
            write_atomic(path, b"new")
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["checkpoint"]

    def test_a_real_limit(self, tmp_path: Path) -> None:
        path = tmp_path / "checkpoint"
        path.write_bytes(b"old")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(RunError, match="checkpoint: the file is larger than this system allows"):
                write_atomic(path, b"x" * 100_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == b"old"
        assert names(tmp_path) == ["checkpoint"]

    def test_syncs_the_file_before_and_the_folder_after_the_rename(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[str] = []
        real_sync, real_replace = os.fsync, os.replace

        def sync(descriptor: int) -> None:
            done.append("folder" if Path(f"/proc/self/fd/{descriptor}").resolve() == tmp_path.resolve() else "file")
            real_sync(descriptor)

        def replace(source: Any, target: Any) -> None:
            done.append("rename")
            real_replace(source, target)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", replace)
        write_atomic(tmp_path / "f", b"x")
        assert done == ["file", "rename", "folder"]

    def test_a_folder_that_cannot_be_synced_is_accepted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real_sync = os.fsync

        def sync(descriptor: int) -> None:
            if Path(f"/proc/self/fd/{descriptor}").resolve() == tmp_path.resolve():
                raise OSError(errno.EINVAL, "Invalid argument")
            real_sync(descriptor)

        monkeypatch.setattr(os, "fsync", sync)
        write_atomic(tmp_path / "f", b"x")
        assert (tmp_path / "f").read_bytes() == b"x"

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="no such file or folder"):
            write_atomic(tmp_path / "missing" / "f", b"x")

    def test_readers_and_a_kill_only_ever_find_a_whole_content(self, tmp_path: Path) -> None:
        path = tmp_path / "f"
        program = (
            "import sys; from cos2p.tracking.files import write_atomic\n"
            "print('go', flush=True)\n"
            "while True:\n"
            "    for letter in (b'a', b'b'): write_atomic(sys.argv[1], letter * 300_000)\n"
        )
        write_atomic(path, b"a" * 300_000)
        with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(50):
                content = path.read_bytes()
                assert content in (b"a" * 300_000, b"b" * 300_000)
            process.send_signal(signal.SIGKILL)
        assert path.read_bytes() in (b"a" * 300_000, b"b" * 300_000)


class TestPrepareFolder:
    @pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
    @pytest.mark.parametrize("exists", [False, True])
    def test_new_or_empty(self, tmp_path: Path, options: dict[str, bool], exists: bool) -> None:
        folder = tmp_path / "runs" / "first"
        if exists:
            folder.mkdir(parents=True)
        assert prepare_folder(folder, **options) == folder
        assert names(folder) == [MARKER]

    def test_refuses_a_folder_with_something_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(RunError, match="not empty; go on with its run by --resume, replace it by --overwrite"):
            prepare_folder(tmp_path)

    def test_refuses_an_earlier_run(self, tmp_path: Path) -> None:
        prepare_folder(tmp_path)
        prepare_folder(tmp_path)  # nothing was learned there yet
        (tmp_path / "checkpoint.safetensors").touch()
        with pytest.raises(RunError, match="not empty"):
            prepare_folder(tmp_path)

    def test_overwrite_deletes_an_earlier_run(self, tmp_path: Path) -> None:
        folder = prepare_folder(tmp_path / "run")
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "keep").touch()
        (folder / "model").mkdir()
        (folder / "model" / "weights").touch()
        (folder / "link").symlink_to(outside)
        prepare_folder(folder, overwrite=True)
        assert names(folder) == [MARKER]
        assert names(outside) == ["keep"]

    def test_overwrite_spares_what_is_not_a_run(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(RunError, match=r"not a run folder.*was left alone"):
            prepare_folder(tmp_path, overwrite=True)
        assert names(tmp_path) == ["thesis.tex"]

    def test_overwrite_interrupted_can_be_repeated(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = prepare_folder(tmp_path / "run")
        for name in (".a", "b", "c"):
            (folder / name).touch()
        real_unlink = Path.unlink

        def unlink(self: Path, missing_ok: bool = False) -> None:
            if self.name == "c":
                raise KeyboardInterrupt
            real_unlink(self, missing_ok)

        monkeypatch.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            prepare_folder(folder, overwrite=True)
        monkeypatch.undo()
        prepare_folder(folder, overwrite=True)
        assert names(folder) == [MARKER]

    def test_resume_keeps_the_run_and_drops_torn_writes(self, tmp_path: Path) -> None:
        folder = prepare_folder(tmp_path / "run")
        (folder / "model").mkdir()
        for name in ("events.jsonl", ".checkpoint.77.cos2p-tmp", "model/.weights.77.cos2p-tmp", ".user.tmp"):
            (folder / name).touch()
        prepare_folder(folder, resume=True)
        assert names(folder) == [MARKER, ".user.tmp", "events.jsonl", "model"]
        assert names(folder / "model") == []

    def test_resume_of_something_else(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(RunError, match="not a run folder"):
            prepare_folder(tmp_path, resume=True)

    def test_both_wishes(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="choose one"):
            prepare_folder(tmp_path, overwrite=True, resume=True)

    @pytest.mark.parametrize("below", ["", "sub"])
    def test_a_file_in_the_way(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(RunError, match="is a file, not a folder; choose another folder with --out"):
            prepare_folder(tmp_path / "file" / below)

    def test_an_unwritable_folder(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write anywhere")
        with pytest.raises(RunError, match="writing is not permitted; change its permissions"):
            prepare_folder(tmp_path / "run")

    def test_a_file_system_that_refuses(self) -> None:
        with pytest.raises(RunError, match=r"^/proc/cos2p-run: "):
            prepare_folder("/proc/cos2p-run")


class TestExplained:
    @pytest.mark.parametrize(
        ("number", "words"),
        [
            (errno.ENOSPC, "the disk is full"),
            (errno.EDQUOT, "quota"),
            (errno.EACCES, "not permitted"),
            (errno.EROFS, "read-only"),
            (errno.EIO, "Input/output error; check the folder"),
        ],
    )
    def test_one_line_with_the_path(self, number: int, words: str) -> None:
        with pytest.raises(RunError) as caught, explained("runs/a"):
            raise OSError(number, os.strerror(number))
        message = str(caught.value)
        assert message.startswith("runs/a: ")
        assert words in message
        assert "\n" not in message

    def test_other_errors_pass(self) -> None:
        with pytest.raises(ZeroDivisionError), explained("runs/a"):
            _ = 1 / 0


def test_only_the_figures_of_a_run_that_is_over_are_kept(tmp_path: Path) -> None:
    over, going_on, foreign = tmp_path / "over", tmp_path / "going on", tmp_path / "foreign"
    for folder in (over, going_on):
        prepare_folder(folder)
    for folder in (over, going_on, foreign):
        (folder / "model").mkdir(parents=True)
        (folder / "checkpoint.safetensors").touch()
    for folder in (over, foreign):
        (folder / "result.json").touch()
    for folder in (over, going_on, foreign):
        keep_figures(folder)
    assert {child.name for child in over.iterdir()} == {".cos2p-run", "result.json"}
    for folder in (going_on, foreign):
        assert {child.name for child in folder.iterdir()} >= {"model", "checkpoint.safetensors"}

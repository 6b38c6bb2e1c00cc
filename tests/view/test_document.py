from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.errors import RunError
from cos2p.view.document import Sources, for_html, to_json
from tests.view.diary import Diary, two_rounds
from tests.view.test_study import write_study


def test_the_sample_has_the_fields_of_a_document(tmp_path: Path) -> None:
    """The page is tested with it."""
    sample = json.loads((Path(__file__).parent / "sample.json").read_text())
    sources = Sources([two_rounds().write(tmp_path / "run")])
    sources.refresh()
    made = sources.document()

    def fields(part: Any) -> set[str]:
        return set(part[0] if isinstance(part, list) else part)

    for part in ("header", "devices", "rounds", "updates", "lanes", "coverage", "masks", "troubles"):
        assert fields(sample["runs"][0][part]) == fields(made["runs"][0][part]), part
    assert made.keys() == sample.keys()


def test_runs_and_studies_in_one_document(tmp_path: Path) -> None:
    folders = [two_rounds().write(tmp_path / "x" / "out"), two_rounds().write(tmp_path / "y" / "out")]
    sources = Sources([*folders, write_study(tmp_path / "study", {"a": {}})])
    seen: list[str] = []
    assert sources.refresh(lambda done, total, name: seen.append(f"{done}/{total} {name}"))
    view = sources.document()
    assert [run["header"]["name"] for run in view["runs"]] == ["x/out", "y/out"]  # folders of one name are told apart
    assert [study["name"] for study in view["studies"]] == ["study"]
    assert seen == ["0/3 out", "1/3 out", "2/3 study"]
    assert not sources.refresh()


def test_the_version_changes_with_the_document_and_only_then(tmp_path: Path) -> None:
    folder = Diary().started("a").joined(0, "a").write(tmp_path / "run")
    sources = Sources([folder], live=True)
    sources.refresh()
    first = json.loads(to_json(sources.document()))
    assert json.loads(to_json(sources.document())) == first
    Diary().task(0, "a#0").write(folder, "a")
    sources.refresh()
    assert json.loads(to_json(sources.document()))["version"] != first["version"]
    assert first["live"]
    assert first["schema"] == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "there is no such folder"),
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: (path.mkdir(), (path / "notes.txt").touch()), "neither a run"),
        (lambda path: path.mkdir(), "neither a run"),
    ],
)
def test_what_is_no_run_is_said(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "x")  # type: ignore[operator]
    with pytest.raises(RunError, match=message):
        Sources([tmp_path / "x"]).refresh()


def test_live_waits_for_a_folder_but_not_for_somebody_elses(tmp_path: Path) -> None:
    Sources([tmp_path / "later"], live=True).refresh()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(RunError, match="neither a run"):
        Sources([tmp_path / "other"], live=True).refresh()


def test_one_run_in_disorder_does_not_stop_the_others(tmp_path: Path) -> None:
    one, other = Diary().started("a").write(tmp_path / "one"), Diary().started("b").write(tmp_path / "other")
    sources = Sources([one, other], live=True)
    sources.refresh()
    (one / "events.jsonl").write_text("nonsense\n")
    Diary().joined(0, "b").task(0, "b#0").write(other, "a")
    assert sources.refresh()
    assert [run["devices"][0]["tasks"] for run in sources.document()["runs"]] == [0, 1]


@given(st.text() | st.just("</script><!--<script>&\u2028\u2029"))
def test_in_html_no_string_can_end_the_script(text: str) -> None:
    written = for_html(json.dumps({"name": text}, ensure_ascii=False))
    assert not set(written) & set("<>&\u2028\u2029")
    assert json.loads(written) == {"name": text}

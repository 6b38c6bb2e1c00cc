"""Folders → the whole document, and the document → JSON that can stand in a page."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cos2p import __version__
from cos2p.errors import Cos2pError, RunError
from cos2p.view.build import RunSource, is_run
from cos2p.view.study import StudySource, is_study

SCHEMA = 1

Source = RunSource | StudySource
OnProgress = Callable[[int, int, str], None]
"""(done, all, what is being read)"""


def source(folder: Path, may_come: bool = False) -> Source:
    """The run or study in the folder. With `may_come`, a folder that is not there yet is taken for a run's."""
    if is_study(folder):
        return StudySource(folder, may_come)
    if is_run(folder):
        return RunSource(folder)
    if may_come and (not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))):
        return RunSource(folder)
    if not folder.exists():
        raise RunError(f"{folder}: there is no such folder; name one that `cos2p run` or a study wrote")
    if not folder.is_dir():
        raise RunError(f"{folder} is a file; name the run's folder")
    raise RunError(f"{folder} is neither a run (no events.jsonl) nor a study (no study.json); check the path")


ANSWER_SECONDS = 0.5
"""A live page gets an answer after this, however much of a log is new; it asks again."""


class Sources:
    """Several folders as one document."""

    def __init__(self, folders: Sequence[Path], live: bool = False, page_folder: Path | None = None) -> None:
        """`page_folder`: where the page will stand, for links from it to the runs of studies."""
        self.folders, self.live, self.page_folder = tuple(folders), live, page_folder
        self._sources: dict[Path, Source] = {}
        self._looked = False

    def refresh(self, on_progress: OnProgress = lambda done, total, name: None) -> bool:
        """Read what is new; returns whether anything was."""
        changed = False
        for number, folder in enumerate(self.folders):
            on_progress(number, len(self.folders), folder.name)
            found = self._sources.get(folder)
            if found is None or (self.live and isinstance(found, RunSource) and is_study(folder)):
                found = self._sources[folder] = source(folder, may_come=self.live)
                changed = True
            changed = self._refresh(found, partial(on_progress, number, len(self.folders))) or changed
        self._looked = True
        return changed

    def _refresh(self, found: Source, on_progress: Callable[[str], None]) -> bool:
        name = found.folder.name
        try:
            if isinstance(found, StudySource):
                return found.refresh(lambda cell: on_progress(f"{name}/{cell}"))
            seconds = ANSWER_SECONDS if self.live and self._looked else math.inf
            return found.refresh(lambda share: on_progress(f"{name}, {100 * share:.0f} %"), seconds)
        except Cos2pError:
            if not (self.live and self._looked):
                raise
            return False  # one folder in disorder does not stop the others; it stays as it was

    def document(self) -> dict[str, Any]:
        sources = [self._sources[folder] for folder in self.folders]
        runs = [found.document() for found in sources if isinstance(found, RunSource)]
        studies = [found.document(self.page_folder) for found in sources if isinstance(found, StudySource)]
        _disambiguate([run["header"] for run in runs], [s.folder for s in sources if isinstance(s, RunSource)])
        _disambiguate(studies, [found.folder for found in sources if isinstance(found, StudySource)])
        return {
            "schema": SCHEMA,
            "live": self.live,
            "version": "",  # filled in by `to_json`; a live page asks for what is newer: view.json?since=VERSION
            "generated_by": f"cos2p {__version__}",
            "runs": runs,
            "studies": studies,
        }


def _disambiguate(named: Sequence[dict[str, Any]], folders: list[Path]) -> None:
    """Runs in folders of one name are called by their parents' too."""
    names = [one["name"] for one in named]
    for one, folder, name in zip(named, folders, names, strict=True):
        if names.count(name) > 1:
            one["name"] = f"{folder.resolve().parent.name}/{name}"


def to_json(view: dict[str, Any]) -> str:
    """The document with its version, which is the digest of everything else. Pure ASCII."""
    text = json.dumps(view, separators=(",", ":"), allow_nan=False)
    empty = '"version":""'
    assert view["version"] == ""
    return text.replace(empty, f'"version":"{hashlib.sha256(text.encode()).hexdigest()[:16]}"', 1)


def for_html(text: str) -> str:
    """JSON that can stand inside <script type="application/json">: nothing in it ends the script or begins a tag.

    >>> for_html('{"name":"</script><b>&"}')
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e\\\\u0026"}'
    """
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return text.translate({ord(character): escape for character, escape in escapes.items()})

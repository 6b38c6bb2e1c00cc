"""The code of a model card, taken out of the README.md that was written, and run inside its folder."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cos2p.inference.predicting import gather, predict
from cos2p.inference.sources import Trained

GIVEN = {True: 'texts = ["a text", "another text"]', False: 'pictures = ["picture.png"]'}
"""What a card asks about, by whether it is one of texts."""
Answers = list[list[tuple[str, float]]]


def code_blocks(folder: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (folder / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def run_code(code: str, folder: Path, inputs: Sequence[str] = (), is_text: bool = True) -> dict[str, Any]:
    """The names that the code leaves behind. `inputs` are asked about in place of the card's own."""
    if inputs:
        assert GIVEN[is_text] in code
        code = code.replace(GIVEN[is_text], f"{'texts' if is_text else 'pictures'} = {list(inputs)!r}")
    namespace: dict[str, Any] = {"__name__": "card"}
    with inside(folder), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()) as printed:
        warnings.simplefilter("ignore")  # other people's libraries
        exec(compile(code, str(folder / "README.md"), "exec"), namespace)
    assert str(namespace["answers"]) in printed.getvalue()
    return namespace


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


def answers_of(namespace: dict[str, Any]) -> Answers:
    """The best labels of each input with their probabilities, from either way in which a card gives them."""
    return [
        [(e["label"], e["score"]) if isinstance(e, dict) else (e[1], e[0]) for e in row] for row in namespace["answers"]
    ]


def predicted(trained: Trained, inputs: Sequence[str], top: int = 3) -> Answers:
    """By `cos2p predict`."""
    given = ((), inputs) if trained.is_text else (inputs, ())
    return [list(p.answers) for p in predict(trained, gather(*given, trained.data, trained.is_text), top=top)]


def assert_same(found: Answers, expected: Answers, tolerance: float = 1e-4) -> None:
    for theirs, ours in zip(found, expected, strict=True):
        assert [score for _, score in theirs] == pytest.approx([share for _, share in ours], abs=tolerance)
        near = {name for name, share in ours if abs(share - ours[0][1]) <= 2 * tolerance}
        assert theirs[0][0] in near
        assert {name for name, _ in theirs} == {name for name, _ in ours}

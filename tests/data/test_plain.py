"""Plain text files, packed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.data import IGNORE, DataConfig, load
from cos2p.data.text import pack
from cos2p.errors import DataError

A = ord("a") + 3


def config(max_tokens: int = 4, **fields: str) -> DataConfig:
    where = {"train": "*.txt", **fields}
    return DataConfig(source="text", task="language-modeling", max_tokens=max_tokens, **where)  # type: ignore[arg-type]


def test_by_hand() -> None:
    """Start, a, b, c, d, end in rows of 4: each begins with the last token of the one before; x stands alone."""
    tokens, owners = pack(["abcd", "x"], config())
    assert tokens.ids[:].tolist() == [[1, A, A + 1, A + 2], [A + 2, A + 3, 2, 0], [1, A + 23, 2, 0]]
    assert owners.tolist() == [0, 0, 1]
    labels = tokens.ids.next_tokens(slice(None))
    assert labels.tolist() == [[A, A + 1, A + 2, IGNORE], [A + 3, 2, IGNORE, IGNORE], [A + 23, 2, IGNORE, IGNORE]]


@given(st.lists(st.text(alphabet="ab\n", min_size=1, max_size=40), min_size=1, max_size=4), st.integers(2, 9))
def test_every_token_but_the_first_is_predicted_once(documents: list[str], max_tokens: int) -> None:
    tokens, owners = pack(documents, config(max_tokens))
    labels = tokens.ids.next_tokens(slice(None))
    for number, document in enumerate(documents):
        own = labels[torch.from_numpy(owners == number)]
        assert own[own != IGNORE].tolist() == [*(ord(c) + 3 for c in document), 2]
    assert int(tokens.ids.lengths.min()) >= 2


def test_files_are_found_by_pattern_plain_or_packed_and_own_their_rows(here: Path) -> None:
    (here / "a.txt").write_text("first " * 20)
    (here / "b.txt").write_text("second " * 20)
    (here / "held.txt.gz").write_bytes(gzip.compress(b"kept for testing"))

    bundle = load(config(16, test="held.txt.gz"), seed=0)

    assert bundle.classes == 0
    assert bundle.train.groups is not None
    assert set(bundle.train.groups) == {"a.txt", "b.txt"}
    inputs, labels = bundle.test.batch(torch.arange(len(bundle.test)))
    assert inputs.shape == labels.shape == (2, 16)


def test_what_is_no_text_is_said(here: Path) -> None:
    (here / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"a\.txt cannot be read as text in UTF-8"):
        load(config(), seed=0)
    (here / "a.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"a\.txt is empty"):
        load(config(), seed=0)
    with pytest.raises(ValueError, match="set task = 'language-modeling'"):
        DataConfig(source="text", train="a.txt")

"""Texts with answers, by the byte tokenizer: start 1, end 2, byte b is b + 3."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cos2p.data import DataConfig, load
from cos2p.data.examples import IGNORE
from cos2p.data.text import tokenize_answers
from cos2p.errors import DataError


def config(**fields: object) -> DataConfig:
    values = {"source": "csv", "train": "train.csv", "text_column": "text", "task": "instruction", "prompt": "{text}="}
    return DataConfig.model_validate({**values, "tokenizer": "bytes", **fields})


def ids(text: str) -> list[int]:
    return [byte + 3 for byte in text.encode()]


def test_only_the_answer_is_to_be_foretold() -> None:
    tokens = tokenize_answers(["2+2", "1"], ["4", "10"], config())
    rows = torch.arange(2)
    assert tokens.ids[rows][0, :8].tolist() == [1, *ids("2+2= 4"), 2]
    expected = [[*[IGNORE] * 4, *ids(" 4"), 2, IGNORE], [*[IGNORE] * 2, *ids(" 10"), 2, IGNORE, IGNORE]]
    assert tokens.ids.next_tokens(rows).tolist() == expected
    assert tokens.ids.subset(torch.tensor([1])).next_tokens(torch.tensor([0])).tolist() == [expected[1]]


def test_a_long_text_loses_its_beginning_and_never_its_answer() -> None:
    tokens = tokenize_answers(["abcdefgh"], ["no"], config(max_tokens=8))
    assert tokens.ids[:].tolist() == [[1, *ids("gh= no"), 2]]
    with pytest.raises(DataError, match=r"the answer 'a long answer' has 14 tokens .* raise data\.max_tokens, now 8"):
        tokenize_answers(["abc"], ["a long answer"], config(max_tokens=8))


def test_answers_are_the_names_of_the_labels_or_a_column(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label,word\n" + "a,0,one\nb,1,two\n" * 5)
    names = ("no", "yes")
    labelled = load(config(path=str(tmp_path), classes=names, validation_fraction=0), seed=0)
    assert labelled.classes == 0  # a language model, not a classifier
    first = int(labelled.train.labels[0])  # classes are kept, so that splits keep them in proportion
    inputs, following = labelled.train.batch(torch.tensor([0]))
    assert inputs[0, 1:].tolist()[: 2 + len(names[first]) + 1] == ids("ab"[first] + "= " + names[first])
    assert following[0][following[0] != IGNORE].tolist() == [*ids(" " + names[first]), 2]

    spoken = load(config(path=str(tmp_path), answer_column="word", validation_fraction=0), seed=0)
    _, following = spoken.train.batch(torch.tensor([0]))
    assert following[0][following[0] != IGNORE].tolist() in ([*ids(" one"), 2], [*ids(" two"), 2])
    with pytest.raises(DataError, match=r"no column 'wort'.*set data\.answer_column"):
        load(config(path=str(tmp_path), answer_column="wort"), seed=0)


def test_a_prompt_has_a_place_for_the_text() -> None:
    with pytest.raises(ValueError, match=r"`prompt` is 'Answer:'; it needs \{text\}"):
        config(prompt="Answer:")

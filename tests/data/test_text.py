from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from cos2p.data import IGNORE, DataConfig
from cos2p.data.text import tokenize
from cos2p.data.tokenizers import BYTE_VOCABULARY
from cos2p.errors import DataError


def config(tokenizer: str = "bytes", max_tokens: int = 6) -> DataConfig:
    return DataConfig(source="csv", train="a.csv", text_column="text", tokenizer=tokenizer, max_tokens=max_tokens)


def words(file: Path, *vocabulary: str) -> str:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=vocabulary[0]))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(file))
    return str(file)


def test_one_token_per_byte_between_start_and_end() -> None:
    tokens = tokenize(["ab", "", "é", "abcdefgh"], config())

    a = ord("a") + 3
    assert tokens.ids[:].tolist() == [
        [1, a, a + 1, 2, 0, 0],
        [1, 2, 0, 0, 0, 0],
        [1, 0xC3 + 3, 0xA9 + 3, 2, 0, 0],
        [1, a, a + 1, a + 2, a + 3, 2],
    ]
    assert tokens.ids.lengths.tolist() == [4, 2, 4, 6]
    assert (tokens.ids.fill, tokens.vocabulary) == (0, 259)


def test_every_byte_has_an_id_of_its_own_inside_the_vocabulary() -> None:
    every = "".join(chr(i) for i in range(128)) + "äöü€😀"

    ids = tokenize([every], config(max_tokens=200)).ids[:][0]

    assert int(ids.max()) < BYTE_VOCABULARY
    assert len(set(ids[1:129].tolist())) == 128


def test_the_next_token_is_the_label_and_padding_counts_for_nothing() -> None:
    causal = config().model_copy(update={"task": "language-modeling"})
    labels = tokenize(["ab", "abcdefgh"], causal).ids.next_tokens(slice(None))

    a = ord("a") + 3
    assert labels.tolist() == [
        [a, a + 1, 2, IGNORE, IGNORE, IGNORE],
        [a, a + 1, a + 2, a + 3, a + 4, IGNORE],
    ]


def test_a_tokenizer_file_is_used_with_its_own_padding_id(tmp_path: Path) -> None:
    file = words(tmp_path / "tokenizer.json", "<unk>", "one", "two", "<pad>")

    tokens = tokenize(["one two", "two three two two two"], config(file, max_tokens=4))

    assert tokens.ids[:].tolist() == [[1, 2, 3, 3], [2, 0, 2, 2]]
    assert tokens.ids.lengths.tolist() == [2, 4]
    assert (tokens.ids.fill, tokens.vocabulary) == (3, 4)


def test_padding_with_the_end_of_text_keeps_the_real_one_as_a_label(tmp_path: Path) -> None:
    file = words(tmp_path / "tokenizer.json", "one", "</s>")

    tokens = tokenize(["one </s>"], config(file, max_tokens=4))

    assert tokens.ids.fill == 1
    # `</s>` is split by the whitespace rule into unknown pieces, so look at the length instead of the ids.
    length = int(tokens.ids.lengths[0])
    assert (tokens.ids.next_tokens(slice(None)) != IGNORE).sum() == length - 1


def test_a_file_that_is_no_tokenizer_or_has_no_padding_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}")

    with pytest.raises(DataError, match=r"broken\.json is not a tokenizer\.json"):
        tokenize(["a"], config(str(broken)))
    with pytest.raises(DataError, match=r"has no padding token; add one of \[PAD\]"):
        tokenize(["a"], config(words(tmp_path / "bare.json", "one")))
    with pytest.raises(DataError, match="no data at"):
        tokenize(["a"], config(str(tmp_path / "missing.json")))


def test_the_real_bert_tokenizer_keeps_its_special_tokens_when_it_cuts(shared_data: Path) -> None:
    tokens = tokenize(
        ["federated learning", "a b c d e f g h i j"],
        config("tokenizers/bert-base-uncased/tokenizer.json", max_tokens=8),
    )

    cls, sep = 101, 102
    assert tokens.ids[:][:, 0].tolist() == [cls, cls]
    assert int(tokens.ids[:][1, -1]) == sep
    assert tokens.ids.lengths.tolist() == [5, 8]
    assert torch.equal(tokens.ids[:][0, 5:], torch.zeros(3, dtype=torch.int64))
    assert (tokens.ids.fill, tokens.vocabulary) == (0, 30522)


# Remembered


def test_a_text_is_tokenised_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another text, length or tokenizer is another entry; a changed tokenizer file too."""
    file = words(tmp_path / "tokenizer.json", "<unk>", "one", "two", "<pad>")
    first = tokenize(["one two", "two"], config(file))
    entries = list((cache / "tokens").iterdir())
    assert len(entries) == 1
    with monkeypatch.context() as patch:
        patch.setattr("tokenizers.Tokenizer.encode_batch", None)
        again = tokenize(["one two", "two"], config(file))
    assert torch.equal(again.ids[:], first.ids[:])
    assert (again.ids.fill, again.vocabulary) == (3, 4)
    for texts, given in ((["onetwo", "two"], config(file)), (["one two", "two"], config(file, max_tokens=5))):
        tokenize(texts, given)
    words(tmp_path / "tokenizer.json", "<unk>", "two", "one", "<pad>")
    assert tokenize(["one two", "two"], config(file)).ids[:].tolist() == [[2, 1, 3, 3, 3, 3], [1, 3, 3, 3, 3, 3]]
    assert len(list((cache / "tokens").iterdir())) == 4


def test_what_is_remembered_are_ids_alone(cache: Path) -> None:
    tokenize(["secret words"], config(max_tokens=64))
    (entry,) = (cache / "tokens").iterdir()
    assert b"secret" not in entry.read_bytes()
    assert set(safetensors.torch.load_file(entry)) == {"ids", "lengths"}

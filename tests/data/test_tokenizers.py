"""Which tokenizer is taken, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from cos2p.data import DataConfig, load
from cos2p.data.tokenizers import find_tokenizer, make_encoder
from cos2p.errors import DataError

WORDS = ("<unk>", "<pad>", "<s>", "one", "two", "three")


@pytest.fixture
def checkpoint(here: Path) -> Path:
    """A folder with a tokenizer of six words, and a table of texts next to it."""
    folder = here / "model"
    folder.mkdir()
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 6}))
    (here / "train.csv").write_text("label,text\n" + "0,one two\n1,three\n" * 5)
    return folder


def config(tokenizer: str = "auto") -> DataConfig:
    return DataConfig(source="csv", train="train.csv", text_column="text", tokenizer=tokenizer, max_tokens=8)


@pytest.mark.parametrize("tokenizer", ["auto", ""])
def test_a_checkpoints_own_tokenizer_is_found_by_itself(checkpoint: Path, tokenizer: str) -> None:
    assert find_tokenizer("model") == "model/tokenizer.json"
    assert load(config(tokenizer), 0, pretrained="model").train.vocabulary == 6
    assert load(config(tokenizer), 0).train.vocabulary == 259  # without a checkpoint: bytes
    assert load(config("model"), 0).train.vocabulary == 6  # a folder may be named itself


def test_nothing_is_guessed_where_there_is_none(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"model has no tokenizer\.json; put one there, or name one in data\.tokenizer"):
        load(config(), 0, pretrained="model")
    (checkpoint / "tokenizer.model").touch()
    for given, pretrained in ((config(), "model"), (config("model"), ""), (config("model/tokenizer.model"), "")):
        with pytest.raises(DataError, match=r"is a SentencePiece model.*AutoTokenizer\.from_pretrained"):
            load(given, 0, pretrained=pretrained)
    Path("alone").mkdir()
    Path("alone/tokenizer.model").touch()
    with pytest.raises(DataError, match=r"the tokenizer class of its model \(of Llama 2: LlamaTokenizer\)"):
        load(config("alone"), 0)


def test_tokens_outside_the_checkpoints_table_are_refused_with_their_row(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps({"vocab_size": 5}))
    with pytest.raises(DataError, match=r"the text of line ([3579]|11) has the token 5, .* table ends at 4"):
        load(config(), 0, pretrained="model")
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"train\.csv: the text of line \d+ has the token \d+, but .* ends at 4"):
        load(config("bytes"), 0, pretrained="model")


def test_another_tokenizer_than_the_checkpoints_is_refused_even_if_its_ids_are_in_the_table(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps({"vocab_size": 1000}))
    with pytest.raises(DataError, match=r"data\.tokenizer 'bytes' reads texts otherwise than model/tokenizer\.json"):
        load(config("bytes"), 0, pretrained="model")
    assert load(config("model"), 0, pretrained="model").train.vocabulary == 6  # the same one by its name


def test_what_stands_around_a_text(checkpoint: Path) -> None:
    encoder = make_encoder(config("model"))
    assert encoder.around == ((2,), ())
    assert encoder.encode(["one two"]) == [[2, 3, 4]]
    assert encoder.encode_piece("one two " * 10) == [3, 4] * 10

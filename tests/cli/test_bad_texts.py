"""Texts, tokenizers and checkpoints that do not go together: from the command line one clear line, before any round."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from typer.testing import CliRunner

from cos2p import init_weights, model_config
from cos2p.cli.app import app
from cos2p.models.hub import save_pretrained

RECIPE = """
name = "bad"
[model]
pretrained = "model"
[data]
source = "csv"
train = "texts.csv"
text_column = "text"
max_tokens = 8
[[fleet.devices]]
preset = "laptop"
count = 2
rate = 0.5
batch = 4
[training]
epochs = 1
[schedule]
rounds = 1
t_clk = 0.0
[run]
workers = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A BERT of eight positions and six words, its tokenizer, texts and a recipe that would run."""
    monkeypatch.chdir(tmp_path)
    config = model_config("bert-nano", dim=16, depth=2, heads=2, mlp=16, vocab=6, max_tokens=8, classes=2)
    save_pretrained(tmp_path / "model", config, init_weights(config, 0))
    _tokenizer("one two three").save("model/tokenizer.json")
    Path("texts.csv").write_text("text,label\n" + "one two,0\nthree two,1\n" * 20)
    Path("recipe.toml").write_text(RECIPE)
    return tmp_path


def _tokenizer(words: str) -> Tokenizer:
    known = ["<unk>", "<pad>", "<s>", *words.split()]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


def _config(**changes: object) -> None:
    file = Path("model/config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _missing_shard() -> None:
    Path("model/model.safetensors").unlink()
    Path("model/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-2.safetensors"}}))


def _gguf() -> None:
    Path("model/model.safetensors").rename("model/model.gguf")


def _cut_in_half() -> None:
    file = Path("model/model.safetensors")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _empty_text() -> None:
    Path("texts.csv").write_text("text,label\none,0\n  ,1\n" + "one two,0\nthree,1\n" * 20)


def _one_class() -> None:
    Path("texts.csv").write_text("text,label\n" + "one two,a\nthree,a\n" * 20)


def _larger_tokenizer() -> None:
    _tokenizer("one four five six two three").save("model/tokenizer.json")


@pytest.mark.parametrize(
    ("corrupt", "changes", "line"),
    [
        (_larger_tokenizer, [], " has the token 8, but the checkpoint's table ends at 5"),
        (lambda: None, ["data.tokenizer=bytes"], "'bytes' reads texts otherwise than model/tokenizer.json"),
        (lambda: Path("model/tokenizer.json").unlink(), [], "model has no tokenizer.json; put one there"),
        (_empty_text, [], "texts.csv: the text of line 3 is empty"),
        (_one_class, [], "all labels are 'a', and a classifier needs two classes"),
        (lambda: None, ["training.learning_rate=0.1"], "learning_rate: there is no such field; did you mean 'lr'?"),
        (lambda: None, ["model.pretrained=", "model.size=dinov2-small"], "./dinov2-small) or its hub name (org/name)"),
        (lambda: None, ["data.max_tokens=9"], "has learned positions for 8 tokens, not 9; cut the texts to 8"),
        (lambda: _config(model_type="gpt2"), [], "gpt2"),
        (lambda: None, ["data.task=language-modeling"], "is a bert, which is no language model"),
        (_gguf, [], ".gguf files are not read"),
        (_missing_shard, [], "names model-2.safetensors, which is not in the folder; download it again"),
        (_cut_in_half, [], "model.safetensors is not a readable safetensors file"),
        (lambda: None, ["model.pretrained=no/such/one", "data.tokenizer=model"], "no checkpoint folder at no/such"),
    ],
)  # fmt: skip
def test_one_line_before_anything_starts(
    corrupt: Callable[[], object], changes: list[str], line: str, folder: Path
) -> None:
    corrupt()
    settings = [argument for change in changes for argument in ("--set", change)]
    result = CliRunner().invoke(app, ["run", "recipe.toml", "--out", "run", "--quiet", *settings])
    assert result.exit_code in (2, 5, 6)
    (said,) = result.stderr.strip().splitlines()
    assert line in said
    assert not list(folder.glob("run/events.jsonl")) or not (folder / "run/events.jsonl").stat().st_size

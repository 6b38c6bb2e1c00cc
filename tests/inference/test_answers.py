"""Answers of a language model, scored on files: generated, and the likeliest of the class names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from cos2p.cli.app import app
from cos2p.data import DataConfig
from cos2p.data.text import tokenize_answers
from cos2p.errors import DataError
from cos2p.inference.evaluating import evaluate, labelled
from cos2p.inference.sources import open_trained
from cos2p.models.decoding import Decoder
from cos2p.training.answers import answer_scores
from tests.inference.test_generating import CONFIG
from tests.inference.test_texts import saved

COLUMNS = {"prompt": "{text}=", "text_column": "", "image_column": "", "label_column": ""}


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Path, Path]:
    folder, file = saved(tmp_path / "m", CONFIG), tmp_path / "t.jsonl"
    rows = [{"text": f"question {i}", "label": ["yes", "no", "perhaps"][i % 3]} for i in range(20)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, file


def test_shares_are_those_of_each_text_by_itself(asked: tuple[Path, Path]) -> None:
    trained = open_trained(asked[0])
    examples = labelled(trained, str(asked[1]), "test", COLUMNS)
    found = evaluate(trained, examples)
    assert [name for name, _ in examples.choices] == ["no", "perhaps", "yes"]
    likeliest = 0
    for row in range(20):
        prompt = [1, *trained.encoder.encode_piece(f"question {row}=")]
        totals = []
        for _, choice in examples.choices:
            log = trained.outputs(torch.tensor([[*prompt, *choice]]))[0].log_softmax(-1)
            totals.append(sum(float(log[len(prompt) - 1 + i, token]) for i, token in enumerate(choice)))
        likeliest += examples.choices[max(range(3), key=totals.__getitem__)][0] == ["yes", "no", "perhaps"][row % 3]
    assert found.likeliest == pytest.approx(likeliest / 20)
    assert found.generated == 0.0  # a model of random weights writes no words
    assert found.perplexity is not None


def test_a_model_that_writes_the_right_word_is_right(asked: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that always says " yes." and goes on: as many words count as the choices have."""
    trained = open_trained(asked[0])
    examples = labelled(trained, str(asked[1]), "test", COLUMNS)
    said = trained.encoder.encode_piece(" Yes. And more")
    places = iter(range(10_000))

    def logits(count: int) -> torch.Tensor:
        row = torch.full((count, CONFIG.vocab), -9.0)
        row[:, said[next(places) % len(said)]] = 9.0
        return row

    def read(self: Decoder, prompts: list[list[int]]) -> torch.Tensor:
        nonlocal places
        places = iter(range(10_000))
        return logits(len(prompts))

    monkeypatch.setattr(Decoder, "read", read)
    monkeypatch.setattr(Decoder, "go_on", lambda self, tokens: logits(len(tokens))[:, None])
    monkeypatch.setattr(Decoder, "branch", lambda self, rows: self)
    monkeypatch.setattr(
        "cos2p.training.answers.likelihoods", lambda decoder, first, choices: torch.eye(3)[[2] * len(first)]
    )
    found = answer_scores(trained.model, examples, trained.encoder.decode, trained.encoder.end)
    assert found == {"generated": pytest.approx(7 / 20), "likeliest": pytest.approx(7 / 20)}


def test_evaluate_says_both_and_packs_at_a_runs_length(asked: tuple[Path, Path], tmp_path: Path) -> None:
    folder, file = asked
    done = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(file), "--prompt", "{text}="])
    assert done.exit_code == 0, done.output
    assert "generated answers right 0.0 %, likeliest choice right" in " ".join(done.output.split())
    (tmp_path / "long.txt").write_text("unity is power. " * 40)
    trained = open_trained(folder)
    by_length = {
        length: len(labelled(trained, str(tmp_path / "long.txt"), "test", {"max_tokens": length})) for length in (0, 32)
    }
    assert by_length[32] > by_length[0] > 1


def test_an_answer_that_the_tokenizer_cannot_write_is_named(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1, "yes": 2, "q": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    values = {"source": "csv", "train": "t.csv", "text_column": "text", "task": "instruction", "prompt": "{text} q"}
    config = DataConfig.model_validate({**values, "tokenizer": str(tmp_path / "tokenizer.json")})
    assert len(tokenize_answers(["q"], ["yes"], config).ids) == 1
    with pytest.raises(DataError, match="the tokenizer cannot write the answer 'perhaps': it has a sign"):
        tokenize_answers(["q"], ["perhaps"], config)

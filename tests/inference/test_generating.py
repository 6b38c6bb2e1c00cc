"""Texts that a language model writes, with `transformers` and `peft` as the judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cos2p.cli.app import app
from cos2p.errors import CheckpointError, ConfigError, DataError
from cos2p.inference.generating import generate, read_prompts, template_of
from cos2p.inference.sources import open_trained
from cos2p.models.config import ModelConfig
from cos2p.models.decoding import GREEDY, Decoder, Sampling, choose, write
from cos2p.models.hub import save_pretrained
from cos2p.models.hub_adapter import save_adapter
from cos2p.training.answers import likelihoods, normalized
from tests.inference.test_texts import saved
from tests.submodel.strategies import random_weights

CONFIG = ModelConfig(
    "llama", task="language-modeling", dim=16, depth=3, heads=4, kv_heads=2, mlp=24, vocab=259, max_tokens=64
)
PROMPTS = ["unity is", "a", "power, über-all ☺"]


def written(folder: Path, prompts: list[Any], limit: int = 12, sampling: Sampling = GREEDY) -> list[str]:
    *_, found = generate(open_trained(folder), prompts, limit, sampling)
    return [own.text for own in found]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "m", CONFIG)


def test_transformers_writes_the_same_from_the_folder(folder: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="its generate is the judge")
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    trained = open_trained(folder)
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        expected = theirs.generate(**ids, max_new_tokens=12)[0][ids["input_ids"].shape[1] :].tolist()
        own = [*trained.encoder.around[0], *trained.encoder.encode_piece(prompt)]
        decoder = Decoder(trained.model)
        found = [row[0] for row in write(decoder, decoder.read([own]), 12, frozenset((2,)))]
        assert found == [token for token in expected if token != 2]


def test_peft_writes_the_same_from_an_adapter_and_so_do_we(tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft", reason="it is the judge of adapters")
    transformers: Any = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    rng, weights = torch.Generator().manual_seed(1), random_weights(CONFIG, 0)
    for block in range(3):
        down, up = torch.randn(2, 16, generator=rng), torch.randn(2, 16, generator=rng)
        weights |= {f"blocks.{block}.adapters.q.down": down, f"blocks.{block}.adapters.q.up": up}
        weights[f"blocks.{block}.q.weight"] = weights[f"blocks.{block}.q.weight"] + up.T @ down
    file = saved(tmp_path / "m", CONFIG) / "tokenizer.json"
    folder = save_adapter(tmp_path / "adapter", CONFIG, weights, tokenizer=file)
    whole = save_pretrained(tmp_path / "whole", CONFIG, weights, tokenizer=file)
    assert written(folder, PROMPTS) == written(whole, PROMPTS)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base")
    theirs = peft.PeftModel.from_pretrained(base, folder)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(PROMPTS[0], return_tensors="pt")
    expected = theirs.generate(**ids, max_new_tokens=12)[0][ids["input_ids"].shape[1] :].tolist()
    own = open_trained(folder)
    decoder = Decoder(own.model)
    found = [row[0] for row in write(decoder, decoder.read(ids["input_ids"].tolist()), 12, frozenset((2,)))]
    assert found == [token for token in expected if token != 2]
    other = json.loads((folder / "adapter_config.json").read_text())
    wide = CONFIG.with_(dim=32, heads=8, kv_heads=4)
    (tmp_path / "other").mkdir()
    other_base = save_pretrained(tmp_path / "other" / "m", wide, random_weights(wide, 0), tokenizer=file)
    (folder / "adapter_config.json").write_text(json.dumps(other | {"base_model_name_or_path": str(other_base)}))
    with pytest.raises(CheckpointError, match=r"adapter for another base than .*q_proj of shape"):
        open_trained(folder)


def test_prompts_of_unequal_lengths_write_together_what_each_writes_alone(folder: Path) -> None:
    assert written(folder, PROMPTS) == [written(folder, [prompt])[0] for prompt in PROMPTS]


def test_a_prompt_that_fills_the_positions_takes_nothing_from_its_neighbours(folder: Path) -> None:
    long, short = "x" * 58, "unity is"
    *_, found = generate(open_trained(folder), [long, short], 20)
    assert [own.text for own in found] == [*written(folder, [long], 20), *written(folder, [short], 20)]
    assert found[0].tokens < 20


def test_what_is_drawn_does_not_depend_on_what_is_written_beside_it(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "p.txt").write_text("a\n" * 10)
    out = tmp_path / "out.jsonl"
    command = ["generate", str(folder), "--prompts", str(tmp_path / "p.txt"), "-o", str(out), "--tokens", "8"]
    done = CliRunner().invoke(app, [*command, "--temperature", "1.5", "--seed", "5"])
    assert done.exit_code == 0, done.output
    texts = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    assert texts == [written(folder, ["a"], 8, Sampling(1.5, seed=5 + number))[0] for number in range(10)]
    assert len(set(texts)) > 5


def test_a_text_by_the_cache_is_the_text_without_it(folder: Path) -> None:
    trained = open_trained(folder)
    ids = [1, *trained.encoder.encode_piece("unity")]
    decoder = Decoder(trained.model)
    for (token,) in write(decoder, decoder.read([ids]), 8):
        assert token == int(trained.outputs(torch.tensor([ids]))[0, -1].argmax())
        ids.append(int(token or 0))


def test_likelihoods_are_those_of_the_whole_texts(folder: Path) -> None:
    trained = open_trained(folder)
    prompts, choices = [[1, 70, 71], [1, 80]], [[75], [76, 77, 78]]
    decoder = Decoder(trained.model)
    found = likelihoods(decoder, decoder.read(prompts), choices)
    for row, prompt in enumerate(prompts):
        for column, choice in enumerate(choices):
            log = trained.outputs(torch.tensor([[*prompt, *choice]]))[0].log_softmax(-1)
            expected = sum(log[len(prompt) - 1 + i, token] for i, token in enumerate(choice))
            assert found[row, column].item() == pytest.approx(float(expected), abs=1e-4)


def test_draws_repeat_by_seed_and_keep_to_the_likeliest(folder: Path) -> None:
    wild = Sampling(temperature=2.0, seed=5)
    assert written(folder, ["a"], 20, wild) == written(folder, ["a"], 20, wild)
    assert written(folder, ["a"], 20, wild) != written(folder, ["a"], 20, Sampling(temperature=2.0, seed=6))
    rng, logits = torch.Generator().manual_seed(0), torch.tensor([0.0, 3.0, 2.9, -1.0])
    drawn = {choose(logits, Sampling(1.0, top_p=0.6), rng) for _ in range(50)}
    assert drawn == {1, 2}


def test_what_is_said_is_normalised() -> None:
    assert normalized('  "Positive".\nThe next line') == "positive"
    assert normalized("neutral, I think", words=1) == "neutral"
    assert normalized("\n\n") == ""


def test_a_chat_is_written_by_the_template_and_travels_with_the_folder(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", CONFIG)
    values = json.loads((folder / "tokenizer_config.json").read_text())
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
    (folder / "tokenizer_config.json").write_text(json.dumps(values | {"chat_template": template}))
    again = save_pretrained(tmp_path / "again", CONFIG, random_weights(CONFIG, 0), tokenizer=folder)
    assert template_of(open_trained(again)).source == template
    assert json.loads((again / "generation_config.json").read_text())["eos_token_id"] == 2
    chat = [{"role": "user", "content": "hi"}]
    assert written(again, [chat]) == written(again, ["<user>hi<assistant>"])


def test_what_cannot_be_written_is_one_clear_line(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match=r"the prompt has 101 tokens; .* has 64 positions, its answer included"):
        written(folder, ["x" * 100])
    classifier = saved(tmp_path / "c", ModelConfig("llama", classes=2, dim=16, depth=2, heads=4, mlp=24, vocab=259))
    with pytest.raises(ConfigError, match="is a classifier, which writes nothing"):
        written(classifier, ["a"])
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"holds a GGUF file.*tools\.gguf_folder"):
        open_trained(tmp_path / "g")
    (tmp_path / "p.txt").write_text("a\n" * 9 + "x" * 100)
    command = ["generate", str(folder), "--prompts", str(tmp_path / "p.txt"), "-o", str(tmp_path / "o.jsonl")]
    done = CliRunner().invoke(app, command)
    assert "prompt 10: the prompt has 101 tokens" in " ".join(done.output.split())
    assert not (tmp_path / "o.jsonl").exists()
    (tmp_path / "p.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match="line 1 has neither a `prompt` nor `messages`"):
        read_prompts(tmp_path / "p.jsonl")


def test_a_file_of_prompts_to_json_lines(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "p.txt").write_text("\n".join(f"prompt {i}" for i in range(10)))
    out = tmp_path / "out.jsonl"
    command = ["generate", str(folder), "--prompts", str(tmp_path / "p.txt"), "-o", str(out), "--tokens", "4"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == [f"prompt {i}" for i in range(10)]
    assert all(line["tokens"] <= 4 for line in lines)
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "exists" in again.output


def test_ctrl_c_keeps_what_is_there(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    go_on = Decoder.go_on

    def interrupted(self: Decoder, tokens: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return go_on(self, tokens)

    monkeypatch.setattr(Decoder, "go_on", interrupted)
    (tmp_path / "p.txt").write_text("unity\n")
    out = tmp_path / "out.jsonl"
    done = CliRunner().invoke(app, ["generate", str(folder), "--prompts", str(tmp_path / "p.txt"), "-o", str(out)])
    assert done.exit_code == 130
    (line,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert line["tokens"] == 3
    assert not line["ended"]


def test_chats_score_a_folder_that_was_given_no_column(tmp_path: Path, folder: Path) -> None:
    chats = [
        [{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": word}] for word in ("ab", "cd")
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": own}) + "\n" for own in chats))
    done = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(tmp_path / "chats.jsonl"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["samples"] == 2
    assert found["generated"] == 0
    trained = open_trained(folder)
    given = [("User: say " + w + "\nAssistant:", " " + w + "\n") for w in ("ab", "cd")]
    losses = []
    for before, after in given:
        ids = [*trained.encoder.around[0], *trained.encoder.encode_piece(before)]
        own = [*trained.encoder.encode_piece(after), trained.encoder.end]
        scores = trained.model(torch.tensor([[*ids, *own]]))[0].detach()
        shares = scores.log_softmax(-1).view(-1, scores.shape[-1])
        losses += [-float(shares[len(ids) + n - 1, token]) for n, token in enumerate(own)]
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)

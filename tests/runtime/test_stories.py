"""The recipe stories-shakespeare, cut short: a pretrained language model learns, is scored before and after, writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cos2p
from cos2p.inference.generating import generate
from cos2p.inference.sources import open_trained
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run
from tools.llama2c_folder import convert


def test_it_learns_from_where_it_stands_and_writes(tmp_path: Path, data_folder: Path) -> None:
    pytest.importorskip("sentencepiece", reason="converts the tokenizer")
    source, weights = data_folder / "tinystories-llama-260k", tmp_path / "stories-260k"
    convert(source / "stories260K.bin", source / "tok512.model", weights)
    few = {"data.train_samples": 200, "data.test_samples": 40, "schedule.updates": 8, "run.workers": 1}
    few |= {"model.pretrained": str(weights), "data.path": str(data_folder / "shakespeare"), "data.max_tokens": 32}
    recipe = Recipe.load("stories-shakespeare", [f"{name}={json.dumps(value)}" for name, value in few.items()])
    run(recipe, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert 80 < result["base"]["perplexity"] < 140
    assert result["perplexity"] < 0.8 * result["base"]["perplexity"]
    *_, (written,) = generate(open_trained(tmp_path / "run"), ["Once upon a time"], 8)
    *_, (exported,) = generate(open_trained(tmp_path / "run" / "model"), ["Once upon a time"], 8)
    assert written.text == exported.text != ""
    assert cos2p.open(tmp_path / "run").generate(["Once upon a time"], tokens=8) == [written.text]

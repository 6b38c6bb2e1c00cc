"""Models of texts: tokens from bytes, a language model's perplexity and next tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from cos2p.data.config import DataConfig
from cos2p.data.tokenizers import byte_tokenizer, make_encoder
from cos2p.inference.evaluating import evaluate, labelled
from cos2p.inference.exporting import export
from cos2p.inference.predicting import gather, predict
from cos2p.inference.sources import open_trained
from cos2p.models.config import ModelConfig
from cos2p.models.hub import save_pretrained
from tests.submodel.strategies import random_weights

TEXTS = ["unity", "is power, über-all ☺", "x" * 40]
BYTES = {"dim": 16, "depth": 2, "heads": 4, "mlp": 24, "vocab": 259, "max_tokens": 16}


def saved(folder: Path, config: ModelConfig, labels: list[str] | None = None) -> Path:
    file = folder.parent / "tokenizer.json"
    file.write_text(byte_tokenizer(), encoding="utf-8")
    return save_pretrained(folder, config, random_weights(config, 0), labels=labels, tokenizer=file)


def test_the_byte_tokenizer_as_a_file_is_the_byte_tokenizer() -> None:
    ours = make_encoder(DataConfig(max_tokens=16))
    theirs = Tokenizer.from_str(byte_tokenizer())
    theirs.enable_truncation(max_length=16)
    assert ours.encode(TEXTS) == [encoding.ids for encoding in theirs.encode_batch(TEXTS)]
    assert theirs.get_vocab_size() == ours.vocabulary
    assert theirs.decode(ours.encode(TEXTS[:1])[0]) == ours.decode(ours.encode(TEXTS[:1])[0]) == "unity"


def test_transformers_reads_texts_as_we_do(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="its pipelines are the judge")
    transformers.logging.disable_progress_bar()
    folder = saved(tmp_path / "m", ModelConfig("bert", classes=3, **BYTES), ["cat", "dog", "owl"])
    trained = open_trained(folder)
    found = list(predict(trained, gather((), TEXTS, trained.data, True), top=3))
    classify = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    for ours, theirs in zip(found, classify(TEXTS, top_k=3, truncation=True), strict=True):
        assert [name for name, _ in ours.answers] == [entry["label"] for entry in theirs]
        shares = [entry["score"] for entry in theirs]
        assert [share for _, share in ours.answers] == pytest.approx(shares, abs=1e-5)


def test_lines_tables_and_folders_of_texts(tmp_path: Path) -> None:
    trained = open_trained(saved(tmp_path / "m", ModelConfig("bert", classes=2, **BYTES), ["good", "bad"]))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "t.csv").write_text('text,label\n"three, four",bad\nfive,good\n')
    items = gather([str(tmp_path / "in"), str(tmp_path / "t.csv")], ["six"], trained.data, True)
    assert [item.content for item in items] == ["six", "one", "two", "three, four", "five"]
    assert items[2].name.endswith("a.txt:3")
    assert len(list(predict(trained, items))) == 5
    examples = labelled(trained, str(tmp_path / "t.csv"), "test", {})
    assert examples.labels.tolist() == [1, 0]
    assert evaluate(trained, examples).samples == 2


def test_a_language_model(tmp_path: Path) -> None:
    """Perplexity is that of a plain loop over the tokens; the next token is the likeliest one."""
    config = ModelConfig("llama", task="language-modeling", **BYTES)
    trained = open_trained(saved(tmp_path / "m", config))
    (tmp_path / "t.txt").write_text("unity")
    found = evaluate(trained, labelled(trained, str(tmp_path / "t.txt"), "test", {}))
    ids = torch.tensor(trained.encoder.encode(["unity"]))
    logits = trained.outputs(ids)[0]
    loss = float(F.cross_entropy(logits[:-1], ids[0, 1:]))
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert set(found.to_dict()) == {"samples", "accuracy", "loss", "perplexity"}
    (answer,) = predict(trained, gather((), ["unity"], trained.data, True))
    likeliest = int(trained.outputs(ids)[0, -1].argmax())  # its tokenizer leaves the end of a text open
    assert answer.answers[0][0] == trained.encoder.decode([likeliest])


@pytest.mark.slow
def test_onnx_of_a_causal_classifier(tmp_path: Path) -> None:
    """Any batch, any length, padding on the right. Seven seconds."""
    onnxruntime: Any = pytest.importorskip("onnxruntime", reason="it is the judge")
    config = ModelConfig("llama", classes=3, **BYTES)
    trained = open_trained(saved(tmp_path / "m", config, ["cat", "dog", "owl"]))
    folder = export(trained, tmp_path / "onnx", "onnx")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    ids = torch.tensor([[1, 80, 90, 100, 2, 0, 0], [1, 70, 71, 72, 73, 74, 2]])
    theirs = torch.from_numpy(session.run(None, {"input_ids": ids.numpy()})[0])
    torch.testing.assert_close(theirs, trained.outputs(ids), atol=1e-4, rtol=0)
    assert (folder / "tokenizer.json").is_file()

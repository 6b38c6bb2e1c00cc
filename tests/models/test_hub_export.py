"""The exported folder is complete: `transformers.pipeline` predicts what was evaluated here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from cos2p import ModelConfig
from cos2p.data.examples import Normalize
from cos2p.errors import CheckpointError
from cos2p.models.hub import load_pretrained, save_pretrained
from tests.models.checkpoints import BERT, VIT
from tests.models.test_hub_fit import logits
from tests.submodel.strategies import CONFIGS, random_weights

transformers: Any = pytest.importorskip("transformers", reason="its pipelines are the judge")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

LABELS = ["cat", "dog", "owl"]
WORDS = ["[PAD]", "[UNK]", "unity", "is", "power", "many", "weak", "devices"]


def pictures(channels: int, edge: int = 4) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    shape = (5, edge, edge) if channels == 1 else (5, edge, edge, 3)
    return [Image.fromarray(pixels) for pixels in rng.integers(0, 256, shape, dtype=np.uint8)]


def prepared(images: list[Image.Image], config: ModelConfig, normalize: Normalize) -> torch.Tensor:
    mode = "L" if config.channels == 1 else "RGB"
    arrays = [np.asarray(image.convert(mode)).reshape(config.image, config.image, -1) for image in images]
    return normalize(torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2))


def predicted(kind: str, folder: Path, inputs: list[Any], **options: Any) -> torch.Tensor:
    """Probabilities in the order of the labels."""
    classify = transformers.pipeline(kind, model=str(folder), device="cpu")
    rows = classify(inputs, top_k=3, **options)
    return torch.tensor([[next(e["score"] for e in row if e["label"] == name) for name in LABELS] for row in rows])


@pytest.mark.parametrize(("channels", "given"), [(3, 3), (1, 1), (1, 3)])
def test_images(channels: int, given: int, tmp_path: Path) -> None:
    """A model of grey images is right about colour ones too, up to Pillow's rounding of the luma to a byte."""
    config, normalize = VIT.with_(channels=channels), Normalize((0.4,), (0.3,))
    weights = random_weights(config, 0)
    folder = save_pretrained(tmp_path / "m", config, weights, labels=LABELS, normalize=normalize)
    images = pictures(given)
    ours = logits(config, weights, prepared(images, config, normalize)).softmax(-1)
    theirs = predicted("image-classification", folder, images)
    assert (ours - theirs).abs().max() <= (2e-2 if given > channels else 1e-5)
    assert ours.argmax(1).tolist() == theirs.argmax(1).tolist()


def test_a_grey_model_comes_back_grey(tmp_path: Path) -> None:
    weights = random_weights(VIT, 0)
    config, back = load_pretrained(save_pretrained(tmp_path, VIT, weights, normalize=Normalize()))
    assert config == VIT
    torch.testing.assert_close(back["embed.patch.weight"], weights["embed.patch.weight"], atol=1e-6, rtol=1e-6)


def word_tokenizer(folder: Path) -> Path:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("name", ["bert", "llama classification"])
def test_texts(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    weights, file = random_weights(config, 0), word_tokenizer(tmp_path / "tokenizer")
    folder = save_pretrained(tmp_path / "m", config, weights, labels=LABELS, tokenizer=file)
    texts = ["unity is power", "many weak devices", "unity is power many weak devices power power"]
    ids = [[WORDS.index(word) for word in text.split()][: config.max_tokens] for text in texts]
    padded = torch.tensor([row + [0] * (config.max_tokens - len(row)) for row in ids])
    ours = logits(config, weights, padded).softmax(-1)
    theirs = predicted("text-classification", folder, texts, truncation=True, batch_size=3)
    assert (ours - theirs).abs().max() <= 1e-5


def test_everything_is_there_and_readable(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(tmp_path / "tokenizer")
    folder = save_pretrained(
        tmp_path / "m", BERT, random_weights(BERT, 0), labels=LABELS, tokenizer=tokenizer.parent, card="# A model\n"
    )
    assert {file.name for file in folder.iterdir()} == {
        "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o644}
    assert (folder / "README.md").read_text() == "# A model\n"
    assert json.loads((folder / "tokenizer_config.json").read_text())["pad_token"] == "[PAD]"
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json at .*; name the file or its folder"):
        save_pretrained(tmp_path / "n", BERT, random_weights(BERT, 0), tokenizer=tmp_path / "nothing")


def test_a_tokenizer_cuts_where_the_model_ends(tmp_path: Path) -> None:
    """Whatever lengths its own files say: sentence-transformers' pad and cut every text to 128 tokens."""
    file = word_tokenizer(tmp_path / "tokenizer")
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_padding(length=12, pad_token="[PAD]")
    tokenizer.enable_truncation(2)
    tokenizer.save(str(file))
    (file.parent / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512, "padding_side": "left"}))
    folder = save_pretrained(tmp_path / "m", BERT, random_weights(BERT, 0), tokenizer=file.parent)
    read = transformers.AutoTokenizer.from_pretrained(folder)
    ids = read(["unity is power", "many weak devices " * 9], padding=True, truncation=True)["input_ids"]
    assert ids == [[2, 3, 4, 0, 0, 0], [5, 6, 7, 5, 6, 7]]


def test_the_marks_of_a_language_model(tmp_path: Path) -> None:
    """Its end is where texts end, not LLaMA's token 2, which may be any word; and no prompt ends with it."""
    config = CONFIGS["llama tied"]
    words = {word: i for i, word in enumerate([*WORDS, "<s>", "</s>"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    plain = tmp_path / "plain.json"
    tokenizer.save(str(plain))
    marks = [("<s>", 8), ("</s>", 9)]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    tokenizer.enable_padding(length=12, pad_token="[PAD]")
    tokenizer.save(str(tmp_path / "marked.json"))
    for file, begins in ((plain, None), (tmp_path / "marked.json", 8)):
        folder = save_pretrained(tmp_path / file.stem, config, random_weights(config, 0), tokenizer=file)
        values = json.loads((folder / "config.json").read_text())
        assert (values["bos_token_id"], values["eos_token_id"]) == (begins, 9)
        read = transformers.AutoTokenizer.from_pretrained(folder)
        assert read("unity is power")["input_ids"] == [*([8] if begins else []), 2, 3, 4]
    unknown = save_pretrained(tmp_path / "unknown", config, random_weights(config, 0))
    assert transformers.AutoConfig.from_pretrained(unknown).eos_token_id is None

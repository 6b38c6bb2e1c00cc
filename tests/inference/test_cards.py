"""Whatever is exported answers by the code of its own model card as `cos2p predict` does, to 1e-4."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from cos2p.errors import CheckpointError
from cos2p.inference.exporting import export
from cos2p.inference.sources import Trained, open_trained, prepared
from cos2p.models.config import ModelConfig
from cos2p.models.hub import load_pretrained
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run
from tests.inference.cards import answers_of, assert_same, code_blocks, predicted, run_code
from tests.runtime.texts import texts
from tests.submodel.strategies import random_weights

transformers: Any = pytest.importorskip("transformers", reason="its pipelines are what is asked")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

LABELS = ("cat", "dog", "owl", "yak")
TEXTS = ["unity", "is power, über-all ☺", "x" * 40, "many weak devices"]
_SIZE: dict[str, Any] = {"dim": 16, "depth": 3, "heads": 4, "mlp": 24, "classes": 4}
_TEXT: dict[str, Any] = {**_SIZE, "vocab": 259, "max_tokens": 16}
_IMAGE: dict[str, Any] = {**_SIZE, "image": 8, "patch": 4}
_GROUPED: dict[str, Any] = {**_TEXT, "kv_heads": 2}

NATIVE = {
    "vit": ModelConfig("vit", **_IMAGE),
    "vit, grey": ModelConfig("vit", channels=1, **_IMAGE),
    "vit, shared exit": ModelConfig("vit", exits="shared", **_IMAGE),
    "bert": ModelConfig("bert", **_TEXT),
    "roberta": ModelConfig("bert", token_types=1, **_TEXT),
    "distilbert": ModelConfig("bert", token_types=0, **_TEXT),
    "llama": ModelConfig("llama", **_GROUPED),
    "qwen2": ModelConfig("llama", attention_bias="qkv", **_GROUPED),
    "qwen3": ModelConfig("llama", qk_norm=True, **_GROUPED),
}
"""Classifiers that `transformers` has."""
OTHERS = {
    "vit, mean": ModelConfig("vit", pooling="mean", **_IMAGE),
    "vit, grey, mean": ModelConfig("vit", channels=1, pooling="mean", **_IMAGE),
    "bert, mean": ModelConfig("bert", pooling="mean", **_TEXT),
    "bert, cls without pooler": ModelConfig("bert", pooler="none", **_TEXT),
    "roberta, mean": ModelConfig("bert", token_types=1, pooling="mean", **_TEXT),
    "distilbert, mean": ModelConfig("bert", token_types=0, pooling="mean", **_TEXT),
    "distilbert, cls without pooler": ModelConfig("bert", token_types=0, pooler="none", **_TEXT),
    "llama, mean": ModelConfig("llama", pooling="mean", **_GROUPED),
    "qwen2, mean": ModelConfig("llama", pooling="mean", attention_bias="qkv", **_GROUPED),
    "qwen3, mean": ModelConfig("llama", pooling="mean", qk_norm=True, **_GROUPED),
}
"""Classifiers that it has not."""
CAUSAL = {
    "llama": ModelConfig("llama", task="language-modeling", **_GROUPED),
    "llama, untied": ModelConfig("llama", task="language-modeling", tied=False, **_GROUPED),
    "qwen3": ModelConfig("llama", task="language-modeling", qk_norm=True, **_GROUPED),
}


def recipe(config: ModelConfig, **tables: Any) -> Recipe:
    data = {"source": "digits", "mean": [0.4], "std": [0.3]}
    if config.family != "vit":
        task = "classification" if config.task == "classification" else "language-modeling"
        data = {
            "source": "csv",
            "path": "d",
            "train": "t.csv",
            "text_column": "text",
            "tokenizer": "bytes",
            "task": task,
        }
    fleet = {"devices": [{"preset": "laptop"}]}
    return Recipe.parse({"name": "mine", "data": data, "fleet": fleet, "schedule": {"rounds": 1}, **tables})


def trained(config: ModelConfig, exit: int = 3, weights: Weights | None = None, **changes: Any) -> Trained:
    """As a run leaves it, without the run: weights that are random and do something."""
    given = recipe(config)
    data = prepared(given.data, config, "bytes" if config.family != "vit" else "").model_copy(update=changes)
    classes = LABELS if config.task == "classification" else ()
    result = {"title": "Co-S²P", "classes": list(classes), "devices": {}, "exits": {}}
    weights = random_weights(config, 3) if weights is None else weights
    return Trained("run", config, weights, exit, classes, data, recipe=given, result=result)


def front_matter(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8").split("---")[1]


def stored(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("exit", [3, 1])
@pytest.mark.parametrize("name", [*NATIVE, *OTHERS])
def test_a_classifier_answers_by_its_card(name: str, exit: int, tmp_path: Path, small_pictures: list[str]) -> None:
    ours = trained((NATIVE | OTHERS)[name], exit)
    folder = export(ours, tmp_path / "m", "hf")
    inputs = TEXTS if ours.is_text else small_pictures
    expected = predicted(ours, inputs)
    assert max(answers[0][1] for answers in expected) > 0.3, "the heads have to do something"
    assert_same(answers_of(run_code(code_blocks(folder)[0], folder, inputs, ours.is_text)), expected)
    assert_same(predicted(open_trained(folder), inputs), expected, 1e-5)  # and comes back as it was


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_is_pretended(name: str, tmp_path: Path) -> None:
    """No head that is none, no name of a class that a random head could say, no tag, no code that is loaded."""
    folder = export(trained(OTHERS[name]), tmp_path / "m", "hf")
    values = json.loads((folder / "config.json").read_text())
    assert values["architectures"][0].endswith("Model")
    assert values["cos2p_classes"] == list(LABELS)
    assert not {"id2label", "label2id", "auto_map"} & values.keys()
    assert not [name for name in stored(folder) if "classifier" in name or "score" in name or "pooler" in name]
    assert "pipeline_tag" not in front_matter(folder)
    module, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert type(module).__name__ == values["architectures"][0]
    assert not report["unexpected_keys"]
    assert all("pooler" in key for key in report["missing_keys"])


@pytest.mark.parametrize("name", NATIVE)
def test_the_tag_is_that_of_a_pipeline(name: str, tmp_path: Path) -> None:
    folder = export(trained(NATIVE[name]), tmp_path / "m", "hf")
    task = "image" if NATIVE[name].family == "vit" else "text"
    assert f"library_name: transformers\npipeline_tag: {task}-classification\n" in front_matter(folder)
    assert f'pipeline("{task}-classification"' in code_blocks(folder)[0]


@pytest.mark.parametrize("exit", [3, 2])
@pytest.mark.parametrize("name", CAUSAL)
def test_a_language_model_goes_on_by_its_card(name: str, exit: int, tmp_path: Path) -> None:
    """A pipeline's prompt is open at its end, as that of predict; the likeliest token comes next."""
    ours = trained(CAUSAL[name], exit)
    folder = export(ours, tmp_path / "m", "hf")
    prompts = ["unity", "is power"]
    used = run_code(code_blocks(folder)[0], folder, prompts)
    assert all(row[0]["generated_text"].startswith(text) for row, text in zip(used["answers"], prompts, strict=True))
    for text in prompts:
        ids = used["predict"].tokenizer(text, return_tensors="pt")
        assert ids["input_ids"].tolist() == [[1, *(byte + 3 for byte in text.encode())]]
        with torch.no_grad():
            shares = used["predict"].model(**ids).logits[0, -1].softmax(-1)
            first = used["predict"].model.generate(**ids, max_new_tokens=1, do_sample=False)[0, -1]
        ((label, share),) = predicted(ours, [text], top=1)[0]
        assert float(shares.max()) == pytest.approx(share, abs=1e-4)
        assert ours.encoder.decode([int(first)]) == label
    assert used["predict"].model.config.eos_token_id == 2
    assert_same(predicted(open_trained(folder), prompts), predicted(ours, prompts), 1e-5)
    assert "pipeline_tag: text-generation\n" in front_matter(folder)


def test_a_card_without_a_tokenizer_promises_nothing(tmp_path: Path) -> None:
    """A fleet's admin may not have the file that the recipe names."""
    folder = export(trained(OTHERS["bert, mean"], tokenizer="nowhere/tokenizer.json"), tmp_path / "m", "hf")
    assert code_blocks(folder) == []
    assert "The tokenizer was not at hand" in (folder / "README.md").read_text()
    assert not (folder / "modules.json").exists()


# Runs


@pytest.fixture(scope="module")
def mean_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts and their mean, with a head in closed form and adapters."""
    folder = tmp_path_factory.mktemp("mean")
    values = texts(folder)
    values["model"]["pooling"], values["schedule"]["rounds"] = "mean", 3
    values["method"] = {"name": "fedlora", "start": "means", "finish": "means"}
    run(Recipe.parse(values), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("form", ["run", "hf", "peft"])
def test_a_run_answers_by_its_cards(mean_run: Path, form: str, tmp_path: Path) -> None:
    ours = open_trained(mean_run)
    folder = mean_run / "model" if form == "run" else export(ours, tmp_path / "m", form)
    inputs = ["lmno rusl", "bdgk", "xxxx pppp dddd" * 3]
    assert_same(answers_of(run_code(code_blocks(folder)[0], folder, inputs)), predicted(ours, inputs))
    assert str(mean_run.parent) not in "".join(f.read_text() for f in folder.glob("*.json"))


def test_an_exported_run_is_a_start_for_another(mean_run: Path, tmp_path: Path) -> None:
    """The head that was trained, and the pooling it was trained behind, come along."""
    folder = export(open_trained(mean_run), tmp_path / "m", "hf")
    config, weights = load_pretrained(folder)
    assert (config.pooling, config.pooler, config.classes) == ("mean", "none", 2)
    head = load_file(mean_run / "weights.safetensors")["exits.2.linear.weight"]
    assert torch.equal(weights["exits.2.linear.weight"], head)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"classifier\.weight of shape \(2, 16\) is missing"):
        load_pretrained(folder)


# ONNX


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["bert, mean", "vit, mean", "bert", "qwen3"])
def test_onnx_answers_by_its_card(name: str, again: bool, tmp_path: Path, small_pictures: list[str]) -> None:
    """Without torch and transformers; from the run, and from the folder that was exported. Five seconds each."""
    pytest.importorskip("onnxruntime")
    ours = trained((NATIVE | OTHERS)[name], exit=2)
    inputs = TEXTS if ours.is_text else small_pictures
    model = open_trained(export(ours, tmp_path / "m", "hf")) if again else ours
    folder = export(model, tmp_path / "onnx", "onnx")
    (code,) = code_blocks(folder)
    assert "torch" not in code
    assert "transformers" not in code
    assert_same(answers_of(run_code(code, folder, inputs, ours.is_text)), predicted(ours, inputs))
    assert "pipeline_tag" not in front_matter(folder)


@pytest.mark.slow
def test_onnx_of_a_language_model_answers_by_its_card(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    ours = trained(CAUSAL["llama"])
    folder = export(ours, tmp_path / "m", "onnx")
    found = answers_of(run_code(code_blocks(folder)[0], folder, ["unity", "is power"]))
    for row, expected in zip(found, predicted(ours, ["unity", "is power"]), strict=True):
        assert [share for _, share in row] == pytest.approx([share for _, share in expected], abs=1e-4)
        assert [token for token, _ in row] == [token for token, _ in expected]


# Checkpoints of other types, as they were read


_THEIRS: dict[str, Any] = {"num_labels": 4, "vocab_size": 259, "pad_token_id": 0, "max_position_embeddings": 16}
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
_DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40}
READ: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Dinov2": ({**_SIZES, "image_size": 8, "patch_size": 4, "num_labels": 4}, ["cls", "mean"]),
    "Roberta": ({**_SIZES, **_THEIRS, "max_position_embeddings": 17, "type_vocab_size": 1}, ["cls", "mean"]),
    "DistilBert": ({**_DISTIL, **_THEIRS}, ["cls", "mean"]),
    "Mistral": ({**_SIZES, **_THEIRS, "num_key_value_heads": 2, "sliding_window": 16}, ["last", "mean"]),
}


@pytest.mark.parametrize(("kind", "pooling"), [(kind, pooling) for kind in READ for pooling in READ[kind][1]])
def test_other_types_answer_by_their_card(kind: str, pooling: str, tmp_path: Path, small_pictures: list[str]) -> None:
    torch.manual_seed(0)
    module = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**READ[kind][0]))
    module.save_pretrained(tmp_path / "theirs")
    config, weights = load_pretrained(tmp_path / "theirs", pooling=pooling, classes=4)
    weights |= {name: tensor * 20 for name, tensor in weights.items() if ".linear." in name}
    ours = trained(config, exit=2, weights=weights)
    inputs = TEXTS if ours.is_text else small_pictures
    folder = export(ours, tmp_path / "m", "hf")
    found = answers_of(run_code(code_blocks(folder)[0], folder, inputs, ours.is_text))
    assert_same(found, predicted(ours, inputs))


# sentence-transformers


def end_padded(file: Path) -> str:
    """A tokenizer that has no padding of its own and puts its end mark, with which texts are padded, behind a text."""
    words = ["<s>", "</s>", "<unk>", *"unitysrpowe"]
    words = ["<s>", "</s>", "<unk>", *"unitysrpowe"]
    letters = {letter: number for number, letter in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    around = [("<s>", 0), ("</s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    tokenizer.save(str(file))
    return str(file)


def test_no_sentence_model_where_padding_is_a_word_of_its_own_too(tmp_path: Path) -> None:
    """The mean here leaves the end mark out, that of sentence-transformers would not."""
    config = OTHERS["llama, mean"].with_(vocab=20, pad_token=1)
    ours = trained(config, tokenizer=end_padded(tmp_path / "tokenizer.json"))
    folder = export(ours, tmp_path / "m", "hf")
    assert not (folder / "modules.json").exists()
    (code,) = code_blocks(folder)
    inputs = ["unity", "is power"]
    assert_same(answers_of(run_code(code, folder, inputs)), predicted(ours, inputs))


@pytest.mark.parametrize("name", [name for name in OTHERS if not name.startswith("vit")])
def test_sentence_transformers(name: str, tmp_path: Path) -> None:
    """Its own format, by its files: encoder, pooling, linear layer without activation; by itself where it is."""
    ours = trained(OTHERS[name])
    folder = export(ours, tmp_path / "m", "hf")
    modules = json.loads((folder / "modules.json").read_text())
    assert [(m["path"], m["type"]) for m in modules] == [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Dense", "sentence_transformers.models.Dense"),
    ]
    assert "library_name: sentence-transformers\n" in front_matter(folder)
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    _, code = code_blocks(folder)
    assert_same(answers_of(run_code(code, folder, TEXTS)), predicted(ours, TEXTS))


@pytest.mark.slow
def test_a_card_runs_as_it_stands_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Word for word, offline, with nothing of cos2p on the path. Six seconds."""
    ours = trained(OTHERS["bert, mean"])
    folder = export(ours, tmp_path / "m", "hf")
    (tmp_path / "card.py").write_text(code_blocks(folder)[0])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(tmp_path / "card.py")],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "MISSING" not in done.stderr + done.stdout
    rows = eval(done.stdout.strip().splitlines()[-1])
    assert_same(answers_of({"answers": rows}), predicted(ours, ["a text", "another text"]))

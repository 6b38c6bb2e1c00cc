"""A folder of adapters answers by the code of its card, with the base that lies in it or that a hub has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cos2p.errors import CheckpointError
from cos2p.inference.exporting import export
from cos2p.inference.sources import Trained, open_trained
from cos2p.models import hub_files
from cos2p.models.config import ModelConfig
from cos2p.models.hub import load_pretrained, save_pretrained
from cos2p.models.layout import Weights
from tests.inference.cards import answers_of, assert_same, code_blocks, predicted, run_code
from tests.inference.test_cards import CAUSAL, LABELS, NATIVE, OTHERS, TEXTS, front_matter, trained
from tests.models.test_hub_adapter import adapted
from tests.submodel.strategies import random_weights

pytest.importorskip("peft", reason="peft is not installed (pip install cos2p[peft])")
transformers: Any = pytest.importorskip("transformers")

CASES = [
    "bert",
    "vit, grey",
    "llama",
    "distilbert",
    "bert, mean",
    "vit, mean",
    "qwen3, mean",
    "bert, cls without pooler",
]
NAME = "someone/base"


def with_adapters(config: ModelConfig, exit: int = 3, base: Weights | None = None) -> Trained:
    """As `fedlora` leaves a model."""
    return trained(config, exit, adapted(config, random_weights(config, 3) if base is None else base))


def of_hub(ours: Trained) -> Trained:
    """Its recipe names a model on a hub."""
    assert ours.recipe is not None
    model = ours.recipe.model.model_copy(update={"pretrained": NAME})
    return Trained(**{**vars(ours), "recipe": ours.recipe.model_copy(update={"model": model})})


def answers(folder: Path, ours: Trained, inputs: list[str]) -> Any:
    (code,) = code_blocks(folder)
    return answers_of(run_code(code, folder, inputs, ours.is_text))


@pytest.mark.parametrize("name", CASES)
def test_adapters_with_their_base_beside_them(name: str, tmp_path: Path, small_pictures: list[str]) -> None:
    ours = with_adapters((NATIVE | OTHERS)[name])
    folder = export(ours, tmp_path / "m", "peft")
    inputs = TEXTS if ours.is_text else small_pictures
    expected = predicted(ours, inputs)
    assert_same(answers(folder, ours, inputs), expected)
    values = json.loads((folder / "adapter_config.json").read_text())
    assert values["base_model_name_or_path"] == "base"
    assert "library_name: peft\n" in front_matter(folder)
    assert "pipeline_tag" not in front_matter(folder)
    assert {"adapter_config.json", "adapter_model.safetensors", "base", "config.json"} <= {
        f.name for f in folder.iterdir()
    }


@pytest.mark.parametrize("name", ["bert", "llama, mean"])
def test_adapters_below_an_exit(name: str, tmp_path: Path) -> None:
    ours = with_adapters((NATIVE | OTHERS)[name], exit=2)
    folder = export(ours, tmp_path / "m", "peft")
    assert_same(answers(folder, ours, TEXTS), predicted(ours, TEXTS))
    values = json.loads((folder / "adapter_config.json").read_text())
    assert not [module for module in values["target_modules"] if ".2." in module]


def test_adapters_of_a_language_model(tmp_path: Path) -> None:
    ours = with_adapters(CAUSAL["llama"])
    folder = export(ours, tmp_path / "m", "peft")
    (code,) = code_blocks(folder)
    used = run_code(code, folder, ["unity"])
    ids = used["predict"].tokenizer("unity", return_tensors="pt")
    with torch.no_grad():
        shares = used["model"](**ids).logits[0, -1].softmax(-1)
    assert float(shares.max()) == pytest.approx(predicted(ours, ["unity"], top=1)[0][0][1], abs=1e-4)


@pytest.mark.parametrize("name", ["bert", "vit", "bert, mean"])
def test_a_base_on_a_hub_is_named(
    name: str, tmp_path: Path, small_pictures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other classes, and in float16 as many are; it is not written again."""
    config = (NATIVE | OTHERS)[name]
    half = {n: t.half() for n, t in random_weights(config.with_(classes=7), 3).items()}
    hub = save_pretrained(tmp_path / "hub", config.with_(classes=7), half)
    monkeypatch.setattr(hub_files, "_download", lambda name: {NAME: hub}[name])
    ours = of_hub(with_adapters(config, base=load_pretrained(hub, classes=4)[1]))
    folder = export(ours, tmp_path / "m", "peft")
    assert not (folder / "base").exists()
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == NAME
    assert f"base_model: {NAME}\n" in front_matter(folder)
    shutil.copytree(hub, folder / NAME)  # what transformers would fetch
    inputs = TEXTS if ours.is_text else small_pictures
    assert_same(answers(folder, ours, inputs), predicted(ours, inputs))


@pytest.mark.parametrize("change", ["depth", "weights", "image", "roberta", "not there"])
def test_a_base_that_is_another_model_is_not_named(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_pictures: list[str]
) -> None:
    """Cut, trained on, brought to other images, of a type that is not written: the base is in the folder."""
    config = NATIVE["vit" if change == "image" else "bert"]
    stored = config.with_(**{"depth": {"depth": 4}, "image": {"image": 16}}.get(change, {}))
    hub = save_pretrained(tmp_path / "hub", stored, random_weights(stored, 3))
    if change == "roberta":
        sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24}
        theirs = transformers.RobertaConfig(**sizes, vocab_size=259, pad_token_id=0, type_vocab_size=2)
        transformers.RobertaModel(theirs).save_pretrained(hub)
    monkeypatch.setattr(hub_files, "_download", lambda _name: hub)
    chosen = {"depth": 3} if change == "depth" else {"image": 8} if change == "image" else {}
    base = load_pretrained(hub, classes=4, **chosen)
    weights = base[1] if change != "weights" else base[1] | {"blocks.0.k.weight": base[1]["blocks.0.k.weight"] + 0.01}
    if change == "not there":
        monkeypatch.undo()
    ours = of_hub(with_adapters(base[0], base=weights))
    folder = export(ours, tmp_path / "m", "peft")
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "base"
    inputs = TEXTS if ours.is_text else small_pictures
    assert_same(answers(folder, ours, inputs), predicted(ours, inputs))


def test_names_of_classes_and_the_tokenizer_are_there(tmp_path: Path) -> None:
    for name, field in (("bert", "id2label"), ("bert, mean", "cos2p_classes")):
        folder = export(with_adapters((NATIVE | OTHERS)[name]), tmp_path / name, "peft")
        values = json.loads((folder / "config.json").read_text())[field]
        assert list(values.values() if isinstance(values, dict) else values) == list(LABELS)
        assert {"tokenizer.json", "tokenizer_config.json", "README.md"} <= {file.name for file in folder.iterdir()}
        assert {file.stat().st_mode & 0o777 for file in folder.rglob("*") if file.is_file()} == {0o644}
        assert str(tmp_path) not in (folder / "adapter_config.json").read_text()
        with pytest.raises(CheckpointError, match=r"is an adapter of a classifier, which is not read here; its README"):
            open_trained(folder)

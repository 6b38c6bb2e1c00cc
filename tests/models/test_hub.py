"""What a checkpoint may and may not look like. Needs no transformers: parity is in test_hub_parity.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from cos2p import ModelConfig
from cos2p.errors import CheckpointError, ConfigError
from cos2p.models.hub import load_pretrained, save_pretrained
from cos2p.models.layout import Weights, init_tensor
from tests.models.checkpoints import BERT, VIT, change_config, change_tensors
from tests.submodel.strategies import CONFIGS, random_weights


def equal_but_for_shallow_exits(a: Weights, b: Weights, depth: int) -> bool:
    deep = [n for n in a if not n.startswith("exits.") or n.startswith((f"exits.{depth}.", "exits.shared."))]
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in deep)


@pytest.mark.parametrize("name", CONFIGS)
def test_round_trip_is_bitwise(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    weights = random_weights(config, 0)
    loaded, back = load_pretrained(save_pretrained(tmp_path, config, weights), exits=config.exits)
    assert loaded == config
    assert equal_but_for_shallow_exits(back, weights, config.depth)
    assert not list(tmp_path.glob("*.part"))


def test_no_transformers_is_needed(vit: Path) -> None:
    code = "import sys; sys.modules['transformers'] = None; from cos2p.models.hub import load_pretrained as load, "
    code += "save_pretrained as save; save(sys.argv[2], *load(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(vit), str(vit / "again")], check=True, timeout=120)
    assert (vit / "again" / "model.safetensors").read_bytes() == (vit / "model.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(vit: Path, dtype: torch.dtype) -> None:
    halves = {name: tensor.to(dtype) for name, tensor in load_file(vit / "model.safetensors").items()}
    save_file(halves, vit / "model.safetensors")
    _, weights = load_pretrained(vit)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert torch.equal(weights["embed.cls"], random_weights(VIT, 0)["embed.cls"].to(dtype).float())


def test_shards(bert: Path) -> None:
    _, expected = load_pretrained(bert)
    tensors = load_file(bert / "model.safetensors")
    names = sorted(tensors)
    files = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, bert / file)
    (bert / "model.safetensors").unlink()
    (bert / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    _, found = load_pretrained(bert)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    (bert / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names model-00002-of-00002\.safetensors, which is not in the folder"):
        load_pretrained(bert)


def test_old_spellings_and_buffers_are_understood(bert: Path) -> None:
    _, expected = load_pretrained(bert)
    tensors = load_file(bert / "model.safetensors")
    old = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
           for n, t in tensors.items()}  # fmt: skip
    old["bert.embeddings.position_ids"] = torch.arange(6)[None]
    old["cls.seq_relationship.bias"] = torch.zeros(2)
    save_file(old, bert / "model.safetensors")
    _, found = load_pretrained(bert)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


# Heads and overrides


def test_another_number_of_classes_means_a_fresh_linear_layer(vit: Path) -> None:
    config, weights = load_pretrained(vit, classes=7, seed=4)
    assert config == VIT.with_(classes=7)
    for depth in (1, VIT.depth):
        assert torch.equal(
            weights[f"exits.{depth}.linear.weight"], init_tensor(config, f"exits.{depth}.linear.weight", 4)
        )
        assert torch.equal(weights[f"exits.{depth}.norm.weight"], random_weights(VIT, 0)["exits.4.norm.weight"])


def test_the_same_number_of_classes_keeps_the_head(vit: Path) -> None:
    _, weights = load_pretrained(vit, classes=3)
    assert torch.equal(weights["exits.4.linear.weight"], random_weights(VIT, 0)["exits.4.linear.weight"])
    assert torch.equal(weights["exits.1.linear.weight"], weights["exits.4.linear.weight"])


def test_a_bare_model_may_lack_its_head_and_its_pooler(bert: Path) -> None:
    change_config(bert, architectures=["BertModel"])
    change_tensors(bert, classifier__weight=None, classifier__bias=None)
    _, weights = load_pretrained(bert, classes=3)
    assert torch.equal(weights["exits.2.pooler.weight"], random_weights(BERT, 0)["exits.4.pooler.weight"])
    assert torch.equal(weights["exits.2.linear.weight"], init_tensor(BERT, "exits.2.linear.weight", 0))
    change_tensors(bert, bert__pooler__dense__weight=None, bert__pooler__dense__bias=None)
    _, weights = load_pretrained(bert, classes=3)
    assert torch.equal(weights["exits.2.pooler.weight"], init_tensor(BERT, "exits.2.pooler.weight", 0))


def test_bert_can_keep_fewer_positions_but_not_more(bert: Path) -> None:
    config, weights = load_pretrained(bert, max_tokens=4)
    assert config.max_tokens == 4
    assert torch.equal(weights["embed.positions"], random_weights(BERT, 0)["embed.positions"][:4])
    with pytest.raises(CheckpointError, match="has learned positions for 6 tokens, not 9"):
        load_pretrained(bert, max_tokens=9)


def test_what_the_tensors_decide_cannot_be_overridden(vit: Path) -> None:
    with pytest.raises(CheckpointError, match="has mlp 10, not 8; only channels, classes, depth, exits, image"):
        load_pretrained(vit, mlp=8)
    with pytest.raises(ConfigError, match="unknown model field 'clases'"):
        load_pretrained(vit, clases=3)
    assert load_pretrained(vit, mlp=10)[0] == VIT


def test_a_classifier_has_no_output_table(tmp_path: Path) -> None:
    config = CONFIGS["llama classification"].with_(tied=False)
    save_pretrained(tmp_path, config, random_weights(config, 0))
    with pytest.raises(CheckpointError, match=r"has no output table \(lm_head\.weight\)"):
        load_pretrained(tmp_path, task="language-modeling")


def test_a_tied_model_that_carries_its_table_twice(tmp_path: Path) -> None:
    config = CONFIGS["llama tied"]
    save_pretrained(tmp_path, config, random_weights(config, 0))
    change_tensors(tmp_path, lm_head__weight=torch.zeros(20, 16))
    assert load_pretrained(tmp_path)[0] == config


# Saving


def test_only_what_the_model_has_can_be_saved(tmp_path: Path) -> None:
    weights = random_weights(VIT, 0)
    with pytest.raises(CheckpointError, match="exit 5 does not exist; the model has exits 1 to 4"):
        save_pretrained(tmp_path / "x", VIT, weights, exit=5)
    missing = {name: tensor for name, tensor in weights.items() if name != "blocks.3.q.bias"}
    with pytest.raises(CheckpointError, match=r"the weights lack blocks\.3\.q\.bias of shape \(16,\)"):
        save_pretrained(tmp_path / "x", VIT, missing)
    with pytest.raises(CheckpointError, match=r"embed\.cls has shape \(2,\), the model says \(1, 1, 16\)"):
        save_pretrained(tmp_path / "x", VIT, weights | {"embed.cls": torch.zeros(2)})
    narrow = ModelConfig("vit", dim=16, depth=1, heads=2, head_dim=4, mlp=4, image=4, patch=2)
    with pytest.raises(CheckpointError, match=r"head_dim is 4; a Hugging Face vit has heads of dim / heads = 16/2"):
        save_pretrained(tmp_path / "x", narrow, random_weights(narrow, 0))
    with pytest.raises(CheckpointError, match="2 labels for 3 classes; give one distinct name for each class"):
        save_pretrained(tmp_path / "x", VIT, weights, labels=["cat", "dog"])
    assert not (tmp_path / "x").exists()


def test_labels_are_written(tmp_path: Path) -> None:
    save_pretrained(tmp_path, VIT, random_weights(VIT, 0), labels=["cat", "dog", "owl"])
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["id2label"] == {"0": "cat", "1": "dog", "2": "owl"}
    assert values["label2id"] == {"cat": 0, "dog": 1, "owl": 2}
    assert values["architectures"] == ["ViTForImageClassification"]
    assert load_pretrained(tmp_path)[0] == VIT


# Names on the hub


def test_a_hub_name_downloads_json_and_safetensors_only(vit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, list[str]]] = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        calls.append((name, allow_patterns))
        return str(vit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_pretrained("someone/some-vit")[0] == VIT
    assert calls == [("someone/some-vit", ["*.json", "*.safetensors"])]


def test_an_unreachable_hub_says_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, **_: Any) -> str:
        raise ConnectionError("Name or service not known\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError) as error:
        load_pretrained("someone/some-vit")
    assert "no folder 'someone/some-vit' here" in str(error.value)
    assert "(Name or service not known);" in str(error.value)
    assert "hf download someone/some-vit --include '*.json' '*.safetensors' --local-dir DIR" in str(error.value)


@pytest.mark.parametrize("folder", ["/no/such/folder", "./nothing", "~/nothing-here", "a/b/c", Path("someone/vit")])
def test_a_folder_that_is_not_there_does_not_reach_for_the_network(
    folder: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match=r"no checkpoint folder at .*; give a folder with config\.json"):
        load_pretrained(folder)

"""The model a recipe means, once the data are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import cos2p
from cos2p import ModelConfig
from cos2p.data import Bundle
from cos2p.errors import CheckpointError, ConfigError, RecipeError
from cos2p.memory.planning import choose
from cos2p.models.hub import save_pretrained
from cos2p.models.layout import init_weights, layout
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import Place, build_run_setup, first_weights, model_config
from tests.runtime.small import small
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import examples

CAUSAL = CONFIGS["llama tied"]


def bundle(config: ModelConfig) -> Bundle:
    samples = examples(config, 4)
    return Bundle(samples, samples, samples)


def recipe(**fields: Any) -> Any:
    return small(model={"dim": None, "depth": None, "heads": None, "mlp": None, **fields})


@pytest.mark.parametrize("name", ["vit", "bert", "llama classification", "llama tied", "llama untied"])
def test_a_checkpoint_and_data_that_agree(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    given = recipe(pretrained=str(save_pretrained(tmp_path, config, random_weights(config, 0))))
    found = model_config(given, bundle(config))
    assert found == config
    weights = first_weights(given, found)
    assert {key: tuple(tensor.shape) for key, tensor in weights.items()} == {
        k: p.shape for k, p in layout(found).items()
    }


def test_a_causal_checkpoint_classifies_labelled_texts(tmp_path: Path) -> None:
    given = recipe(pretrained=str(save_pretrained(tmp_path, CAUSAL, random_weights(CAUSAL, 0))), depth=2)
    labelled = bundle(CAUSAL.with_(task="classification", classes=3, max_tokens=4))
    found = model_config(given, labelled)
    assert found == CAUSAL.with_(task="classification", classes=3, max_tokens=4, depth=2)
    assert first_weights(given, found)["exits.2.linear.weight"].shape == (3, 16)


def test_what_the_recipe_says_of_a_checkpoint_is_never_ignored(tmp_path: Path) -> None:
    folder = str(save_pretrained(tmp_path, CAUSAL, random_weights(CAUSAL, 0)))
    with pytest.raises(CheckpointError, match="has mlp 10, not 12"):
        model_config(recipe(pretrained=folder, mlp=12), bundle(CAUSAL))


def test_a_fresh_llama_is_what_the_data_ask_for() -> None:
    labelled = bundle(cos2p.model_config("llama-nano", task="classification", classes=3))
    found = model_config(recipe(size="llama-nano"), labelled)
    assert found == cos2p.model_config("llama-nano", task="classification", classes=3)
    assert init_weights(found, 0)["exits.4.linear.weight"].shape == (3, 64)
    with pytest.raises(ConfigError, match="language-modeling is for llama"):
        model_config(recipe(size="bert-nano"), bundle(cos2p.model_config("llama-nano")))


def on(accelerator: str, **training: Any) -> Recipe:
    device = {"preset": "jetson-xavier-nx-8gb", "rate": 0.0625, "accelerator": accelerator}
    return small(fleet={"devices": [device]}, training={"epochs": 1, **training})


def test_a_gpu_that_is_not_there_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="accelerator 'cuda' is not on this machine"):
        build_run_setup(on("cuda"))
    with pytest.raises(RecipeError, match=r"fleet\.devices\.0\.accelerator"):
        on("gpu")


def test_tasks_on_a_gpu_are_cut_to_what_its_allocator_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    run_setup = build_run_setup(on("auto"))
    (name,) = run_setup.places
    assert run_setup.places[name] == Place(torch.device("cuda:0"), 5_000_000_000)
    assert run_setup.context.members[name].device.memory == 5_000_000_000 - 44 * 2**20


def test_a_rate_that_nobody_set_is_one_whose_tasks_fit_as_the_method_makes_them() -> None:
    """Blocks that stay around a window take bytes that the rate does not tell of."""
    kept: dict[str, Any] = {
        "name": "cos2p",
        "window": {"rest": "kept"},
        "masks": {"heads": "random", "units": "fixed"},
        "exits": {"kind": "none"},
        "factors": {"below": 0},
    }
    device = {"preset": "laptop", "count": 2, "batch": 8}
    wide = {"model": {"dim": 64, "depth": 6, "heads": 4, "mlp": 256}, "fleet": {"devices": [device]}}

    def rates(memory: int, **method: Any) -> set[float]:
        devices = [{**device, "memory": memory}]
        found = build_run_setup(
            Recipe.parse({**_values(wide), "fleet": {"devices": devices}, "method": {**kept, **method}})
        )
        members = found.context.members.values()
        for member in members:
            assert choose(found.method(), member) == member.part
        return {member.rate for member in members}

    removed = {"window": {"rest": "removed"}, "masks": {"heads": "random", "units": "random"}}
    plenty, little, plain = rates(10**9), rates(6_000_000), rates(6_000_000, **removed)
    assert plenty == {1.0}
    assert max(little) < 1.0
    assert max(plain) < 1.0


def _values(changes: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = small(**changes).model_dump(mode="json", exclude_none=True)
    return values


def test_a_batch_larger_than_the_data_is_said() -> None:
    (note,) = build_run_setup(small(fleet={"devices": [{"preset": "laptop", "count": 3, "batch": 4096}]})).notes
    assert note.startswith("batch 4096 is more than any laptop has (")
    assert not build_run_setup(small(fleet={"devices": [{"preset": "laptop", "count": 3, "batch": 2}]})).notes

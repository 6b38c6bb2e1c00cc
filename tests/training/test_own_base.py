"""A checkpoint in a device's own files: it is not sent, and nothing else changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cos2p.errors import RecipeError
from cos2p.messages import Precision
from cos2p.methods import make_contract
from cos2p.models.hub import load_pretrained, save_pretrained
from cos2p.models.layout import init_weights
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run
from cos2p.server.client_cache import ClientCaches
from cos2p.training.client_cache import ClientCache, part_name
from cos2p.training.own_base import own_names, own_parts
from tests.submodel.strategies import CONFIGS
from tests.tiny import VIT, order, window

CAUSAL = CONFIGS["llama tied"]


def digits(checkpoint: Path, method: dict[str, Any], **device: Any) -> Recipe:
    own = {"preset": "laptop", "name": "dev", "count": 3, "batch": 8, **device}
    return Recipe.parse(
        {
            "name": "own-base",
            "model": {"pretrained": str(checkpoint)},
            "data": {"source": "digits", "train_samples": 60, "test_samples": 30},
            "fleet": {"devices": [own]},
            "training": {"epochs": 1, "lr": 1e-3},
            "schedule": {"rounds": 3, "evaluate_every": 1000},
            "method": method,
            "run": {"workers": 1},
        }
    )


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("rows", [None, (1, 4, 5)])
def test_parts_are_named_as_those_that_a_task_brings(
    tmp_path: Path, precision: Precision, rows: tuple[int, ...] | None
) -> None:
    folder = save_pretrained(tmp_path / "base", CAUSAL, init_weights(CAUSAL, 3))
    config, weights = load_pretrained(folder)
    given = replace(order(replace(window(config, config.depth - 2), rows=rows), prefix_precision=precision), version=1)
    caches = ClientCaches(config)
    caches.claim(given.client, own_names(folder, config, precision, rows))
    cached = caches.plan(make_contract(config, given), weights)
    assert cached is not None
    assert cached.held == cached.parts.keys() != set()
    kept = ClientCache(tmp_path / "cache")
    assert all(map(kept.put, own_parts(folder, config, precision, rows)))
    for name in cached.parts.values():
        assert part_name(kept.get(name)) == name
    other = {name: tensor + 1 for name, tensor in weights.items()}
    changed = caches.plan(make_contract(config, given), other)
    assert changed is not None
    assert not changed.held, "another checkpoint has other names, and is sent"


def test_a_client_that_lacked_a_part_is_sent_everything_and_newer_parts_count(tmp_path: Path) -> None:
    folder = save_pretrained(tmp_path, VIT, init_weights(VIT, 3))
    config, weights = load_pretrained(folder)
    caches, names = ClientCaches(config), own_names(folder, config, "float16", None)
    given = replace(order(window(config, 2, 1), prefix_precision="float16"), version=1)
    caches.claim(given.client, names)
    newer = {name: tensor + 1 if name.startswith("blocks.0.") else tensor for name, tensor in weights.items()}
    cached = caches.plan(make_contract(config, given), newer)
    assert cached is not None
    assert "blocks.0." not in cached.held
    caches.answered(replace(given, cached=cached), stored=True, features_kept=False)
    caches.claim(given.client, names)  # its process began anew
    again = caches.plan(make_contract(config, given), newer)
    assert again is not None
    assert again.held == again.parts.keys()
    caches.forget(given.client)
    nothing = caches.plan(make_contract(config, given), newer)
    assert nothing is not None
    assert not nothing.held


@pytest.mark.parametrize("method", [{"name": "fedlora", "rank": 2}, {"name": "cos2p"}])
def test_a_simulated_run_counts_no_byte_of_it_and_learns_the_same(tmp_path: Path, method: dict[str, Any]) -> None:
    torch.manual_seed(0)
    config = VIT.with_(image=8, patch=4, channels=1, classes=10)
    checkpoint = save_pretrained(tmp_path / "base", config, init_weights(config, 3))
    results = {}
    for base in (False, True):
        run(digits(checkpoint, method, base=base), tmp_path / str(base))
        results[base] = json.loads((tmp_path / str(base) / "result.json").read_text())
    assert (tmp_path / "True" / "weights.safetensors").read_bytes() == (
        tmp_path / "False" / "weights.safetensors"
    ).read_bytes()
    frozen = sum(t.nbytes for part in own_parts(checkpoint, config, "float16", None) for t in part.values())
    saved = results[False]["bytes_down"] - results[True]["bytes_down"]
    assert saved > (2.5 if method["name"] == "fedlora" else 0.5) * frozen
    assert results[True]["bytes_up"] == results[False]["bytes_up"]


def test_a_fresh_model_has_no_checkpoint() -> None:
    with pytest.raises(RecipeError, match=r"fleet\.devices\.0\.base: a fresh model has no checkpoint"):
        Recipe.load("quickstart", ["fleet.devices.0.base=true"])

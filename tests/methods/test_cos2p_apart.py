"""Factors of a language model: its base stays as it is, and what rounds add to it travels as factors do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from cos2p import model_config
from cos2p.aggregation.merge import Contribution
from cos2p.inference.exporting import export
from cos2p.inference.sources import open_trained
from cos2p.methods import make_contract, make_trainer, run_task
from cos2p.methods.adapters.factors import adapter_shapes, is_adapter, merged
from cos2p.methods.cos2p.factored import ApartMerge, _leading
from cos2p.models.hub import save_pretrained
from cos2p.models.layout import Weights, init_weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup, first_weights
from cos2p.runtime.simulation import run
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server
from tests.runtime.texts import texts
from tests.tiny import assert_close, same

CAUSAL = model_config(
    "llama-nano", dim=32, depth=3, heads=4, kv_heads=2, mlp=64, vocab=259, max_tokens=24, task="language-modeling"
)


def recipe(folder: Path, method: str = "cos2p-sync", **changes: Any) -> Recipe:
    values = texts(folder, task="language-modeling", lr=1e-2)
    base = save_pretrained(folder / "base", CAUSAL, init_weights(CAUSAL, 3))
    values["model"] = {"pretrained": str(base)}
    values["data"]["max_tokens"] = 24
    values["fleet"]["devices"] = [{"preset": "laptop", "count": 3, "batch": 8}]
    values["schedule"] = {"rounds": 4, "evaluate_every": 1000}
    values["method"] = {"name": method, "prefix": {"precision": "float32"}}
    if method == "fedlora":
        values["method"] = {"name": method, "rank": 16, "lr_factor": 1.0, "precision": "float32"}
    for path, value in changes.items():
        table, _, field = path.partition("__")
        values[table][field] = value
    return Recipe.parse(values)


def result(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "result.json").read_text()))


def test_the_base_travels_once_and_what_was_added_as_factors(tmp_path: Path) -> None:
    for method in ("cos2p-sync", "fedlora"):
        run(recipe(tmp_path, method), tmp_path / method)
    own, lora = result(tmp_path / "cos2p-sync"), result(tmp_path / "fedlora")
    assert own["bytes_up"] == pytest.approx(lora["bytes_up"], rel=0.02)
    assert own["bytes_down"] <= 1.02 * lora["bytes_down"]
    assert own["loss"] < own["base"]["loss"]


def after_rounds(folder: Path, rounds: int) -> tuple[Server, Any]:
    """The server after some rounds, and its setup."""
    setup = build_run_setup(recipe(folder))
    server = Server(setup.context, setup.method(), first_weights(setup.recipe, setup.config))
    waiting = [effect for name in setup.context.members for effect in server.handle(ClientJoined(name))]
    for _ in range(rounds):
        effects: list[Any] = []
        for effect in [each for each in waiting if isinstance(each, Send)]:
            update, _ = run_task(setup.config, server.orders.task(effect.order), setup.shards[effect.order.client], {})
            effects += server.receive(effect.order.client, update.to_bytes())
        waiting = effects
    return server, setup


def test_a_device_reads_the_matrices_that_the_server_evaluates_bit_for_bit(tmp_path: Path) -> None:
    server, setup = after_rounds(tmp_path, 2)
    before = first_weights(setup.recipe, setup.config)
    order = next(iter(server.orders.values()))
    task = server.orders.task(order)
    assert any(map(is_adapter, task.weights))
    assert not [name for name in before if not name.startswith("exit") and server.weights[name].ne(before[name]).any()]
    trainer = make_trainer(setup.config, order)
    trainer.run(task, setup.shards[order.client], {})
    evaluated = server.method.evaluated_weights(server.weights)
    for block in range(setup.config.depth):
        start = f"blocks.{block}."
        read = {start + name: tensor for name, tensor in trainer._frozen().part(start).items()}
        assert same(read, {name: evaluated[name] for name in read})
    assert not torch.equal(evaluated["blocks.1.v.weight"], before["blocks.1.v.weight"])


def test_it_takes_the_bytes_of_fedlora_with_the_same_rank(tmp_path: Path) -> None:
    peaks = []
    for method in ("cos2p-sync", "fedlora"):
        setup = build_run_setup(recipe(tmp_path, method))
        server = Server(setup.context, setup.method(), first_weights(setup.recipe, setup.config))
        (name, *_) = setup.context.members
        (sent,) = [effect for effect in server.handle(ClientJoined(name)) if isinstance(effect, Send)]
        assert sent.order.settings["rank"] == 16
        peaks.append(make_contract(setup.config, sent.order).memory(100).total)
    assert peaks[0] <= peaks[1]


def test_what_it_trained_is_a_peft_adapter_and_a_model(tmp_path: Path) -> None:
    run(recipe(tmp_path), tmp_path / "run")
    trained = open_trained(tmp_path / "run")
    assert (export(trained, tmp_path / "peft", "peft") / "adapter_config.json").is_file()
    texts_in = torch.randint(0, 250, (2, 8), generator=torch.Generator().manual_seed(0))
    assert_close(
        {"": trained.outputs(texts_in)},
        {"": open_trained(tmp_path / "run" / "model").outputs(texts_in)},
        atol=1e-4,
    )


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    server, setup = after_rounds(tmp_path, 2)
    twin = Server(setup.context, setup.method(), first_weights(setup.recipe, setup.config))
    values, groups = server.state()
    twin.load_state(json.loads(json.dumps(values)), {name: dict(group) for name, group in groups.items()})
    for order in list(server.orders.values()):
        for each in (server, twin):
            update, _ = run_task(setup.config, each.orders.task(order), setup.shards[order.client], {})
            each.receive(order.client, update.to_bytes())
    assert server.versions.current == twin.versions.current == 3
    assert same(server.weights, twin.weights)


def test_with_a_window_among_the_devices_nothing_is_kept_beside_the_matrices(tmp_path: Path) -> None:
    """And who joins with one later is given whole matrices."""
    given = recipe(tmp_path)
    small = given.fleet.devices[0].model_copy(update={"name": "small", "count": 1, "rate": 0.5})
    mixed = given.model_copy(
        update={"fleet": given.fleet.model_copy(update={"devices": (*given.fleet.devices, small)})}
    )
    run(mixed, tmp_path / "run")
    with safe_open(tmp_path / "run" / "weights.safetensors", "pt") as file:
        assert not [name for name in file.keys() if is_adapter(name)]  # noqa: SIM118
    server, _ = after_rounds(tmp_path, 2)
    other = build_run_setup(mixed).context.members["small-1"]
    server.welcome(other)
    (sent,) = [effect for effect in server.handle(ClientJoined(other.name)) if isinstance(effect, Send)]
    assert sent.order.trainer == "submodel"
    task, evaluated = server.orders.task(sent.order), server.method.evaluated_weights(server.weights)
    names = [name for name in task.weights if evaluated[name].shape == task.weights[name].shape]
    assert same({n: task.weights[n] for n in names}, {n: evaluated[n] for n in names})
    assert any(name.endswith("fc2.weight") for name in [*names, *task.prefix])


def contribution(weights: Weights, delta: Weights) -> Contribution:
    from cos2p.models.spec import SubmodelSpec

    return Contribution("pi", SubmodelSpec.full(CAUSAL), delta, 1, 0, weights)


def test_what_has_no_more_directions_than_the_rank_is_kept_whole() -> None:
    weights, rng = init_weights(CAUSAL, 1), torch.Generator().manual_seed(0)
    name = "blocks.1.fc2.weight"
    rows, columns = weights[name].shape
    total = torch.zeros_like(weights[name])
    shapes = adapter_shapes(CAUSAL, [1], ("fc2",), 8)
    weights |= {key: torch.zeros(shape) for key, shape in shapes.items()}
    merge, current = ApartMerge(CAUSAL, "uniform", rank=6), weights
    for _ in range(3):
        delta = torch.randn(rows, 2, generator=rng) @ torch.randn(2, columns, generator=rng)
        total -= delta
        merge.add(contribution(current, {name: delta}), current)
        current = merge.apply(current)
    assert torch.equal(current[name], weights[name])
    assert_close({name: merged(current, 1.0)[name]}, {name: weights[name] + total}, atol=1e-4)


def test_of_more_directions_the_largest_stay() -> None:
    rng = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 60, generator=rng) + 5 * torch.randn(40, 3, generator=rng) @ torch.randn(
        3, 60, generator=rng
    )
    up, down = _leading(matrix, 3, "a")
    u, s, v = torch.linalg.svd(matrix)
    best = u[:, :3] * s[:3] @ v[:3]
    assert float((up.T @ down - best).norm()) < 0.02 * float(best.norm())

"""Trained tensors in fewer bits on their way: both ends, the update reader between them, and what is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from cos2p.errors import UpdateRefused
from cos2p.messages import Order, Precision, Task, Wire, tensor_bytes
from cos2p.methods import make_contract, methods, run_task
from cos2p.models.layout import init_weights
from cos2p.models.spec import BlockSize
from cos2p.seeding import torch_rng
from cos2p.server.update_reader import UpdateReader
from cos2p.training.contract import as_it_travels, as_received, packed, packed_bytes, packed_forms, unpacked
from cos2p.training.settings import WireSettings
from tests.methods.fleet import Fleet, check_a_restart_changes_nothing, digits_house
from tests.tiny import VIT, order, same, shard, task, window

PRECISIONS = get_args(Precision)


def tensors() -> dict[str, torch.Tensor]:
    rng = torch_rng(0, "wire test")
    made = {name: torch.randn(shape, generator=rng) for name, shape in SHAPES.items()}
    made["tiny"] *= 1e-7
    return made


SHAPES = {"wide": (5, 40), "tiny": (3, 30), "short": (6, 4), "none": (0, 20), "kernel": (4, 3, 4, 4), "vector": (9,)}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_announced_is_what_travels(precision: Precision) -> None:
    given = tensors()
    sent, forms = packed(given, precision), packed_forms(SHAPES, precision)
    assert {name: (form.dtype, form.shape) for name, form in forms.items()} == {
        name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in sent.items()
    }
    assert tensor_bytes(sent) == packed_bytes(SHAPES, precision)
    back = unpacked(sent)
    assert back.keys() == given.keys()
    assert back["vector"] is given["vector"]  # vectors are not touched
    near = {"float32": 0.0, "float16": 2**-11, "int8": 0.51 / 127}[precision]
    for name, tensor in given.items():
        if tensor.numel():
            assert float((back[name] - tensor).abs().max()) <= near * float(tensor.abs().max())


def test_sixteen_bits_are_half_and_eight_a_quarter() -> None:
    shapes = {"q": (256, 256)}
    assert packed_bytes(shapes, "float16") == 2 * 256 * 256 + 4
    assert packed_bytes(shapes, "int8") == 256 * 256 + 4 * 256


def test_eight_bits_are_drawn_without_bias() -> None:
    given = {"q": torch.full((1, 4096), 0.3)}
    given["q"][0, 0] = 127.0  # so that a step is 1
    drawn = unpacked(packed(given, "int8", torch_rng(0, "draw")))["q"][0, 1:]
    assert set(drawn.tolist()) == {0.0, 1.0}
    assert float(drawn.mean()) == pytest.approx(0.3, abs=0.03)


def travelling(given: Order, wire: Wire) -> Order:
    return replace(given, wire=wire)


@pytest.mark.parametrize("quotas", [None, (BlockSize(2, 5),) * 2])
def test_a_device_learns_from_what_it_received(quotas: tuple[BlockSize, ...] | None) -> None:
    """As if the server's model were the rounded one: its rounding is in no update."""
    weights, spec = init_weights(VIT, 0), window(VIT, 1)
    plain = order(spec, quotas)
    coarse = travelling(plain, Wire(down="int8"))
    came = task(VIT, weights, plain)
    rounded = as_received(came.weights, "int8")
    assert not same(rounded, came.weights)
    sent = Task(coarse, packed(came.weights, "int8"), came.prefix)
    ours, _ = run_task(VIT, sent, shard(VIT), {})
    theirs, _ = run_task(VIT, replace(came, weights=rounded), shard(VIT), {})
    assert ours.spec == theirs.spec
    assert same(ours.delta, theirs.delta)


def test_an_order_says_nothing_of_a_plain_wire() -> None:
    plain = order(window(VIT, 1))
    assert "wire" not in plain.to_dict()
    small = travelling(plain, WireSettings(down="float16", up="int8").of_orders)
    assert Order.from_dict(small.to_dict()) == small


def test_the_door_lets_in_what_was_announced_alone() -> None:
    weights, given = init_weights(VIT, 0), travelling(order(window(VIT, 1)), Wire(up="int8"))
    update, _ = run_task(VIT, task(VIT, weights, given), shard(VIT), {})
    door = UpdateReader(given, VIT, make_contract(VIT, given), 10, 10.0)
    travelled = as_it_travels(update, given)
    read, size = door.read(door.open(travelled.to_bytes()))
    assert 0 < size < 10
    assert same(read.delta, unpacked(travelled.delta))
    name = "blocks.1.fc1.weight"
    wrong = {
        "plain": update,
        "no scale": replace(travelled, delta={n: t for n, t in travelled.delta.items() if n != f"{name}::scale"}),
        "huge": replace(travelled, delta=travelled.delta | {f"{name}::scale": torch.full((10,), 1e9)}),
        "infinite": replace(travelled, delta=travelled.delta | {f"{name}::scale": torch.full((10,), torch.inf)}),
    }
    for refused in wrong.values():
        with pytest.raises(UpdateRefused):
            door.read(door.open(refused.to_bytes()))


QUICK = ("cos2p", "fedavg-qvit", "fedlora", "fedmezo", "fedpm", "fedrolex")
"""Those that travel each in their way; the others are slow tests, of a fifth of a second each."""


@pytest.mark.parametrize(
    "method", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in sorted(methods())]
)
def test_every_method_travels_in_fewer_bits(method: str) -> None:
    """What comes back is let in, and is as long as the clock was told."""
    house = digits_house(updates=6)
    wire = WireSettings(down="float16", up="int8")
    house = replace(house, training=house.training.model_copy(update={"wire": wire}))
    fleet = Fleet(house, {"name": method})
    given = fleet.orders[0]
    trainer = make_contract(house.config, given)
    sent = fleet.server.orders.task(given)
    update, _ = run_task(house.config, sent, fleet.shards[given.client], {})
    travelled = as_it_travels(update, given)
    assert tensor_bytes(travelled.delta, travelled.extras) == trainer.wire_upload()
    if any(tensor.dim() > 1 for tensor in trainer.sent(fleet.server.weights).values()):  # vectors travel as they are
        assert tensor_bytes(sent.weights) < tensor_bytes(trainer.sent(fleet.server.weights))
    if any(len(shape) > 1 for shape in trainer.answer(given.spec).values()):
        assert trainer.wire_upload() < trainer.upload()
    fleet.answer()
    assert not [note for note in fleet.notes if note.kind == "refused"]


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    house = digits_house(updates=6)
    wire = WireSettings(down="float16", up="int8")
    house = replace(house, training=house.training.model_copy(update={"wire": wire}))
    check_a_restart_changes_nothing({"name": "cos2p"}, tmp_path, house=house)

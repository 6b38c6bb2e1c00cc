"""Merges on a GPU that is not there: rounds of every method, nothing left on the host, and few waits.

One of your own is checked the same way, once it says `accelerated`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from cos2p.accelerator import CPU
from cos2p.aggregation.head_merge import HeadMerge
from cos2p.aggregation.merge import SegmentMerge
from cos2p.aggregation.placed import PlacedMerge, placed
from cos2p.messages import Order
from cos2p.methods import build_method, methods, run_task
from cos2p.methods.base import Method
from cos2p.models.layout import init_weights
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server
from cos2p.testing import stand_in_gpu
from cos2p.tracking.event_kinds import Aggregated, Refused
from tests.methods.fleet import digits, digits_house
from tests.tiny import same

GPU = torch.device("cuda:0")
ADDED = 1
"""Waits for the GPU when an update is added: for what it counted."""
TOLERANCE = 1e-5
"""How far a real GPU's next version may be from the processor's: relative, and below 1 absolute."""


def method(name: str) -> Method:
    return build_method({"name": name}, digits_house(updates=99, mu=1.0, t_clk=0.0))


QUICK = ("cos2p", "fedasync", "fedbuff", "fedlora", "heterofl", "ramfed")
"""One for every way to merge; of half a second each, the others are slow tests."""
EVERY: list[Any] = [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in sorted(methods())]


def server(name: str, device: torch.device = CPU) -> Server:
    made = method(name)
    config, seed = made.context.config, made.context.seed
    there = Server(made.context, made, init_weights(config, seed), device=device)
    for client in made.context.members:
        there.handle(ClientJoined(client))
    return there


@cache
def answers(name: str) -> tuple[tuple[Order, bytes], ...]:
    """Of real devices to their first tasks."""
    on_host = server(name)
    orders = list(on_host.orders.values())
    done = (run_task(on_host.context.config, on_host.task(o), digits().shards[o.client], {})[0] for o in orders)
    return tuple((order, update.to_bytes()) for order, update in zip(orders, done, strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_every_method_merges_on_the_gpu(name: str) -> None:
    known, made, again = answers(name), server(name, GPU), server(name, GPU)
    own = (
        made.aggregator.merge.own if isinstance(made.aggregator.merge, HeadMerge) else made.aggregator.merge
    )  # what is told stays on the host
    assert isinstance(own, PlacedMerge)
    closed = 0
    with stand_in_gpu() as gpu:
        for number, (order, data) in enumerate(known):
            before = gpu.asked
            effects = made.receive(order.client, data)
            assert not [effect for effect in effects if isinstance(effect, Refused)]
            if [effect for effect in effects if isinstance(effect, Aggregated)]:
                closed += 1
            else:
                assert gpu.asked - before <= ADDED
            for task in (effect.order for effect in effects if isinstance(effect, Send)):
                assert all(tensor.device == CPU for tensor in made.orders.task(task).weights.values())
            if number == 0:  # in the middle of a round: written down, and gone on with elsewhere
                values, groups = made.state()
                assert all(tensor.device == CPU for group in groups.values() for tensor in group.values())
                again.load_state(values, groups)
        assert closed
        again.receive(order.client, data)
        again.aggregator.merge.apply(again.weights)
        assert all(tensor.device == CPU for tensor in (*made.weights.values(), *made.aggregator.merge.holders.values()))


def test_what_nobody_trained_is_neither_copied_nor_new() -> None:
    made = server("cos2p", GPU)
    first = made.weights
    with stand_in_gpu() as gpu:
        for order, data in answers("cos2p"):
            made.receive(order.client, data)
        assert made.versions.current == 1
        moved = {name for name, tensor in made.weights.items() if tensor is not first[name]}
        assert moved
        before = gpu.asked
        after = made.aggregator.merge.apply(made.weights)  # a round without updates
        assert all(after[name] is tensor for name, tensor in made.weights.items())
        assert gpu.asked == before


def test_a_merge_that_does_not_say_so_stays_on_the_host() -> None:
    class Own(SegmentMerge):
        pass

    config = digits_house(updates=1).config
    own, plain = Own(config), SegmentMerge(config)
    assert placed(own, GPU) is own
    assert placed(plain, CPU) is plain
    assert isinstance(placed(plain, GPU), PlacedMerge)


@pytest.mark.parametrize("name", EVERY)
def test_a_placed_merge_is_the_merge(name: str) -> None:
    """On the processor, where none would be made: the same bits."""
    plain, there = server(name), server(name)
    there.merge = PlacedMerge(there.merge, CPU)
    for order, data in answers(name):
        for made in (plain, there):
            made.receive(order.client, data)
    assert plain.versions.current == there.versions.current >= 1
    assert same(plain.weights, there.weights)
    assert same(plain.merge.holders, there.merge.holders)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(methods()))
def test_a_real_gpu_merges_the_same_but_for_rounding(name: str) -> None:
    here, there = server(name), server(name, GPU)
    for order, data in answers(name):
        for made in (here, there):
            made.receive(order.client, data)
    assert here.versions.current == there.versions.current >= 1
    for tensor_name, tensor in here.weights.items():
        torch.testing.assert_close(there.weights[tensor_name], tensor, rtol=TOLERANCE, atol=TOLERANCE)

"""Training in fewer bytes, as a task of any method does it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import BudgetError
from cos2p.methods import make_contract, make_trainer, run_task
from cos2p.methods.base import Member, RunContext
from cos2p.methods.registry import build_method
from cos2p.models.layout import init_weights
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server
from cos2p.training.losses import MicroBatches, counted
from cos2p.training.settings import PLAIN, LocalSettings, MemoryOptimizations, TrainingSettings
from cos2p.training.trainer import SubmodelTrainer, Trainer
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import VIT, context, order, same, shard, task, window

families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@families
@pytest.mark.parametrize(
    "memory_optimizations", [{"step_in_backward": True}, {"recompute": "yes"}], ids=lambda value: min(value)
)
def test_a_saving_that_is_exact_gives_the_same_bits(
    config: ModelConfig, memory_optimizations: dict[str, object]
) -> None:
    spec, weights = window(config, 1, exits=(2, 3)), random_weights(config, 1)
    plain, _ = run_task(config, task(config, weights, order(spec)), shard(config), {})
    saved, _ = run_task(
        config, task(config, weights, order(spec, memory_optimizations=memory_optimizations)), shard(config), {}
    )
    assert same(plain.delta, saved.delta)
    assert plain.report == saved.report


@families
@pytest.mark.parametrize("at_once", [1, 3, 7])
@pytest.mark.parametrize("kept", [False, True], ids=["removed", "kept"])
def test_gradients_of_parts_add_up_to_the_batchs(config: ModelConfig, at_once: int, kept: bool) -> None:
    """With language models, too, where texts have different numbers of tokens to predict."""
    spec = window(config, 1, exits=(2, 3))
    spec = replace(spec, rest=True, suffix="streamed", exits=(config.depth,)) if kept else spec
    weights, own = random_weights(config, 1), shard(config)
    steps = {"optimizer": "sgd", "lr": 0.1, "batch": 7, "epochs": 2}
    plain, _ = run_task(config, task(config, weights, order(spec, **steps)), own, {})
    parts, _ = run_task(
        config, task(config, weights, order(spec, **steps, memory_optimizations={"micro_batch": at_once})), own, {}
    )
    for name, change in plain.delta.items():
        torch.testing.assert_close(parts.delta[name], change, rtol=1e-4, atol=1e-6)
    assert parts.report["loss"] == pytest.approx(plain.report["loss"], rel=1e-5)
    assert same(plain.delta, parts.delta) == (at_once == 7)


def test_parts_count_by_the_tokens_they_have_to_predict() -> None:
    ids = torch.tensor([[5, 6, 7, -100], [8, -100, -100, -100]])
    assert (counted(ids), counted(torch.tensor([0, 2, 1])), counted(torch.full((3, 10), 0.1))) == (4, 3, 3)


def test_parts_of_a_batch_are_not_in_memory_together() -> None:
    made: list[int] = []
    parts = MicroBatches(torch.arange(5).split(2), lambda rows: made.append(len(rows)) or rows)
    for number, _ in enumerate(parts, 1):
        assert len(made) == number
    assert made == [2, 2, 1]


def test_states_in_eight_bits_are_near_and_not_the_same() -> None:
    wide = replace(VIT, dim=64, mlp=128)  # tensors so small that 8 bits do not pay keep their states
    spec, weights = SubmodelSpec.full(wide), random_weights(wide, 1)
    plain, _ = run_task(wide, task(wide, weights, order(spec, lr=1e-3)), shard(wide), {})
    saved, _ = run_task(
        wide, task(wide, weights, order(spec, lr=1e-3, memory_optimizations={"eight_bit": True})), shard(wide), {}
    )
    assert not same(plain.delta, saved.delta)
    a, b = (torch.cat([t.flatten() for t in update.delta.values()]) for update in (plain, saved))
    assert torch.linalg.vector_norm(a - b) < 0.3 * torch.linalg.vector_norm(a)


def test_gradients_that_add_up_are_not_dropped_at_once() -> None:
    with pytest.raises(ValueError, match="add up before the step"):
        MemoryOptimizations(micro_batch=2, step_in_backward=True)
    with pytest.raises(ValueError, match="micro_batch"):
        MemoryOptimizations(micro_batch=-1)
    assert (
        MemoryOptimizations().at_once(8),
        MemoryOptimizations(micro_batch=3).at_once(8),
        MemoryOptimizations(micro_batch=9).at_once(8),
    ) == (8, 3, 8)


def bytes_of(config: ModelConfig, batch: int = 8, **memory_optimizations: object) -> int:
    given = order(SubmodelSpec.full(config), optimizer="adan", batch=batch, memory_optimizations=memory_optimizations)
    return make_contract(config, given).memory(64).total


def test_the_ledger_counts_every_saving() -> None:
    config = ModelConfig("vit", dim=384, depth=6, heads=6, mlp=1536, classes=10, image=64, patch=8, channels=3)
    plain = bytes_of(config)
    # Where what the forward keeps is the most, the gradients are not yet there at the worst moment.
    assert bytes_of(config, 1, step_in_backward=True) < 0.95 * bytes_of(config, 1)
    assert bytes_of(config, eight_bit=True) < 0.7 * plain  # 12 of 28 bytes a scalar go
    assert bytes_of(config, recompute="yes") < 0.93 * plain  # all gradients are there when the first block runs again
    assert bytes_of(config, 64, micro_batch=4) < 0.4 * bytes_of(config, 64)
    assert bytes_of(config, step_in_backward=True, eight_bit=True, recompute="yes") < 0.5 * plain


class _Looks(Trainer):
    name = "looks"
    supports = frozenset({"eight_bit", "recompute", "micro_batch"})

    def before_step(self) -> None:
        assert all(p.grad is not None for p in self.model.parameters())


class _SaysNothing(SubmodelTrainer):
    """A class that declares nothing inherits no declaration: it may have changed anything."""

    name = "says-nothing"


@pytest.mark.parametrize(
    ("trainer", "left"),
    [
        (_Looks, MemoryOptimizations(eight_bit=True, recompute="yes")),
        (_SaysNothing, MemoryOptimizations()),
        (Trainer, MemoryOptimizations(step_in_backward=True, eight_bit=True, recompute="yes")),
    ],
)
def test_a_trainer_makes_the_savings_that_it_declares(trainer: type[Trainer], left: MemoryOptimizations) -> None:
    everything = {"step_in_backward": True, "eight_bit": True, "recompute": "yes"}
    given = order(SubmodelSpec.full(VIT), memory_optimizations=everything)
    assert trainer(VIT, given).local.memory_optimizations == left.settled


@pytest.mark.parametrize(("trainer", "left"), [(_Looks, 2), (_SaysNothing, 0), (Trainer, 2)])
def test_a_trainer_takes_a_batch_in_parts_if_it_declares_that(trainer: type[Trainer], left: int) -> None:
    given = order(SubmodelSpec.full(VIT), memory_optimizations={"micro_batch": 2})
    assert trainer(VIT, given).local.memory_optimizations.micro_batch == left


def test_settings_without_savings_travel_as_before() -> None:
    assert "memory_optimizations" not in LocalSettings(memory_optimizations=PLAIN).model_dump(mode="json")
    assert (
        LocalSettings().memory_optimizations
        == PLAIN
        != TrainingSettings().memory_optimizations
        == MemoryOptimizations()
    )
    written = LocalSettings(memory_optimizations=MemoryOptimizations(eight_bit=True)).model_dump(mode="json")
    assert LocalSettings.model_validate(written).memory_optimizations == MemoryOptimizations(eight_bit=True)
    assert (
        TrainingSettings(optimizer="sgd", memory_optimizations=MemoryOptimizations(eight_bit=True)).stepper == "sgd"
    )  # it has no states


def first_order_of(memory: int, **memory_optimizations: object) -> Send:
    base = context(rates=(1.0,), training={"memory_optimizations": memory_optimizations or {"recompute": "auto"}})
    member: Member = base.members["pi-0"]
    device = member.device.model_copy(update={"memory": memory})
    given = RunContext(VIT, {"pi-0": replace(member, device=device)}, base.training, base.schedule, seed=3)
    server = Server(given, build_method({"name": "fedavg"}, given), init_weights(VIT, 0))
    (sent,) = (effect for effect in server.handle(ClientJoined("pi-0")) if isinstance(effect, Send))
    return sent


def test_savings_where_they_are_needed_and_nowhere_else() -> None:
    """Every step down makes one that takes fewer bytes."""
    both, found, memory = {"recompute": "auto", "micro_batch": "auto", "step_in_backward": False}, [], 2**30
    while True:
        try:
            sent = first_order_of(memory, **both, eight_bit=False)
        except BudgetError:
            break
        found.append(make_trainer(VIT, sent.order).local.memory_optimizations)
        memory = make_contract(VIT, sent.order).memory(10).total - 1
    assert found[0] == PLAIN
    assert found[-1].micro_batch == 1
    assert len(set(found)) == len(found) > 2

"""Training in fewer bytes, as a task of any method does it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import ConfigError
from cos2p.methods import make_trainer, run_task
from cos2p.methods.base import Member, RunContext
from cos2p.methods.registry import build_method
from cos2p.models.layout import init_weights
from cos2p.runtime.decisions import ClientJoined
from cos2p.runtime.effects import Send
from cos2p.runtime.server import Server
from cos2p.training.settings import LocalSettings, Savings, TrainingSettings
from cos2p.training.trainer import Trainer
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import VIT, context, order, same, shard, task, window

families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@families
@pytest.mark.parametrize("savings", [{"step_in_backward": True}, {"recompute": "yes"}], ids=lambda value: min(value))
def test_a_saving_that_is_exact_gives_the_same_bits(config: ModelConfig, savings: dict[str, object]) -> None:
    spec, weights = window(config, 1, exits=(2, 3)), random_weights(config, 1)
    plain, _ = run_task(config, task(config, weights, order(spec)), shard(config), {})
    saved, _ = run_task(config, task(config, weights, order(spec, savings=savings)), shard(config), {})
    assert same(plain.delta, saved.delta)
    assert plain.report == saved.report


@pytest.mark.parametrize("savings", [{"eight_bit": True}, {"bf16": True}, {"fp16": True}], ids=lambda value: min(value))
def test_a_saving_that_is_not_exact_is_near_and_not_nothing(savings: dict[str, object]) -> None:
    wide = replace(VIT, dim=64, mlp=128)  # tensors so small that 8 bits do not pay keep their states
    spec, weights = SubmodelSpec.full(wide), random_weights(wide, 1)
    plain, _ = run_task(wide, task(wide, weights, order(spec, lr=1e-3)), shard(wide), {})
    saved, _ = run_task(wide, task(wide, weights, order(spec, lr=1e-3, savings=savings)), shard(wide), {})
    assert not same(plain.delta, saved.delta)
    a, b = (torch.cat([t.flatten() for t in update.delta.values()]) for update in (plain, saved))
    assert torch.linalg.vector_norm(a - b) < 0.3 * torch.linalg.vector_norm(a)


def test_sixteen_bits_of_two_kinds_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="set one of them"):
        Savings(bf16=True, fp16=True)
    with pytest.raises(ValueError, match="step_in_backward drops each at once"):
        Savings(fp16=True, step_in_backward=True)


def test_fp16_is_refused_on_a_processor_and_bf16_named_instead() -> None:
    with pytest.raises(ConfigError, match="set bf16 instead"):
        Savings(fp16=True).check_on(torch.device("cpu"))
    Savings(fp16=True).check_on(torch.device("cuda:0"))
    Savings(bf16=True).check_on(torch.device("cpu"))


def bytes_of(config: ModelConfig, batch: int = 8, **savings: object) -> int:
    given = order(SubmodelSpec.full(config), optimizer="adan", batch=batch, savings=savings)
    return make_trainer(config, given).memory(64).total


def test_the_ledger_counts_every_saving() -> None:
    config = ModelConfig("vit", dim=384, depth=6, heads=6, mlp=1536, classes=10, image=64, patch=8, channels=3)
    plain = bytes_of(config)
    # Where what the forward keeps is the most, the gradients are not yet there at the worst moment.
    assert bytes_of(config, 1, step_in_backward=True) < 0.95 * bytes_of(config, 1)
    assert bytes_of(config, eight_bit=True) < 0.7 * plain  # 12 of 28 bytes a scalar go
    assert bytes_of(config, recompute="yes") < 0.93 * plain  # all gradients are there when the first block runs again
    assert bytes_of(config, 64, bf16=True) < 0.8 * bytes_of(config, 64)
    assert bytes_of(config, step_in_backward=True, eight_bit=True, recompute="yes") < 0.5 * plain


class _Looks(Trainer):
    name = "looks"

    def before_step(self) -> None:
        assert all(p.grad is not None for p in self.model.parameters())


class _OwnLoop(Trainer):
    name = "own-loop"

    def fit(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("trainer", "left"),
    [
        (_Looks, Savings(eight_bit=True, recompute="yes", bf16=True)),
        (_OwnLoop, Savings()),
        (Trainer, Savings(step_in_backward=True, eight_bit=True, recompute="yes", bf16=True)),
    ],
)
def test_a_trainer_makes_the_savings_that_what_it_overrides_allows(trainer: type[Trainer], left: Savings) -> None:
    everything = {"step_in_backward": True, "eight_bit": True, "recompute": "yes", "bf16": True}
    given = order(SubmodelSpec.full(VIT), savings=everything)
    assert trainer(VIT, given).local.savings == left


def test_settings_without_savings_travel_as_before() -> None:
    assert "savings" not in LocalSettings().model_dump(mode="json")
    written = LocalSettings(savings=Savings(bf16=True)).model_dump(mode="json")
    assert LocalSettings.model_validate(written).savings == Savings(bf16=True)
    assert TrainingSettings(optimizer="sgd", savings=Savings(eight_bit=True)).stepper == "sgd"  # it has no states


def first_order_of(memory: int) -> Send:
    base = context(rates=(1.0,), training={"savings": {"recompute": "needed"}})
    member: Member = base.members["pi-0"]
    device = member.device.model_copy(update={"memory": memory})
    given = RunContext(VIT, {"pi-0": replace(member, device=device)}, base.training, base.schedule, seed=3)
    server = Server(given, build_method({"name": "fedavg"}, replace(given, enforce_memory=False)), init_weights(VIT, 0))
    (sent,) = (effect for effect in server.handle(ClientJoined("pi-0")) if isinstance(effect, Send))
    return sent


def test_recomputation_where_it_is_needed_and_nowhere_else() -> None:
    roomy = first_order_of(2**30).order
    needed = make_trainer(VIT, roomy).memory(10).total
    tight = first_order_of(needed - 1).order
    assert make_trainer(VIT, roomy).local.savings.recompute == "no"
    assert make_trainer(VIT, tight).local.savings.recompute == "yes"

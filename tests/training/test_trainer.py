from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import ConfigError, TrainingError
from cos2p.messages import Task, Update
from cos2p.methods import make_contract, make_trainer, run_task
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.optimizers import make_optimizer
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import extract, trained_shapes
from cos2p.training.masks import Remembered
from cos2p.training.trainer import Batch, Learned, SubmodelTrainer
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import VIT, assert_close, copy, order, read_update, same, shard, task, window

families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
QUOTAS = (BlockSize(1, 4), BlockSize(2, 5))


def mask_task(config: ModelConfig, frozen: int = 2, attempt: int = 0, **settings: object) -> Task:
    """Two blocks with candidates at full width, two exits."""
    spec = window(config, frozen, exits=(frozen + 1, frozen + 2))
    given = order(spec, QUOTAS, attempt=attempt, **{"mask": {"epochs": 1, "lr": 0.05}, **settings})  # type: ignore[arg-type]
    return task(config, random_weights(config, 1), given)


# ---------------------------------------------------------------- the plain case


def plain_training(
    config: ModelConfig, weights: Weights, optimizer: str, epochs: int, batch: int, lr: float
) -> Weights:
    """Local training as anyone would write it: the full model, cross entropy, the same batches."""
    spec = SubmodelSpec.full(config)
    model = ElasticTransformer(config, spec).load(copy(extract(weights, config, spec)))
    stepper = make_optimizer(optimizer, model.parameters(), lr)
    data = shard(config)
    rng = torch_rng(7, "device", "pi-1", 0)
    for _ in range(epochs):
        for rows in torch.randperm(len(data.train), generator=rng).split(batch):
            inputs, labels = data.train.batch(rows, data.normalize)
            (output,) = model(inputs)
            real = labels != -100
            loss = F.cross_entropy(output[real], labels[real])
            stepper.zero_grad()
            loss.backward()
            stepper.step()
    return {name: p.detach() for name, p in model.named_parameters()}


@families
@pytest.mark.parametrize("optimizer", ["adan", "sgd"])
def test_one_client_with_the_whole_model_is_plain_local_training(config: ModelConfig, optimizer: str) -> None:
    weights, spec = random_weights(config, 1), SubmodelSpec.full(config)
    given = task(config, weights, order(spec, optimizer=optimizer, lambda2=0.0, epochs=3, batch=4, lr=0.01))
    update, _ = run_task(config, given, shard(config), {})
    expected = plain_training(config, weights, optimizer, epochs=3, batch=4, lr=0.01)
    assert update.delta.keys() == expected.keys()
    assert_close(update.delta, {name: weights[name] - end for name, end in expected.items()}, atol=1e-7)
    assert all(tensor.any() for name, tensor in update.delta.items() if not name.endswith(".k.bias"))


# ---------------------------------------------------------------- what an update is


@families
def test_an_update_holds_what_was_trained_and_nothing_frozen(config: ModelConfig) -> None:
    given = mask_task(config)
    update, _ = run_task(config, given, shard(config), {})
    kept = [(len(keep.heads), len(keep.units)) for keep in update.spec.window]
    assert kept == [(min(q.heads, config.groups), q.units) for q in QUOTAS]
    assert {name: tuple(t.shape) for name, t in update.delta.items()} == trained_shapes(config, update.spec)
    assert not any(name.startswith(("embed.", "blocks.0.", "blocks.1.")) for name in update.delta)
    assert (update.client, update.task, update.version, update.samples) == ("pi-1", "pi-1#0", 0, 10)
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in update.delta.values())


class Watched(SubmodelTrainer):
    """Keeps what it sees."""

    def begin(self) -> None:
        self.losses: list[float] = []
        self.calls: list[str] = ["begin"]

    def objective(self, loss: Tensor, outputs: Sequence[Tensor], batch: Batch) -> Tensor:
        self.losses.append(loss.item())
        return loss

    def before_step(self) -> None:
        assert any(p.grad is not None for p in self.model.parameters())
        self.calls.append("before")

    def after_step(self) -> None:
        self.calls.append("after")

    def end(self) -> Learned:
        self.calls.append("end")
        self.trained = copy(self.model.weights())  # as it is before the rescaling is folded into it
        return super().end()


def watched(**settings: object) -> tuple[Watched, Update, Task]:
    given = task(VIT, random_weights(VIT, 1), order(window(VIT, 0), **settings))  # type: ignore[arg-type]
    device = Watched(VIT, given.order)
    update, _ = device.run(given, shard(VIT, train=10), {})
    return device, update, given


def test_the_delta_is_start_minus_end() -> None:
    device, update, given = watched()
    assert same(update.delta, {name: start - device.trained[name] for name, start in given.weights.items()})
    assert all(tensor.any() for tensor in update.delta.values())


def test_the_hooks_are_called_in_their_order() -> None:
    device, _, _ = watched(epochs=1, batch=4)
    assert device.calls == ["begin", *["before", "after"] * 3, "end"]


def test_the_loss_reported_is_the_mean_of_the_last_epoch() -> None:
    device, update, _ = watched(epochs=3, batch=4)
    assert len(device.losses) == 9
    assert update.report["loss"] == pytest.approx(sum(device.losses[-3:]) / 3)


@families
def test_the_same_task_gives_the_same_update_bit_for_bit(config: ModelConfig) -> None:
    given = mask_task(config)
    first, remembered = run_task(config, given, shard(config), {})
    again, remembered_too = run_task(config, Task.from_bytes(given.to_bytes()), shard(config), {})
    assert first.to_bytes() == again.to_bytes()
    assert same(remembered, remembered_too)


def test_another_attempt_takes_other_batches() -> None:
    first, _ = run_task(VIT, mask_task(VIT), shard(VIT), {})
    second, _ = run_task(VIT, mask_task(VIT, attempt=1), shard(VIT), {})
    assert not same(first.delta, second.delta)


def test_task_and_memory_stay_as_they_came() -> None:
    given = mask_task(VIT)
    _, memory = run_task(VIT, given, shard(VIT), {})
    before = [copy(part) for part in (given.weights, given.prefix, memory)]
    _, later = run_task(VIT, given, shard(VIT), memory)
    assert all(same(a, b) for a, b in zip(before, (given.weights, given.prefix, memory), strict=True))
    assert any(not torch.equal(later[name], memory[name]) for name in memory)


# ---------------------------------------------------------------- masks between the cycles


def test_masks_stay_with_the_device_between_its_tasks() -> None:
    _, memory = run_task(VIT, mask_task(VIT, frozen=1), shard(VIT), {})
    assert sorted(memory) == ["heads.1", "heads.2", "units.1", "units.2"]
    _, memory_too = run_task(VIT, mask_task(VIT, frozen=2), shard(VIT), memory)
    assert sorted(memory_too) == ["heads.1", "heads.2", "heads.3", "units.1", "units.2", "units.3"]
    assert torch.equal(memory_too["heads.1"], memory["heads.1"])
    assert not torch.equal(memory_too["heads.2"], memory["heads.2"])


def test_a_task_without_mask_phase_trains_the_spec_as_it_is() -> None:
    spec = SubmodelSpec(2, (BlockKeep((0, 3), (1, 2)), BlockKeep((), (4,))), (4,))
    update, memory = run_task(VIT, task(VIT, random_weights(VIT, 1), order(spec)), shard(VIT), {})
    assert update.spec == spec
    assert memory == {}
    assert "mask_loss" not in update.report


def test_masks_learn_what_the_data_need() -> None:
    """One head and one unit carry all of a block; the mask phase has to find them."""
    weights = random_weights(VIT, 1)
    for name in ("blocks.3.o.weight", "blocks.3.fc2.weight"):
        kept = slice(8, 12) if ".o." in name else slice(6, 7)
        thin = torch.zeros_like(weights[name])
        thin[:, kept] = weights[name][:, kept] * 4
        weights[name] = thin
    spec = window(VIT, 3, blocks=1)
    mask = {"epochs": 60, "lr": 0.1, "lambda1": 1.0}
    given = task(VIT, weights, order(spec, (BlockSize(1, 1),), mask=mask, batch=16))
    data = shard(VIT, train=16, test=0)
    # The labels are what the full model says, so that whatever is removed hurts.
    inputs, _ = data.train.batch(torch.arange(16), data.normalize)
    full = ElasticTransformer(VIT, SubmodelSpec.full(VIT)).load(extract(weights, VIT, SubmodelSpec.full(VIT)))
    data.train.labels.copy_(full(inputs)[0].argmax(-1))
    update, _ = run_task(VIT, given, data, {})
    assert update.spec.window == (BlockKeep((2,), (6,)),)


# ---------------------------------------------------------------- scores, options, errors


@families
def test_the_personal_submodel_is_scored_on_the_local_test_part(config: ModelConfig) -> None:
    update, _ = run_task(config, mask_task(config), shard(config, test=5), {})
    assert update.report["local_samples"] == 5
    scores = ("top1",) if config.task == "language-modeling" else ("top1", "f1")
    assert all(0.0 <= update.report[f"local_{name}"] <= 1.0 for name in scores)
    assert update.report["mask_loss"] > 0
    assert read_update(update.to_bytes()).report == update.report


def test_without_a_test_part_there_are_no_scores() -> None:
    update, _ = run_task(VIT, mask_task(VIT), shard(VIT, test=0), {})
    assert update.report["local_samples"] == 0
    assert "local_top1" not in update.report


@families
def test_a_coarse_prefix_and_a_cache_on_disk_work_in_every_family(config: ModelConfig) -> None:
    spec = window(config, 2, exits=(3, 4))
    settings = {"mask": {"epochs": 1, "micro_batch": 3}, "features": "disk", "feature_precision": "float16"}
    given = task(config, random_weights(config, 1), order(spec, QUOTAS, "int8", rescale=True, **settings))
    update, _ = run_task(config, given, shard(config), {})
    assert all(tensor.isfinite().all() for tensor in update.delta.values())


def test_rescaling_changes_the_training_of_a_thin_submodel() -> None:
    spec = SubmodelSpec(0, (BlockKeep((0,), (1, 2)),), (1,))
    deltas = []
    for rescale in (False, True):
        given = task(VIT, random_weights(VIT, 1), order(spec, rescale=rescale))
        deltas.append(run_task(VIT, given, shard(VIT), {})[0].delta)
    assert not same(*deltas)


def test_a_loss_that_is_not_finite_names_the_way_out() -> None:
    given = task(VIT, random_weights(VIT, 1), order(window(VIT, 0), optimizer="sgd", lr=1e30))
    with pytest.raises(TrainingError, match=r"the loss became .*; lower training\.lr \(now 1e\+30\)"):
        run_task(VIT, given, shard(VIT), {})


def test_an_unknown_trainer_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"unknown trainer 'magic'; known: .*submodel"):
        make_trainer(VIT, replace(order(window(VIT, 0)), trainer="magic"))


def test_memory_is_predicted_from_the_order_alone() -> None:
    memory: Remembered = {}
    given = mask_task(VIT)
    predicted = make_contract(VIT, given.order).memory(10).total
    assert predicted > sum(t.nbytes for t in run_task(VIT, given, shard(VIT), memory)[0].delta.values())

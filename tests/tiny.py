"""Small things that tests of several rooms need: shards, tasks, a fleet, and ways to compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.aggregation.settings import RobustSettings, ScheduleSettings
from cos2p.data.examples import IGNORE, Examples, Normalize
from cos2p.devices.device import device
from cos2p.messages import Order, Precision, Task, Update
from cos2p.messages.envelope import TASK_HEADER_BYTES, Buffer, Envelope
from cos2p.methods.base import Member, RunContext
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import extract, extract_prefix
from cos2p.training.prefix import encode
from cos2p.training.settings import LocalSettings, TrainingSettings
from cos2p.training.shard import Shard
from tests.submodel.strategies import random_inputs

VIT = ModelConfig("vit", dim=16, depth=4, heads=4, mlp=10, classes=3, image=4, patch=2, channels=1)


def examples(config: ModelConfig, samples: int, seed: int = 0) -> Examples:
    """Random samples; a language model's labels are the next tokens, none behind the last."""
    inputs = random_inputs(config, seed, samples)
    rng = torch_rng(seed, "test labels")
    if config.family == "vit":
        images = (inputs.clamp(-2, 2) * 60 + 128).to(torch.uint8)
        return Examples(images, torch.randint(config.classes, (samples,), generator=rng), _names(config.classes))
    if config.task == "classification":
        labels = torch.randint(config.classes, (samples,), generator=rng)
        return Examples(inputs, labels, _names(config.classes), pad_id=config.pad_token, vocabulary=config.vocab)
    following = torch.cat((inputs[:, 1:], torch.full((samples, 1), config.pad_token)), 1)
    labels = following.masked_fill(following == config.pad_token, IGNORE)
    return Examples(inputs, labels, (), pad_id=config.pad_token, vocabulary=config.vocab)


def _names(classes: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(classes))


def shard(config: ModelConfig, train: int = 10, test: int = 4, seed: int = 0) -> Shard:
    return Shard(examples(config, train, seed), examples(config, test, seed + 1), Normalize())


def order(
    spec: SubmodelSpec,
    quotas: Sequence[BlockSize] | None = None,
    prefix_precision: Precision = "float32",
    lr: float = 1e-2,
    client: str = "pi-1",
    attempt: int = 0,
    **settings: Any,
) -> Order:
    local = LocalSettings.model_validate({"epochs": 2, "batch": 4, "lambda2": 0.2, **settings})
    return Order(
        client, f"{client}#{attempt}", 0, 0, attempt, 7, "submodel", local.model_dump(mode="json"), lr, spec,
        None if quotas is None else tuple(quotas), prefix_precision,
    )  # fmt: skip


def task(config: ModelConfig, weights: Weights, given: Order) -> Task:
    prefix = encode(extract_prefix(weights, config, given.spec), given.prefix_precision)
    return Task(given, extract(weights, config, given.spec), prefix)


def read_update(data: Buffer) -> Update:
    """An update as it was sent, compared with no task."""
    opened = Envelope.open(data, TASK_HEADER_BYTES)
    meta = {**opened.meta, "spec": SubmodelSpec.from_dict(opened.meta["spec"])}
    return Update(**meta, delta=opened.part("d"), extras=opened.part("x"))


def window(config: ModelConfig, frozen: int, blocks: int = 2, exits: Sequence[int] | None = None) -> SubmodelSpec:
    """Full width, from block `frozen` on."""
    top = frozen + blocks
    return SubmodelSpec(frozen, (BlockKeep.full(config),) * blocks, tuple(exits or (top,))).check(config)


TRUSTED = RobustSettings(bound=0, suspicion="off")
"""Nothing is compared, so that sums are exact."""


def context(
    config: ModelConfig = VIT,
    rates: Sequence[float] = (0.25, 0.25, 1.0),
    samples: int = 10,
    training: Mapping[str, Any] | None = None,
    **schedule: Any,
) -> RunContext:
    members = {}
    for number, rate in enumerate(rates):
        name = f"pi-{number}"
        members[name] = Member(name, device("laptop", name=name), rate, batch=4, samples=samples, test_samples=4)
    return RunContext(
        config,
        members,
        TrainingSettings.model_validate({"epochs": 1, **(training or {})}),
        ScheduleSettings.model_validate({"rounds": 4, **schedule}),
        seed=3,
        robust=TRUSTED,
    )


def copy(tensors: Mapping[str, Tensor]) -> Weights:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Equal names, types and bits."""
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def assert_close(a: Mapping[str, Tensor], b: Mapping[str, Tensor], atol: float, rtol: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=rtol, msg=lambda m, n=name: f"{n}: {m}")

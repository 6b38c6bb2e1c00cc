"""Texts at their real lengths train as padded ones do, only faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cos2p import ModelConfig
from cos2p.data.examples import Examples, Normalize
from cos2p.data.ragged import from_flat
from cos2p.messages import Task
from cos2p.methods import make_trainer, run_task
from cos2p.models.spec import BlockSize, SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.seeding import torch_rng
from cos2p.training.evaluation import evaluate
from cos2p.training.losses import exits_loss
from cos2p.training.prefix import Features, TextFeatures
from cos2p.training.shard import Shard
from tests.submodel.strategies import random_weights
from tests.tiny import order, task, window

_TEXT: dict[str, Any] = {"dim": 16, "depth": 4, "heads": 4, "mlp": 10, "vocab": 40, "max_tokens": 28}
CONFIGS = {
    "bert": ModelConfig("bert", classes=3, **_TEXT),
    "llama classification": ModelConfig("llama", classes=3, **_TEXT),
    "llama": ModelConfig("llama", task="language-modeling", **_TEXT),
}
families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def texts(config: ModelConfig, samples: int = 12) -> Examples:
    """Of 2 to 28 tokens."""
    rng = torch_rng(0, "texts")
    lengths = torch.randint(2, 29, (samples,), generator=rng)
    ids = torch.randint(1, config.vocab, (int(lengths.sum()),), generator=rng, dtype=torch.int32)
    labels = torch.randint(3, (samples,), generator=rng)
    if config.task == "language-modeling":
        labels = torch.empty((samples, 0), dtype=torch.int64)
    return Examples(
        from_flat(ids, lengths, config.pad_token, config.max_tokens), labels, (), None, config.pad_token, 40
    )


def shards(config: ModelConfig) -> tuple[Shard, Shard]:
    """The same texts at their real lengths and padded to the model's longest."""
    real = Shard(texts(config), texts(config, 5), Normalize())
    return real, replace(real, train=real.train.dense(), test=real.test.dense())


@families
def test_the_loss_of_a_batch_does_not_depend_on_its_padding(config: ModelConfig) -> None:
    model = ElasticTransformer(config, SubmodelSpec.full(config, (2, 4))).load(random_weights(config, 0))
    real, padded = shards(config)
    for rows in torch.arange(12).split(3):
        losses, widths = [], []
        for shard in (real, padded):
            inputs, labels = shard.train.batch(rows)
            losses.append(exits_loss(model(inputs), labels, 0.2, 1.0).item())
            widths.append(inputs.shape[1])
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
        assert widths[0] <= widths[1] == 28


@families
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_a_whole_task_behind_a_frozen_prefix_is_the_padded_one(config: ModelConfig, store: str) -> None:
    """All samples in one batch, whose order does not matter then; masks, weights and the local test."""
    spec = window(config, 2, exits=(3, 4))
    given = order(spec, quotas=(BlockSize(2, 5), BlockSize(2, 5)), lr=0.05, batch=12, optimizer="sgd", features=store)
    work = task(config, random_weights(config, 1), given)
    (found, _), (expected, _) = (run_task(config, work, shard, {}) for shard in shards(config))
    assert found.report.keys() == expected.report.keys()
    for name, value in expected.report.items():
        assert found.report[name] == pytest.approx(value, abs=1e-6, rel=1e-5), name
    for name, tensor in expected.delta.items():
        torch.testing.assert_close(found.delta[name], tensor, atol=1e-6, rtol=1e-4)


def features_of(config: ModelConfig, work: Task, shard: Shard) -> Features | None:
    trainer = make_trainer(config, work.order)
    trainer.task, trainer.shard = work, shard
    return trainer.shard_features(shard.train)


@families
def test_features_are_kept_at_the_texts_own_width(config: ModelConfig) -> None:
    real, padded = shards(config)
    spec = window(config, 2)
    work = task(config, random_weights(config, 1), order(spec))
    found, whole = (features_of(config, work, shard) for shard in (real, padded))
    assert isinstance(found, TextFeatures)
    assert whole is not None
    widths = real.train.widths
    assert widths is not None
    assert found.values.numel() == int(widths.sum()) * config.dim
    rows = torch.tensor([7, 0, 3])
    wide = int(widths[rows].max())
    assert found[rows].shape == (3, wide, config.dim)
    for at, row in enumerate(rows.tolist()):
        length = int(real.train.inputs.lengths[row])  # type: ignore[union-attr]
        torch.testing.assert_close(found[rows][at, :length], whole[rows][at, :length], atol=1e-6, rtol=1e-5)


@families
def test_scores_do_not_depend_on_the_padding(config: ModelConfig) -> None:
    model = ElasticTransformer(config, SubmodelSpec.full(config, (4,))).load(random_weights(config, 0))
    real, padded = shards(config)
    (found,), (expected,) = (evaluate(model, shard.train, Normalize(), batch=5) for shard in (real, padded))
    assert found == pytest.approx(expected, rel=1e-5)  # sums of other lengths round otherwise

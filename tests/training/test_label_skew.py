"""Corrected label skew: what it changes in a device's training, and what it must leave alone."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import cos2p
from cos2p.data.examples import Bundle
from cos2p.errors import ConfigError
from cos2p.messages import Order, Task
from cos2p.methods import run_task
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import model_config
from cos2p.training.evaluation import evaluate
from cos2p.training.losses import check_adjustable, log_shares, with_own_shares
from cos2p.training.shard import Shard
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import VIT, examples, order, shard, task, window

FULL = SubmodelSpec.full(VIT)


def labelled(labels: list[int], train: int = 24) -> Shard:
    """A shard whose training labels repeat `labels`."""
    plain = shard(VIT, train=train)
    wanted = torch.tensor(labels * train)[:train]
    return replace(plain, train=replace(plain.train, labels=wanted))


def corrected(given: Order) -> Order:
    return replace(given, label_skew="logit-adjustment")


@given(st.lists(st.integers(0, 40), min_size=2, max_size=9).filter(any))
def test_shares_are_those_of_the_labels_and_have_mean_zero(counts: list[int]) -> None:
    labels = torch.tensor([c for c, count in enumerate(counts) for _ in range(count)])
    shift = log_shares(labels, len(counts))
    assert abs(float(shift.mean())) < 1e-5
    for a, b in zip(range(len(counts)), range(1, len(counts)), strict=False):
        if counts[a] and counts[b]:
            assert float(shift[a] - shift[b]) == pytest.approx(
                torch.tensor((counts[a] + 0.01) / (counts[b] + 0.01)).log().item(), abs=1e-4
            )
        elif counts[a]:
            assert shift[a] > shift[b] + 4  # an absent class is far below one that occurs once


def test_equal_shares_change_nothing() -> None:
    own = labelled(list(range(VIT.classes)), train=VIT.classes * 4)
    weights = random_weights(VIT, 1)
    plain, _ = run_task(VIT, task(VIT, weights, order(FULL, optimizer="sgd")), own, {})
    same, _ = run_task(VIT, task(VIT, weights, corrected(order(FULL, optimizer="sgd"))), own, {})
    for name, tensor in plain.delta.items():
        torch.testing.assert_close(same.delta[name], tensor, rtol=0, atol=1e-6)


def test_first_step_is_that_of_the_shifted_cross_entropy() -> None:
    """Against the loss written out: CE(logits + log p, y), one step of plain gradient descent."""
    own, weights = labelled([0, 0, 0, 1], train=8), random_weights(VIT, 3)
    sent = corrected(order(FULL, lr=0.1, optimizer="sgd", epochs=1, batch=8, lambda2=0.0))
    update, _ = run_task(VIT, task(VIT, weights, sent), own, {})
    model = ElasticTransformer(VIT, FULL).load({n: t.clone() for n, t in weights.items() if n in update.delta})
    inputs, labels = own.train.batch(torch.arange(8), own.normalize)
    F.cross_entropy(model(inputs)[-1] + log_shares(labels, VIT.classes), labels).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    compared = 0
    for name, delta in update.delta.items():
        if name in gradients:
            torch.testing.assert_close(delta, 0.1 * gradients[name], rtol=1e-4, atol=1e-6)
            compared += 1
    assert compared > 10


def test_an_absent_class_is_left_in_peace() -> None:
    """Without the correction its logit sinks with every step; with it, its row of the classifier hardly moves."""
    own, weights = labelled([0, 1]), random_weights(VIT, 2)
    moved: dict[str, float] = {}
    plain = order(FULL, optimizer="sgd", lr=0.1)
    for wanted in (plain, corrected(plain)):
        update, _ = run_task(VIT, task(VIT, weights, wanted), own, {})
        moved[wanted.label_skew] = float(update.delta[f"exits.{VIT.depth}.linear.bias"][2:].min())  # w_start − w_end
    assert moved["ignored"] > 0.005
    assert abs(moved["logit-adjustment"]) < moved["ignored"] / 20


def test_the_update_does_not_tell_the_shares() -> None:
    """With a rate of nearly nothing the update is nearly nothing: the shift itself is not in it."""
    update, _ = run_task(
        VIT, task(VIT, random_weights(VIT, 2), corrected(order(FULL, lr=1e-9))), labelled([0, 0, 0, 1]), {}
    )
    assert max(float(delta.abs().max()) for delta in update.delta.values()) < 1e-5


def test_own_scores_use_the_own_shares() -> None:
    """The device's submodel predicts with the shares of its data: here with those alone, as its weights say nothing."""
    blank = {name: torch.zeros_like(tensor) for name, tensor in random_weights(VIT, 0).items()}
    own = labelled([1, 1, 1, 0])
    own = replace(own, test=own.train)
    update, _ = run_task(VIT, task(VIT, blank, corrected(order(FULL, lr=1e-9))), own, {})
    assert update.report["local_top1"] == 0.75
    unshifted = evaluate(ElasticTransformer(VIT, FULL).load(blank), own.test, own.normalize)[-1]
    assert unshifted["top1"] == 0.25  # all classes alike: the first is taken


def test_only_exits_move() -> None:
    sent = task(VIT, random_weights(VIT, 1), corrected(order(window(VIT, 1))))
    shifted = with_own_shares(VIT, sent, torch.tensor([0, 1, 1]))
    changed = {name for name, tensor in sent.weights.items() if not torch.equal(tensor, shifted.weights[name])}
    assert changed == {name for name in sent.weights if name.startswith("exits.") and name.endswith("linear.bias")}
    assert changed
    assert shifted.prefix is sent.prefix


def test_survives_the_wire() -> None:
    sent = task(VIT, random_weights(VIT, 1), corrected(order(FULL)))
    assert Task.from_bytes(sent.to_bytes()).order.label_skew == "logit-adjustment"


@pytest.mark.parametrize("name", [n for n, c in CONFIGS.items() if c.task != "classification" or not c.biased])
def test_models_without_class_biases_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="label_skew"):
        check_adjustable(CONFIGS[name])


def test_a_run_and_a_fleet_refuse_at_the_start_what_devices_would_fail_at() -> None:
    """Both take their model from `model_config`; a device would find out only at its first task."""
    config = cos2p.model_config("llama-nano")
    texts = examples(config, 4)
    values = {"name": "lm", "model": {"size": "llama-nano"}, "fleet": {"devices": [{"preset": "laptop"}]}}
    values |= {"data": {"source": "digits"}, "schedule": {"rounds": 1}}
    for skew in ("ignored", "logit-adjustment"):
        recipe = Recipe.parse({**values, "training": {"label_skew": skew}})
        with pytest.raises(ConfigError, match="label_skew") if skew == "logit-adjustment" else nullcontext():
            model_config(recipe, Bundle(texts, texts, texts))

"""Corrected label skew is a matter of local training: every method must be able to run with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p.data.examples import Examples
from cos2p.methods import methods
from cos2p.training.shard import Shard
from tests.methods.fleet import Fleet, digits, digits_house

QUICK: dict[str, dict[str, int]] = {"prunefl": {"initial_rounds": 1, "period": 2}}


def without_high_digits(examples: Examples) -> Examples:
    return examples.subset((examples.labels < 5).nonzero().flatten())


def narrow_shards() -> dict[str, Shard]:
    """No device has ever seen a five or more."""
    return {
        name: replace(shard, train=without_high_digits(shard.train), test=without_high_digits(shard.test))
        for name, shard in digits().shards.items()
    }


def unlearned(method: str, skew: str) -> float:
    """By how much a round lowers the classifier's bias of absent classes against that of the others."""
    context = digits_house(updates=3)
    training = context.training.model_copy(update={"label_skew": skew, "lr": 0.05, "optimizer": "sgd"})
    shards = narrow_shards()
    members = {n: replace(m, samples=len(shards[n].train), batch=8) for n, m in context.members.items()}
    context = replace(context, training=training, members=members)
    fleet = Fleet(context, {"name": method, **QUICK.get(method, {})}, shards).run()
    assert fleet.done == ("rounds" if fleet.server.method.one_round else "max_updates")
    assert not [note for note in fleet.notes if note.kind in ("refused", "dropped", "excluded")]
    assert all(torch.isfinite(tensor).all() for tensor in fleet.server.weights.values())
    name = f"exits.{context.config.depth}.linear.bias"
    moved = fleet.server.weights[name] - fleet.start[name]
    return float(moved[:5].mean() - moved[5:].mean())


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_unlearns_absent_classes_less(method: str) -> None:
    # Two losses a step say nothing of single classes, class means know no shares; that they run is enough.
    if method.startswith(("fedmezo", "fedncm")):
        unlearned(method, "logit-adjustment")
        return
    ignored, corrected = (unlearned(method, skew) for skew in ("ignored", "logit-adjustment"))
    assert ignored > 0
    assert abs(corrected) < ignored / 2

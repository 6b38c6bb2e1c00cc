from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p.data.examples import Examples
from cos2p.runtime import evaluation
from cos2p.runtime.evaluation import evaluated_part, score_model
from cos2p.runtime.run_setup import build_run_setup, first_weights
from tests.runtime.small import small


def sorted_by_class(examples: Examples) -> Examples:
    return examples.subset(examples.labels.argsort(stable=True))


def test_samples_of_a_file_that_is_sorted_by_class_come_from_all_classes() -> None:
    bundle = build_run_setup(small()).bundle
    test = sorted_by_class(bundle.test)
    part = evaluated_part(small(schedule={"evaluate_samples": 20}), "test", test)
    shares = torch.bincount(test.labels) * 20 / len(test)
    assert len(part) == 20
    assert bool(((torch.bincount(part.labels, minlength=10) - shares).abs() < 1).all())


def test_every_version_and_method_is_evaluated_on_the_same_samples_and_another_seed_on_others() -> None:
    test, recipe = build_run_setup(small()).bundle.test, small(schedule={"evaluate_samples": 20})
    fedavg = recipe.model_copy(update={"method": {"name": "fedavg"}})
    other = recipe.model_copy(update={"seed": 4})
    first, again, of_fedavg, of_other = (
        torch.as_tensor(evaluated_part(one, "test", test).inputs) for one in (recipe, recipe, fedavg, other)
    )
    assert torch.equal(first, again)
    assert torch.equal(first, of_fedavg)
    assert not torch.equal(first, of_other)


def test_texts_without_labels_are_drawn_from_the_whole_file() -> None:
    ids = torch.arange(100).repeat(4, 1).T.contiguous()
    texts = Examples(ids, ids.clone(), (), pad_id=0, vocabulary=100)
    drawn = evaluated_part(small(schedule={"evaluate_samples": 10}), "test", texts).inputs[:, 0]  # type: ignore[index]
    assert len(drawn) == 10
    assert int(drawn.max()) >= 50


def test_the_validation_samples_are_limited_too_but_not_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    run_setup = build_run_setup(small(schedule={"evaluate_samples": 20}))
    weights, seen = first_weights(run_setup.recipe, run_setup.config), []
    real = evaluation.evaluate_exits
    monkeypatch.setattr(evaluation, "evaluate_exits", lambda *given: seen.append(len(given[1])) or real(*given))  # type: ignore[func-returns-value]
    score_model(run_setup.recipe, run_setup.config, run_setup.bundle, weights, everything=False)
    last = score_model(run_setup.recipe, run_setup.config, run_setup.bundle, weights, everything=True)
    assert seen == [20, 20, len(run_setup.bundle.validation), len(run_setup.bundle.test)]
    assert len(run_setup.bundle.validation) > 20
    counts = last.pop("classes")
    assert sum(counts["samples"]) == len(run_setup.bundle.test) == sum(counts["named"])
    assert sum(counts["right"]) / len(run_setup.bundle.test) == list(last["test"].values())[-1]["top1"]
    unlimited = replace(run_setup, recipe=small())
    assert last == score_model(unlimited.recipe, run_setup.config, run_setup.bundle, weights, everything=False)

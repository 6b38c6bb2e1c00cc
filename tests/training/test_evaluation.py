from __future__ import annotations

import math

import pytest
import torch

from cos2p import ModelConfig, SubmodelSpec
from cos2p.data.examples import Normalize
from cos2p.methods import Method
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.metrics import LikelihoodCounter
from cos2p.submodel.slicing import extract, extract_prefix
from cos2p.training.evaluation import evaluate, evaluate_exits
from cos2p.training.prefix import PrefixFile, prefix_features
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import copy, examples, same, window

families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@families
def test_scores_at_each_exit_are_those_of_the_outputs(config: ModelConfig) -> None:
    spec, data = SubmodelSpec.full(config, (2, 4)), examples(config, 9)
    model = ElasticTransformer(config, spec).load(extract(random_weights(config, 1), config, spec))
    inputs, labels = data.batch(torch.arange(9), Normalize())
    scores = evaluate(model, data, Normalize(), batch=4)
    assert len(scores) == 2
    for output, score in zip(model(inputs), scores, strict=True):
        real = labels != -100
        guesses = output.argmax(-1)[real]
        assert score["top1"] == pytest.approx((guesses == labels[real]).float().mean().item())
        if config.outputs <= 5:
            assert "top5" not in score
            continue
        best = output.topk(5, -1).indices[real]
        assert score["top5"] == pytest.approx((best == labels[real][:, None]).any(-1).float().mean().item())


@families
def test_cached_features_and_batches_of_any_size_give_the_same_scores(config: ModelConfig) -> None:
    weights, spec, data = random_weights(config, 1), window(config, 2), examples(config, 9)
    held = ElasticTransformer(config, spec, hold_prefix=True)
    held.load(extract(weights, config, spec) | extract_prefix(weights, config, spec))
    model = ElasticTransformer(config, spec).load(extract(weights, config, spec) | _table(config, weights))
    file = PrefixFile(extract_prefix(weights, config, spec))
    features = prefix_features(config, spec, file, lambda rows: data.batch(torch.arange(9)[rows], Normalize())[0], 9, 4)
    expected = evaluate(held, data, Normalize())
    for batch in (1, 4, 100):
        found = evaluate(model, data, Normalize(), features, batch)
        assert [pytest.approx(scores) for scores in expected] == found


def _table(config: ModelConfig, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tied = config.task == "language-modeling" and config.tied
    return {"embed.tokens": weights["embed.tokens"]} if tied else {}


@families
def test_the_servers_model_is_scored_by_depth_and_left_alone(config: ModelConfig) -> None:
    weights, data = random_weights(config, 1), examples(config, 9)
    before = copy(weights)
    by_depth = evaluate_exits(Method.evaluation_model(config, weights, exits=(4, 1, 2)), data, Normalize())
    assert list(by_depth) == [1, 2, 4]
    spec = SubmodelSpec.full(config, (1, 2, 4))
    model = ElasticTransformer(config, spec).load(extract(weights, config, spec))
    assert list(by_depth.values()) == evaluate(model, data, Normalize())
    assert same(weights, before)


def test_a_language_model_has_a_loss_and_a_perplexity_instead_of_f1() -> None:
    config = next(c for c in CONFIGS.values() if c.task == "language-modeling")
    spec, data = SubmodelSpec.full(config, (2, 4)), examples(config, 9)
    model = ElasticTransformer(config, spec).load(extract(random_weights(config, 1), config, spec))
    inputs, labels = data.batch(torch.arange(9), Normalize())
    for output, score in zip(model(inputs), evaluate(model, data, Normalize(), batch=4), strict=True):
        loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=-100).item()
        assert score["loss"] == pytest.approx(loss, rel=1e-5)
        assert score["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
        assert "f1" not in score
        assert "answers" not in score


def test_an_answer_is_right_if_each_of_its_tokens_is_the_likeliest() -> None:
    counter = LikelihoodCounter()
    counter.add(torch.zeros(3, 8), torch.tensor([0, 1, 2]))
    assert counter.result() == {"loss": pytest.approx(math.log(8)), "perplexity": pytest.approx(8.0)}

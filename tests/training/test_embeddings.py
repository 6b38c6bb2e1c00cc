from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.costs.shape import WHOLE, Shape, Tables
from cos2p.data.examples import Examples, Normalize
from cos2p.data.ragged import from_flat
from cos2p.errors import TrainingError
from cos2p.methods import run_task
from cos2p.models.config import ModelConfig
from cos2p.models.spec import from_bits, to_bits
from cos2p.training.embeddings import check_rows, cut_tables, held_tables, token_rows
from cos2p.training.shard import Shard
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import order, same, shard, task, window

BERT = CONFIGS["bert"]
TEXTS = [name for name, config in CONFIGS.items() if config.family != "vit"]


def texts(*ids: list[int]) -> Examples:
    values, lengths = (
        torch.tensor([id for own in ids for id in own], dtype=torch.int32),
        torch.tensor([len(own) for own in ids]),
    )
    return Examples(
        from_flat(values, lengths, 0, 6), torch.zeros(len(ids), dtype=torch.int64), ("a", "b", "c"), None, 0
    )


SHARD = Shard(texts([5, 9, 5], [7]), texts([7, 11]), Normalize())


def test_the_rows_of_a_shard_by_hand() -> None:
    """Training and test tokens, and 0, with which short texts are filled up."""
    assert from_bits(token_rows(SHARD, "rows")) == (0, 5, 7, 9, 11)
    assert from_bits(token_rows(SHARD, "frozen", pad_token=3)) == (0, 3, 5, 7, 9, 11)
    assert token_rows(SHARD, "whole") == ""
    assert token_rows(shard(CONFIGS["vit"]), "rows") == ""
    some = replace(SHARD, train=SHARD.train.subset(torch.tensor([1])), test=SHARD.test.subset(torch.arange(0)))
    assert from_bits(token_rows(some, "rows")) == (0, 7)


def test_a_language_model_is_asked_for_its_answers_too() -> None:
    inputs, labels = torch.tensor([[4, 2]]), torch.tensor([[2, -100]])
    language = Shard(Examples(inputs, labels, ()), Examples(inputs, torch.tensor([[6, -100]]), ()), Normalize())
    assert from_bits(token_rows(language, "rows")) == (0, 2, 4, 6)


def test_what_a_choice_makes_of_a_spec() -> None:
    spec, rows = window(BERT, 0), to_bits((0, 5, 7))
    assert cut_tables(spec, BERT, "rows", rows) == replace(spec, rows=(0, 5, 7))
    assert cut_tables(spec, BERT, "frozen", rows) == replace(spec, rows=(0, 5, 7), fixed_embeddings=True)
    assert cut_tables(spec, BERT, "whole", rows) == cut_tables(spec, BERT, "rows", "") == spec
    assert cut_tables(spec, BERT, "rows", to_bits(range(BERT.vocab))) == spec  # all of them are the whole table
    own = replace(spec, rows=(3,))
    assert cut_tables(own, BERT, "rows", rows) == own
    vit = CONFIGS["vit"]
    assert cut_tables(window(vit, 0), vit, "rows", "") == window(vit, 0)
    assert cut_tables(window(vit, 0), vit, "frozen", "").fixed_embeddings


@given(st.sampled_from(["rows", "frozen", "whole"]), st.sets(st.integers(0, 19)))
def test_the_numbers_are_those_of_the_spec(choice: str, rows: set[int]) -> None:
    bits = to_bits(sorted(rows))
    spec = cut_tables(window(BERT, 0), BERT, choice, bits)  # type: ignore[arg-type]
    shape = Shape.of(BERT, spec)
    assert held_tables(BERT, choice, bits) == Tables(shape.rows, shape.fixed_embeddings)  # type: ignore[arg-type]


def test_images_have_no_rows() -> None:
    assert held_tables(CONFIGS["vit"], "rows", "") == WHOLE


def test_a_device_whose_data_changed_says_so() -> None:
    check_rows(replace(window(BERT, 0), rows=(0, 5, 7, 9, 11)), SHARD)
    with pytest.raises(TrainingError, match="not those of 2 tokens in the device's data, 7 among them"):
        check_rows(replace(window(BERT, 0), rows=(0, 5, 9)), SHARD)
    missing = order(replace(window(BERT, 0), rows=(0, 5, 9)))
    with pytest.raises(TrainingError, match="let it join again"):
        run_task(BERT, task(BERT, random_weights(BERT, 0), missing), SHARD, {})


@pytest.mark.parametrize("frozen", [0, 2])
@pytest.mark.parametrize("name", TEXTS)
def test_all_rows_named_are_the_whole_model(name: str, frozen: int) -> None:
    """A table of every row, named one by one, gives the same update and the same scores as the table itself."""
    config = CONFIGS[name]
    weights, data, whole = random_weights(config, 0), shard(config), window(config, frozen)
    named = replace(whole, rows=tuple(range(config.vocab)))
    (one, _), (other, _) = (run_task(config, task(config, weights, order(spec)), data, {}) for spec in (whole, named))
    assert same(one.delta, other.delta)
    assert one.report == other.report


def few(config: ModelConfig) -> Shard:
    """Texts with the tokens 1 to 7 only."""
    data = shard(config)
    parts = []
    for part in (data.train, data.test):
        assert isinstance(part.inputs, torch.Tensor)
        ids = torch.where(part.inputs > 0, part.inputs % 7 + 1, 0)
        labels = (
            torch.where(part.labels > 0, part.labels % 7 + 1, part.labels) if part.labels.ndim == 2 else part.labels
        )
        parts.append(replace(part, inputs=ids, labels=labels))
    return replace(data, train=parts[0], test=parts[1])


@pytest.mark.parametrize("frozen", [0, 2])
@pytest.mark.parametrize("name", [name for name in TEXTS if CONFIGS[name].task == "classification"])
def test_a_classifier_does_not_notice_the_rows_it_does_not_need(name: str, frozen: int) -> None:
    """Rows are looked up one by one: what is left out would have had no gradient."""
    config = CONFIGS[name]
    weights, data, whole = random_weights(config, 0), few(config), window(config, frozen)
    cut = cut_tables(whole, config, "rows", token_rows(data, "rows"))
    assert cut.rows is not None
    assert len(cut.rows) <= 8
    (one, _), (other, _) = (run_task(config, task(config, weights, order(spec)), data, {}) for spec in (whole, cut))
    assert one.report == other.report
    tokens = one.delta.pop("embed.tokens", None)
    if tokens is not None:
        rows = torch.tensor(cut.rows)
        assert torch.equal(tokens[rows], other.delta.pop("embed.tokens"))
        assert not tokens[~torch.isin(torch.arange(config.vocab), rows)].any()
    assert same(one.delta, other.delta)


@pytest.mark.parametrize("name", ["llama tied", "llama untied"])
def test_a_language_model_answers_with_its_own_tokens(name: str) -> None:
    """The softmax of a cut table is that of the whole one without the tokens that do not occur."""
    config = CONFIGS[name]
    weights, data, whole = random_weights(config, 0), few(config), window(config, 2)
    cut = cut_tables(whole, config, "rows", token_rows(data, "rows"))
    update, _ = run_task(config, task(config, weights, order(cut)), data, {})
    assert update.spec.rows == cut.rows
    assert 0 <= update.report["local_top1"] <= 1
    if not config.tied:
        assert update.delta["lm_head.weight"].shape == (len(cut.rows or ()), config.dim)


@pytest.mark.parametrize("name", [*TEXTS, "vit"])
def test_frozen_embeddings_are_not_sent_back(name: str) -> None:
    config = CONFIGS[name]
    weights, data = random_weights(config, 0), shard(config)
    spec = cut_tables(window(config, 0), config, "frozen", token_rows(data, "frozen"))
    update, _ = run_task(config, task(config, weights, order(spec)), data, {})
    assert not [name for name in update.delta if name.startswith("embed.")]
    assert any(delta.any() for delta in update.delta.values())

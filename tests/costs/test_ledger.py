from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec, model_config
from cos2p.costs.fitting import make_spec
from cos2p.costs.ledger import (
    LEAST_SLACK_BYTES,
    PAGE_BYTES,
    SLACK_BYTES,
    Ledger,
    peak,
    prefix_batch,
    slack,
    with_slack,
)
from cos2p.costs.shape import Shape, Workload, trainable_scalars, trainable_sizes, trainable_tensors
from cos2p.errors import ConfigError
from cos2p.models.layout import parameter_count
from cos2p.numerics.optimizers import STATE_BYTES
from cos2p.submodel.slicing import trained_shapes
from tests.costs.by_spec import ledger
from tests.submodel.strategies import submodels, submodels_around

TINY = model_config("vit-tiny")
U = 8 * 197 * 512 * 4  # a tensor of residual width: 8 images of 197 tokens


@given(submodels_around())
def test_scalars_are_those_of_the_tensors(case: tuple[ModelConfig, SubmodelSpec, int]) -> None:
    config, spec, _ = case
    shape = Shape.of(config, spec)
    tensors = trained_shapes(config, spec)
    assert trainable_scalars(config, shape) == sum(math.prod(s) for s in tensors.values())
    assert sorted(trainable_sizes(config, shape)) == sorted(math.prod(s) for s in tensors.values())
    assert trainable_tensors(config, shape) in (len(tensors), len(tensors) - 1)  # an untied table is not counted


def test_the_full_vit_tiny_by_hand() -> None:
    entry = ledger(TINY, SubmodelSpec.full(TINY), Workload(batch=8))
    parameters = parameter_count(TINY)
    assert entry.weights == 4 * parameters == 103_271_200
    assert entry.optimizer == 16 * parameters
    assert entry.inputs == 8 * 3 * 224 * 224 * 4
    # Each block keeps x, norm, q, k, v, attention, x, norm (1 each), fc1 and its activation (4 each). The worst moment
    # is in the top block's backward: the last residual became its gradient, and fc1's has the width of the MLP.
    assert entry.moment == "pass"
    assert entry.activations / U == pytest.approx(8 * 16 + 1 + 4, rel=0.002)
    assert entry.gradients == 4 * (2048 * 512 + 512 + 513 * 200 + 2 * 512)  # fc2 and the exit
    assert entry.prefix == entry.features == 0
    assert entry.overhead == SLACK_BYTES + PAGE_BYTES * 6 * (8 * 16 + 4 + 4)  # a task this large has all the slack


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_slack_grows_with_the_task_up_to_a_limit(one: int, other: int) -> None:
    """So that of two moments the larger one stays the larger, whatever slack they were compared with."""
    small, large = sorted((one, other))
    assert LEAST_SLACK_BYTES <= slack(small) <= slack(large) <= SLACK_BYTES
    entries = [with_slack(Ledger("weight", "pass", weights=size)) for size in (small, large)]
    assert [entry.total for entry in entries] == [size + slack(size) for size in (small, large)]
    assert entries[0].total <= entries[1].total


def test_the_slack_by_hand() -> None:
    assert slack(0) == 2**20
    assert slack(15_000_000) == 2**20 + 300_000
    assert slack(105_000_000) == slack(10**9) == 3 * 2**20


def test_the_total_is_the_sum_of_the_parts() -> None:
    entry = Ledger("weight", "pass", 1, 20, 300, 4_000, 50_000, 600_000, 7_000_000, 80_000_000)
    assert entry.total == 87_654_321


@pytest.mark.parametrize(("optimizer", "each"), [item for item in STATE_BYTES.items() if "8bit" not in item[0]])
def test_the_optimizer_costs_its_state(optimizer: str, each: int) -> None:
    spec = SubmodelSpec.full(TINY)
    assert ledger(TINY, spec, Workload(optimizer=optimizer)).optimizer == each * parameter_count(TINY)


@pytest.mark.parametrize(("optimizer", "states"), [("adan-8bit", 4), ("adamw-8bit", 2)])
def test_states_in_8_bits_cost_a_quarter_where_there_are_codes(optimizer: str, states: int) -> None:
    spec = SubmodelSpec.full(TINY)
    # In each block 4·512² + 2·512·2048 scalars have codes; of the rest the patches, the positions and the exit's table.
    coded = 8 * (4 * 512**2 + 2 * 512 * 2048) + 512 * 3 * 16 * 16 + 197 * 512 + 512 * 200
    floats = parameter_count(TINY) - coded
    expected = states * (coded + 4 * (coded // 256) + 4 * floats)
    assert ledger(TINY, spec, Workload(optimizer=optimizer)).optimizer == expected


def test_with_few_tokens_the_optimizer_step_is_the_worst_moment() -> None:
    small = model_config("vit-tiny", image=32)
    entry = ledger(small, make_spec(small, 0.25, start=4), Workload(batch=1))
    assert entry.moment == "step"
    assert entry.gradients == entry.weights  # all of them are there


def test_a_streamed_prefix_costs_the_same_wherever_the_window_sits() -> None:
    workload = Workload(batch=8, samples=64)
    middle, top = (peak(TINY, make_spec(TINY, 0.25, start=start), workload) for start in (2, 4))
    assert middle == top
    assert top.prefix == 0
    assert top.features == 64 * 197 * 512 * 4
    bottom = peak(TINY, make_spec(TINY, 0.25, start=0), workload)
    embeddings = 4 * (512 * (3 * 16 * 16) + 512 + 512 + 197 * 512)
    assert bottom.weights - top.weights == embeddings


def test_the_cache_costs_what_it_says_or_nothing_on_disk() -> None:
    spec = make_spec(TINY, 0.25, start=4)
    whole = ledger(TINY, spec, Workload(samples=100)).features
    assert whole == 100 * 197 * 512 * 4
    assert ledger(TINY, spec, Workload(samples=100, feature_bytes=2)).features == whole // 2
    assert ledger(TINY, spec, Workload(samples=100, features="disk")).features == 0


def test_the_prefix_pass_takes_fewer_samples_at_a_time_to_stay_below_training() -> None:
    """A frozen block has its full width: behind it a thin window would otherwise need less than the way to it."""
    spec, workload = make_spec(TINY, 0.0156, start=7), Workload(batch=8, samples=16)
    at_a_time = prefix_batch(TINY, Shape.of(TINY, spec), workload)
    assert 1 <= at_a_time < 8
    training = ledger(TINY, spec, workload, "weight").total
    assert ledger(TINY, spec, workload, "prefix").total <= training
    assert ledger(TINY, spec, Workload(batch=8, samples=16, prefix_batch=at_a_time + 1), "prefix").total > training
    wide = make_spec(TINY, 0.5625, start=2)
    assert prefix_batch(TINY, Shape.of(TINY, wide), workload) == 8


def test_micro_batches_trade_activations_for_held_gradients() -> None:
    spec = SubmodelSpec.full(TINY)
    whole, quarter = (ledger(TINY, spec, Workload(batch=8, micro_batch=micro)) for micro in (0, 2))
    assert quarter.activations < 0.3 * whole.activations
    assert quarter.gradients == quarter.weights
    assert quarter.total < whole.total


def test_a_step_in_backward_holds_one_matrix_of_gradients() -> None:
    small = model_config("vit-tiny", image=32)
    spec = make_spec(small, 1.0)
    plain, inside = (ledger(small, spec, Workload(batch=1, step_in_backward=there)) for there in (False, True))
    assert plain.gradients == plain.weights
    assert inside.gradients == 4 * (512 * 2048 + 512)  # fc2 of the top block, next to all activations
    assert inside.total < plain.total - 0.9 * plain.gradients


def test_recomputed_blocks_keep_their_input_and_one_of_them_its_inside() -> None:
    entry = ledger(TINY, SubmodelSpec.full(TINY), Workload(batch=8, recompute=True))
    # The worst moment is in the bottom block, when all others have left their gradients: its 16 and 1 + 4 for a moment.
    assert entry.activations / U == pytest.approx(16 + 1 + 4, rel=0.01)
    assert entry.gradients > 0.8 * entry.weights
    # Stepped with, these are gone; then it is in the top block, when the inputs of all others are still there.
    both = ledger(TINY, SubmodelSpec.full(TINY), Workload(batch=8, recompute=True, step_in_backward=True))
    assert both.activations / U == pytest.approx(8 + 15 + 1 + 4, rel=0.05)
    assert both.gradients == 4 * (2048 * 512 + 512)


def test_frozen_candidates_cost_a_sixth_of_trained_weights() -> None:
    spec = SubmodelSpec.full(TINY)
    mask, weight = (ledger(TINY, spec, Workload(batch=1), phase) for phase in ("mask", "weight"))
    gates = 8 * (8 + 2048)
    assert mask.weights == weight.weights + 4 * 2 * gates
    assert mask.optimizer == 16 * gates
    assert mask.gradients == 4 * gates


def test_a_tied_table_above_a_prefix_is_held_frozen() -> None:
    config = model_config("llama-nano")
    bottom, top = (ledger(config, make_spec(config, 0.25, start=start), Workload(batch=2)) for start in (0, 1))
    assert bottom.weights == top.weights  # as the trained embeddings there, as the frozen output table here
    assert bottom.optimizer > top.optimizer


def test_logits_of_a_language_model_are_charged_for_every_exit() -> None:
    """One exit reads the output table in parts; distillation between two needs both of their logits whole."""
    config = model_config("llama-nano", vocab=4096)
    one, two = (SubmodelSpec(0, SubmodelSpec.full(config).window, exits) for exits in ((4,), (2, 4)))
    logits = 8 * 64 * 4096 * 4
    difference = ledger(config, two, Workload()).activations - ledger(config, one, Workload()).activations
    assert difference == pytest.approx(6 * logits, rel=0.1)  # three arrays for each; one exit alone holds a part


@given(submodels(), st.integers(1, 16), st.sampled_from(["memory", "disk"]))
def test_more_samples_never_need_less(case: tuple[ModelConfig, SubmodelSpec, int], batch: int, store: str) -> None:
    config, spec, _ = case
    fewer, more = (Workload(batch=size, features=store) for size in (batch, batch + 1))  # type: ignore[arg-type]
    assert peak(config, spec, fewer).total < peak(config, spec, more).total


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown phase 'train'; known: prefix, mask, weight"):
        ledger(TINY, SubmodelSpec.full(TINY), Workload(), "train")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"samples": -1}, "samples is -1; it cannot be negative"),
        ({"micro_batch": 9}, "micro_batch 9 is larger than the batch 8"),
        ({"micro_batch": 2, "step_in_backward": True}, "micro_batch 2 is smaller than the batch 8, whose gradients"),
        ({"optimizer": "adam"}, "optimizer is 'adam'; known: adan, adamw, sgd"),
        ({"features": "tape"}, "features is 'tape'; known: memory, disk"),
        ({"feature_bytes": 3}, "feature_bytes is 3; known: 2, 4"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Workload(**fields)  # type: ignore[arg-type]


def test_a_sequence_longer_than_the_model_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokens is 65, but the model takes at most 64"):
        ledger(model_config("bert-nano"), SubmodelSpec.full(model_config("bert-nano")), Workload(tokens=65))

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec, model_config
from cos2p.costs.fitting import largest_rate, make_spec, mask_plan
from cos2p.costs.ledger import peak
from cos2p.costs.shape import Workload
from cos2p.errors import BudgetError
from cos2p.models.spec import BlockKeep
from cos2p.submodel.rates import cut
from tests.costs.by_spec import ledger

TINY, BASE = model_config("vit-tiny"), model_config("vit-base")


def fits_everywhere(config: ModelConfig, rate: float, memory: int, workload: Workload, ratio: float) -> bool:
    places = range(config.depth - cut(config, rate, ratio).blocks + 1)
    return all(peak(config, make_spec(config, rate, start, ratio), workload).total <= memory for start in places)


@settings(max_examples=25)
@given(
    st.integers(60_000_000, 1_200_000_000),
    st.sampled_from([0.0, 0.5, 1.0, 4.0, math.inf]),
    st.sampled_from([Workload(), Workload(batch=2, samples=40, optimizer="adamw")]),
)
def test_the_largest_rate_fits_at_every_position_and_a_larger_one_does_not(
    memory: int, ratio: float, workload: Workload
) -> None:
    rate = largest_rate(TINY, memory, workload, ratio)
    if rate > 0:
        assert fits_everywhere(TINY, rate, memory, workload, ratio)
    for more in (1.0, 0.9, 0.5, 0.25, 0.1, 0.03, rate * 1.2, rate * 1.02):
        if rate < more <= 1.0 and cut(TINY, more, ratio).units > cut(TINY, max(rate, 1e-9), ratio).units:
            assert not fits_everywhere(TINY, more, memory, workload, ratio)


def test_the_largest_rate_of_a_roomy_device_is_the_whole_model() -> None:
    assert largest_rate(TINY, "4GB", Workload()) == 1.0


def test_nothing_fits_in_next_to_nothing() -> None:
    assert largest_rate(TINY, "10MB", Workload()) == 0.0


def test_one_position_may_allow_more_than_all() -> None:
    workload = Workload(samples=300)  # of which features are kept behind a frozen part
    assert largest_rate(BASE, "600MB", workload, start=0) > largest_rate(BASE, "600MB", workload)


def candidates(config: ModelConfig, spec: SubmodelSpec, heads: tuple[int, ...], units: tuple[int, ...]) -> SubmodelSpec:
    window = tuple(BlockKeep(tuple(range(h)), tuple(range(u))) for h, u in zip(heads, units, strict=True))
    return SubmodelSpec(spec.frozen, window, spec.exits)


@pytest.mark.parametrize("rate", [0.5625, 0.25, 0.0625, 0.0156])
@pytest.mark.parametrize("config", [TINY, BASE], ids=["vit-tiny", "vit-base"])
def test_the_mask_phase_fits_the_memory_of_the_training(config: ModelConfig, rate: float) -> None:
    for start in {0, config.depth - cut(config, rate).blocks}:
        spec, workload = make_spec(config, rate, start), Workload(samples=16)
        plan = mask_plan(config, spec, workload)
        wide = candidates(config, spec, plan.heads, plan.units)
        needed = ledger(config, wide, workload.with_(micro_batch=plan.micro_batch), "mask").total
        assert needed <= peak(config, spec, workload).total
        for keep, heads, units in zip(spec.window, plan.heads, plan.units, strict=True):
            assert len(keep.heads) <= heads <= config.groups
            assert len(keep.units) <= units <= config.mlp


def test_all_segments_are_candidates_where_they_fit() -> None:
    plan = mask_plan(TINY, make_spec(TINY, 0.25), Workload())
    assert plan.heads == (8,) * 4
    assert plan.units == (2048,) * 4


def test_the_micro_batch_shrinks_before_the_candidates_do() -> None:
    plans = [mask_plan(TINY, make_spec(TINY, 0.0625), Workload(), memory) for memory in ("200MB", "100MB", "40MB")]
    assert [plan.micro_batch for plan in plans] == [8, 4, 1]
    assert plans[0].units == plans[1].units == (2048, 2048)
    assert plans[2].units < (2048, 2048)


def test_a_mask_phase_that_cannot_fit_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"the mask phase needs .* even with the kept segments alone"):
        mask_plan(TINY, make_spec(TINY, 0.25), Workload(), "20MB")

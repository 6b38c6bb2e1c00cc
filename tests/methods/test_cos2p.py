from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec, model_config
from cos2p.aggregation.merge import SegmentMerge
from cos2p.aggregation.triggers import Trigger
from cos2p.errors import BudgetError
from cos2p.messages import Order, Update, tensor_bytes
from cos2p.methods import build_method
from cos2p.methods.base import Assignment, Call, RunContext
from cos2p.methods.cos2p import Cos2p
from cos2p.models.spec import BlockKeep
from cos2p.submodel.rates import cut
from cos2p.submodel.slicing import extract
from cos2p.training.settings import LocalSettings
from tests.runtime.played import answer, join_all, server
from tests.submodel.strategies import configs, random_weights
from tests.tiny import VIT, context

KINDS = ("trainable", "fixed", "random")
rates = st.one_of(st.sampled_from([1 / 64, 1 / 16, 0.25, 0.5625, 1.0]), st.floats(0.01, 1.0))


def method(given_house: RunContext | None = None, **settings: Any) -> Cos2p:
    built = build_method({"name": "cos2p", **settings}, given_house or context())
    assert isinstance(built, Cos2p)
    return built


def assign(to: Cos2p, client: str = "pi-0", version: int = 0, cycle: int = 0, attempt: int = 0) -> Assignment:
    return to.assign(Call(to.context.members[client], version, cycle, attempt, {}))


def answered(to: Cos2p, client: str, assignment: Assignment, version: int = 0) -> SubmodelSpec:
    """The server learns which mask the client chose: the last candidates that its quotas allow."""
    spec = assignment.spec
    if assignment.quotas is not None:
        window = tuple(
            BlockKeep(keep.heads[len(keep.heads) - q.heads :], keep.units[len(keep.units) - q.units :])
            for keep, q in zip(spec.window, assignment.quotas, strict=True)
        )
        spec = replace(spec, window=window)
    order = Order(client, f"{client}#0", version, 0, 0, 0, "submodel", {}, 0.1, assignment.spec, assignment.quotas)
    to.accepted(order, Update(client, order.task, 0, spec, {}, 1))
    return spec


# ---------------------------------------------------------------- the budget


@settings(max_examples=60)
@given(configs, rates, st.sampled_from([0.0, 0.25, 1.0, 4.0]), st.integers(0, 9), st.sampled_from(KINDS))
def test_every_window_keeps_what_the_rate_allows(
    config: ModelConfig, rate: float, ratio: float, cycle: int, kind: str
) -> None:
    allowed = cut(config, rate, ratio)
    to = method(
        context(config, (rate,)),
        masks={"heads": kind, "units": kind},
        window={"ratio": ratio},
    )
    given_out = assign(to, cycle=cycle)
    spec = answered(to, "pi-0", given_out)
    spec.check(config)
    assert len(spec.window) == allowed.blocks
    assert sum(len(keep.heads) for keep in spec.window) <= allowed.heads
    assert sum(len(keep.units) for keep in spec.window) <= allowed.units
    if given_out.quotas is not None:
        assert sum(q.heads for q in given_out.quotas) == allowed.heads
        assert sum(q.units for q in given_out.quotas) == allowed.units


@given(configs, rates, st.integers(0, 20))
def test_a_blocks_quota_does_not_depend_on_the_window(config: ModelConfig, rate: float, cycle: int) -> None:
    to = method(context(config, (rate,)))
    given_out = assign(to, cycle=cycle)
    assert given_out.quotas is not None
    member = to.context.members["pi-0"]
    assert given_out.quotas == tuple(to.quota(member, b) for b in range(given_out.spec.frozen, given_out.spec.top))


# ---------------------------------------------------------------- the window


def test_the_clients_own_cycle_drives_its_window() -> None:
    """K = 2 of 4 blocks: three places. Neither the server's version nor a repeated attempt moves the window."""
    to = method(context(rates=(0.25,)))
    assert [assign(to, cycle=cycle).spec.frozen for cycle in range(5)] == [0, 1, 2, 0, 1]
    assert [assign(to, cycle=1, version=version, attempt=version).spec.frozen for version in range(4)] == [1, 1, 1, 1]


def test_devices_of_a_tier_begin_apart_and_cover_every_block_in_every_round() -> None:
    to = method(context(rates=(0.25, 0.25, 0.25, 1.0)))
    assert [to.offsets[f"pi-{i}"] for i in range(4)] == [0, 1, 2, 0]
    for cycle in range(3):
        covered = {
            block
            for i in range(3)
            for spec in [assign(to, f"pi-{i}", cycle=cycle).spec]
            for block in range(spec.frozen, spec.top)
        }
        assert covered == {0, 1, 2, 3}


def test_the_balanced_schedule_goes_where_the_least_was_given_out() -> None:
    to = method(context(rates=(0.25, 1.0)), window={"schedule": "balanced"})
    to.dispatched = [3, 1, 1, 5]
    assert assign(to).spec.frozen == 1
    assert to.dispatched == [3, 2, 2, 5]
    assign(to, "pi-1")
    assert to.dispatched == [4, 3, 3, 6]


# ---------------------------------------------------------------- exits


def test_exits_are_where_smaller_devices_end() -> None:
    """K is 1, 2 and 4 for the rates 1/16, 1/4 and 1."""
    to = method(context(rates=(1.0, 0.25, 0.0625)))
    assert assign(to, "pi-0").spec.exits == (1, 2, 4)
    assert assign(to, "pi-1", cycle=1).spec.exits == (2, 3)
    assert assign(to, "pi-2", cycle=3).spec.exits == (4,)


def test_no_exits_is_one_exit_without_distillation() -> None:
    to = method(context(rates=(1.0, 0.25)), exits={"kind": "none", "lambda2": 0.4})
    given_out = assign(to)
    assert given_out.spec.exits == (4,)
    assert isinstance(given_out.settings, LocalSettings)
    assert given_out.settings.lambda2 == 0.0


def test_lambda2_of_zero_keeps_the_exits() -> None:
    given_out = assign(method(context(rates=(1.0, 0.25)), exits={"lambda2": 0.0}))
    assert given_out.spec.exits == (2, 4)
    assert isinstance(given_out.settings, LocalSettings)
    assert given_out.settings.lambda2 == 0.0


# ---------------------------------------------------------------- masks


def test_the_mask_phase_is_due_in_the_first_rounds_and_at_first_visits() -> None:
    to = method(context(rates=(0.25,)), masks={"rounds": 2})
    full = BlockKeep.full(VIT)
    for version in (0, 1):
        given_out = assign(to, version=version)
        assert given_out.quotas is not None
        assert given_out.spec.window == (full, full)
        kept = answered(to, "pi-0", given_out)
    later = assign(to, version=2)  # both blocks are known: the compact submodel
    assert later.quotas is None
    assert later.spec.window == kept.window
    first_visit = assign(to, version=2, cycle=1)  # block 2 is new, block 1 is decided
    assert first_visit.quotas is not None
    assert first_visit.spec.window == (kept.window[1], full)
    kept = answered(to, "pi-0", first_visit)
    assert assign(to, version=2, cycle=1).quotas is None


def test_after_the_mask_phase_less_is_sent() -> None:
    to = method(context(rates=(0.25,)), masks={"rounds": 1})
    weights = random_weights(VIT, 0)
    wide = assign(to)
    answered(to, "pi-0", wide)
    compact = assign(to, version=1)
    sizes = [tensor_bytes(extract(weights, VIT, given_out.spec)) for given_out in (wide, compact)]
    assert sizes[1] < 0.7 * sizes[0]


@pytest.mark.parametrize(("heads", "units"), [(h, u) for h in KINDS for u in KINDS])
def test_heads_and_units_have_masks_of_their_own_kind(heads: str, units: str) -> None:
    to = method(context(rates=(0.25,)), masks={"heads": heads, "units": units, "rounds": 1})
    first = assign(to, version=0, attempt=0)
    assert isinstance(first.settings, LocalSettings)
    assert (first.settings.mask.heads, first.settings.mask.units) == (heads == "trainable", units == "trainable")
    assert (first.quotas is not None) == ("trainable" in (heads, units))
    kept = answered(to, "pi-0", first)
    several = [assign(to, version=1, attempt=attempt).spec.window for attempt in range(1, 7)]
    for kind, what, size in (("heads", heads, 4), ("units", units, 10)):
        seen = {getattr(keep, kind) for window in several for keep in window[:1]}
        first_kept = getattr(first.spec.window[0], kind)
        if what == "trainable":
            assert len(first_kept) == size  # everything to choose from
            assert seen == {getattr(kept.window[0], kind)}  # and then what was chosen
        elif what == "fixed":
            assert seen == {first_kept}
        else:
            assert len(seen) > 1
            assert {len(chosen) for chosen in seen} == {size // 2}


def test_fixed_masks_differ_between_clients_and_seeds_and_come_back_from_the_seed() -> None:
    def masks(seed: int) -> list[BlockKeep]:
        to = method(
            replace(context(VIT.with_(mlp=100), (0.25, 0.25)), seed=seed), masks={"heads": "fixed", "units": "fixed"}
        )
        return [assign(to, f"pi-{i}", cycle=2 - i).spec.window[i] for i in (0, 1)]  # block 2, for both

    assert masks(3) == masks(3)
    assert len({*masks(3), *masks(4)}) == 4


def test_without_mask_epochs_there_is_no_mask_phase() -> None:
    assert assign(method(masks={"epochs": 0})).quotas is None


def test_where_memory_is_short_candidates_take_turns_and_the_present_mask_stays() -> None:
    config = model_config("vit-tiny")
    roomy = context(config, (0.0625,), samples=4)
    assert all(keep == BlockKeep.full(config) for keep in assign(method(roomy)).spec.window)
    to = method(with_memory(roomy, 40_000_000))
    first = assign(to)
    kept = answered(to, "pi-0", first)
    second, third = (assign(to, attempt=attempt) for attempt in (1, 2))
    for given_out in (second, third):
        assert isinstance(given_out.settings, LocalSettings)
        assert given_out.settings.mask.micro_batch == 1  # the cheaper way to save comes first
        for block, keep in zip(given_out.spec.window, kept.window, strict=True):
            assert set(keep.heads) < set(block.heads)
            assert set(keep.units) < set(block.units)
            assert len(block.heads) < config.heads
            assert len(block.units) < config.mlp
    assert second.spec.window != third.spec.window


def test_a_device_too_small_for_the_mask_phase_is_told_unless_memory_does_not_count() -> None:
    tiny = with_memory(context(model_config("vit-tiny"), (0.0625,), samples=4), 5_000_000)
    with pytest.raises(BudgetError, match="the mask phase needs"):
        assign(method(tiny))
    assert assign(method(replace(tiny, enforce_memory=False))).quotas is not None


def with_memory(given_house: RunContext, memory: int) -> RunContext:
    members = {
        name: replace(member, device=member.device.model_copy(update={"memory": memory}))
        for name, member in given_house.members.items()
    }
    return replace(given_house, members=members)


# ---------------------------------------------------------------- the prefix


def test_the_prefix_travels_in_16_bits_by_default() -> None:
    given_out = assign(method(context(rates=(0.25,))), cycle=2)
    assert given_out.prefix_precision == "float16"


# ---------------------------------------------------------------- the rest of the contract


def test_local_settings_are_the_recipes_and_the_methods() -> None:
    to = method(
        context(training={"epochs": 7, "optimizer": "sgd", "weight_decay": 0.01}),
        masks={"epochs": 2, "lr": 0.3, "lambda1": 0.4},
        exits={"lambda2": 0.3, "temperature": 2.0},
        prefix={"features": "disk", "feature_precision": "float16"},
        rescale=True,
    )
    local = assign(to, version=99).settings
    assert isinstance(local, LocalSettings)
    assert (local.epochs, local.optimizer, local.weight_decay, local.batch) == (7, "sgd", 0.01, 4)
    assert (local.lambda2, local.temperature, local.rescale) == (0.3, 2.0, True)
    assert (local.features, local.feature_precision) == ("disk", "float16")
    assert (local.mask.epochs, local.mask.lr, local.mask.lambda1) == (2, 0.3, 0.4)
    LocalSettings.model_validate(json.loads(json.dumps(local.model_dump(mode="json"))))


@pytest.mark.parametrize(
    ("name", "trigger", "redispatch"),
    [
        ("cos2p", Trigger.semi_asynchronous(0.3, 7.0), "at-aggregation"),
        ("cos2p-sync", Trigger.synchronous(), "at-aggregation"),
        ("cos2p-async", Trigger.asynchronous(), "at-once"),
    ],
)
def test_when_the_server_aggregates(name: str, trigger: Trigger, redispatch: str) -> None:
    assert build_method({"name": name}, context(mu=0.3, t_clk=7.0)).rules() == (trigger, redispatch)


def test_how_updates_are_weighed() -> None:
    for rule in ("paper", "uniform"):
        merge = method(weighting=rule).merge()
        assert isinstance(merge, SegmentMerge)
        assert merge.rule == rule


def test_what_is_remembered_comes_back_from_json() -> None:
    played = server(rates=(0.25, 0.25, 1.0), settings={"window": {"schedule": "balanced"}})
    join_all(played)
    played.receive("pi-0", answer(played, "pi-0"))
    before = played.method
    assert isinstance(before, Cos2p)
    after = method(played.context, window={"schedule": "balanced"})
    after.load_state(json.loads(json.dumps(before.state()[0])), {})
    assert after.masks == before.masks
    assert after.masks["pi-0"]
    assert after.dispatched == before.dispatched
    for client in played.context.names:
        for cycle in range(4):
            one, other = assign(before, client, 99, cycle), assign(after, client, 99, cycle)
            assert (one.spec, one.quotas, one.settings) == (other.spec, other.quotas, other.settings)

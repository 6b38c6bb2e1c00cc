"""What a device trains follows from its memory: the part that learns most of those that fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_
from hypothesis import strategies as st

from cos2p import ModelConfig
from cos2p.errors import BudgetError
from cos2p.memory import planning
from cos2p.memory.parts import HEAD, RATES, WIDE, Part
from cos2p.memory.plan import FULL, plan_of
from cos2p.memory.planning import choose, every_task, least_of, lowered, with_parts
from cos2p.memory.ways import fitted_order, needed_bytes
from cos2p.methods import build_method
from cos2p.methods.base import Assignment, Call, Member, Method
from cos2p.models.layout import init_weights
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup, first_weights
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server
from cos2p.training.settings import MemoryOptimizations
from tests.models.checkpoints import BERT
from tests.tiny import VIT, context

WIDER = VIT.with_(dim=64, mlp=256, heads=4, depth=6)
PRETRAINED = {"name": "cos2p", "form": "pretrained", "exits": {"start": "fresh", "finish": "trained"}}
LORA = {"name": "fedlora"}


def on(memory: int, settings: dict[str, Any], config: ModelConfig = WIDER, **training: Any) -> tuple[Method, Member]:
    """A method with one member of so many bytes, whose rate is left open."""
    house = context(config, (1.0,), training=training)
    (member,) = house.members.values()
    device = member.device.model_copy(update={"memory": memory})
    member = replace(member, device=device, auto=True)
    return build_method(settings, replace(house, members={member.name: member})), member


def least(settings: dict[str, Any], part: Part) -> int:
    method, member = on(10**10, settings)
    return least_of(method, member.training(part), exact=True)


@settings_(max_examples=15)
@given(memory=st.integers(1_500_000, 40_000_000))
@pytest.mark.parametrize(
    "settings",
    [PRETRAINED, LORA, {"name": "fedrolex"}, {"name": "fedepth"}, {"name": "heterofl"}, {"name": "cos2p"}],
)
def test_every_task_of_a_part_fits_and_the_next_larger_part_does_not(settings: dict[str, Any], memory: int) -> None:
    method, member = on(memory, settings)
    try:
        part = choose(method, member)
    except BudgetError:
        return
    own = member.training(part)
    assert all(needed_bytes(alone, own, task) <= memory for alone, task in every_task(method, own))
    offered = list(method.parts(member))
    larger = offered[offered.index(part) - 1]
    if part != offered[0] and larger.kind == part.kind and not method.sized_by_rate:
        assert least_of(method, member.training(larger), exact=True) > memory


def test_a_method_that_cuts_its_tables_is_not_charged_for_whole_ones() -> None:
    """HeteroFL trains a narrow table where a window keeps all of its width."""
    config = BERT.with_(vocab=50_000)
    table = 4 * config.vocab * config.dim
    method, member = on(3 * table, {"name": "heterofl"}, config)
    assert choose(method, member).size > 0
    with pytest.raises(BudgetError):
        choose(*on(3 * table, {"name": "fedrolex"}, config))


def test_of_a_pretrained_model_factors_stand_between_wide_and_narrow_windows() -> None:
    method, member = on(10**9, PRETRAINED)
    kinds = [(part.kind, part.kind == "window" and part.size >= WIDE) for part in method.parts(member)]
    assert list(dict.fromkeys(kinds)) == [("window", True), ("factors", False), ("window", False), ("head", False)]
    assert choose(method, member) == Part("window", 1.0)
    narrowest = min(rate for rate in RATES if rate >= WIDE)
    tight, member = on(least(PRETRAINED, Part("window", narrowest)) - 1, PRETRAINED)
    assert choose(tight, member).kind == "factors"


def test_what_is_set_wins() -> None:
    house = context(WIDER, (0.3,))
    (member,) = house.members.values()
    assert build_method(PRETRAINED, house).parts(member) == [Part("window", 0.3)]
    below = build_method({**PRETRAINED, "factors": {"below": 1.0}}, house)
    assert choose(below, member) == Part("factors", 32)
    never, open_ = on(10**9, {**PRETRAINED, "factors": {"below": 0.0}})
    assert {part.kind for part in never.parts(open_)} == {"window", "head"}


def test_cos2p_needs_hardly_more_bytes_than_fedlora() -> None:
    """Its first passes look at all gradients at once, where FedLoRA may use one after the other."""
    for rank in (1, 8, 32):
        assert least(PRETRAINED, Part("factors", rank)) <= 1.1 * least(LORA, Part("factors", rank))
    assert least(PRETRAINED, HEAD) <= least(LORA, HEAD)


def test_spare_memory_buys_speed() -> None:
    """The same part, with fewer savings the more memory there is; in the end none."""
    first = least(LORA, Part("factors", 32))
    seen: list[MemoryOptimizations] = []
    for memory in range(first, first * 8, first // 8):
        method, member = on(memory, LORA)
        task = method.assign(Call(member, 0, 0, 0, {}))
        seen.append(
            MemoryOptimizations.model_validate(
                fitted_order(method, member, task).settings.get("memory_optimizations", PLAIN_JSON)
            )
        )
    assert seen[0].stream is True
    assert seen[-1].stream is False
    assert seen[-1].recompute == "no"
    assert seen[-1].micro_batch == 0
    parts = [saved.at_once(member.batch) for saved in seen if saved.stream is True]
    assert parts == sorted(parts)


PLAIN_JSON = {"stream": False, "step_in_backward": False, "eight_bit": False, "recompute": "no", "micro_batch": 0}


def test_states_in_eight_bits_are_taken_only_where_nothing_else_fits() -> None:
    exact = least({"name": "fedepth"}, Part("blocks", 1))
    method, member = on(exact, {"name": "fedepth"})
    order = fitted_order(method, member, method.assign(Call(member, 0, 0, 0, {})))
    assert not order.settings.get("memory_optimizations", PLAIN_JSON)["eight_bit"]


def test_a_saving_that_is_ruled_out_is_not_made() -> None:
    shut = {"stream": False, "recompute": "no", "micro_batch": 0, "step_in_backward": False, "eight_bit": False}
    method, member = on(10**9, LORA, memory_optimizations=shut)
    with_all = least_of(method, member.training(Part("factors", 32)))
    assert with_all > least(LORA, Part("factors", 32))
    tight, member = on(with_all - 1, LORA, memory_optimizations=shut)
    assert choose(tight, member) != Part("factors", 32)


def test_where_nothing_fits_the_error_has_the_bytes_that_would() -> None:
    method, member = on(1000, LORA)
    with pytest.raises(BudgetError, match=r"even the head alone needs .* the device has 1\.00 kB"):
        choose(method, member)


class _Own(Method):
    """A user's own, which says nothing of memory: all of the model, cut in width."""

    name = "own-planned"
    title = "own"

    def assign(self, call: Call) -> Assignment:
        from cos2p.costs.fitting import make_spec

        spec = make_spec(self.context.config, call.member.rate, ratio=0.0)
        return Assignment(spec, self.context.local(call.member))


def test_a_method_of_the_users_own_is_planned_too() -> None:
    _, member = on(8_000_000, LORA)
    house = context(WIDER, (1.0,))
    method = _Own(method_settings(), replace(house, members={member.name: member}))
    planned = with_parts(method).members[member.name]
    assert 0 < planned.rate < 1
    assert needed_bytes(method, planned, method.assign(Call(planned, 0, 0, 0, {}))) <= 8_000_000


def method_settings() -> Any:
    from cos2p.settings import Settings

    return Settings()


def test_a_plan_takes_nine_tenths_of_the_memory_or_says_why_not() -> None:
    for memory in range(2_000_000, 30_000_000, 1_700_000):
        method, member = on(memory, PRETRAINED)
        try:
            own = member.training(choose(method, member))
        except BudgetError:
            continue
        plan = plan_of(method, own, init_weights(WIDER, 0))
        assert plan.peak <= memory
        assert plan.peak >= FULL * memory or "all" in plan.why or "everything" in plan.why or "quicker" in plan.why, (
            plan
        )


def test_a_task_that_ran_out_of_memory_is_followed_by_a_smaller_one() -> None:
    for settings in (PRETRAINED, LORA, {"name": "fedrolex"}):
        method, member = on(20_000_000, settings)
        member = member.training(choose(method, member))
        needed = max(needed_bytes(alone, member, task) for alone, task in every_task(method, member))
        smaller = lowered(method, member, needed)
        assert smaller.largest < needed
        again = max(needed_bytes(alone, smaller, task) for alone, task in every_task(method, smaller))
        assert again <= smaller.largest or smaller.part == list(method.parts(member))[-1]


def test_a_thousand_unequal_memories_cost_a_few_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def search(method: object, member: Member) -> Part:
        asked.append(member.device.memory)
        return Part("factors", 1 + member.device.memory // 10**6 % 32)

    monkeypatch.setattr(planning, "choose", search)
    method, member = on(10**6, LORA)
    fleet = {
        f"pi-{n}": replace(member, name=f"pi-{n}", device=member.device.model_copy(update={"memory": 32_000 * n}))
        for n in range(1, 1000)
    }
    method.context = replace(method.context, members=fleet)
    planned = with_parts(method).members
    assert len(asked) < 400
    assert all(entry.part == Part("factors", 1 + entry.device.memory // 10**6 % 32) for entry in planned.values())


@pytest.mark.parametrize("memory", ["12MB", "15MB", "16.5MB", "19MB"])
def test_what_was_chosen_is_not_refused_when_the_run_begins(memory: str) -> None:
    weak = {"preset": "raspberry-pi-4", "count": 3, "batch": 16, "memory": memory}
    strong = {"preset": "laptop", "count": 2, "rate": 0.5625, "batch": 32}
    values = {"name": "office", "model": {"size": "vit-nano"}, "data": {"train_samples": 300}}
    recipe = Recipe.parse({**values, "fleet": {"devices": [weak, strong]}, "schedule": {"rounds": 1}})
    run_setup = build_run_setup(recipe)
    server = Server(run_setup.context, run_setup.method(), first_weights(recipe, run_setup.config))
    effects = [effect for name in run_setup.context.members for effect in server.handle(ClientJoined(name))]
    assert sum(isinstance(effect, Send) for effect in effects) == 5

"""Whether a task fits is known before a run begins, that of its last round too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cos2p.errors import BudgetError
from cos2p.memory.planning import advice, check_last_fit
from cos2p.memory.ways import needed_bytes
from cos2p.methods import build_method
from cos2p.methods.base import Call, Method, trained_instead
from cos2p.training.settings import MemoryOptimizations, TrainingSettings
from tests.methods.budgets import with_memory as with_bytes
from tests.methods.fleet import digits_house
from tests.tiny import VIT, context

FINISH = {"name": "cos2p", "exits": {"finish": "discriminant"}}


def with_memory(memory: int | None = None) -> tuple[Method, Call]:
    """The method on devices of so many bytes, and the first call of one of them."""
    house = digits_house(updates=9)
    if memory is not None:
        changed = {"memory": memory}
        members = {n: replace(m, device=m.device.model_copy(update=changed)) for n, m in house.members.items()}
        house = replace(house, members=members)
    method = build_method(FINISH, house)
    return method, Call(next(iter(house.members.values())), 0, 0, 0, {})


def test_a_device_that_could_not_tell_at_the_end_is_refused_at_the_beginning() -> None:
    method, call = with_memory(1)  # so that it would pass one sample at a time
    least = needed_bytes(method, call.member, method.assign(replace(call, final=True)))
    check_last_fit(*with_memory(least), "")
    method, call = with_memory(least - 1)
    with pytest.raises(BudgetError, match=r'statistics of its features at the end need .* has .*finish = "trained"'):
        check_last_fit(method, call, trained_instead(method.settings))
    check_last_fit(method, replace(call, attempt=1), "")  # said once is enough
    check_last_fit(build_method({"name": "cos2p"}, method.context), call, "")
    method.context = replace(method.context, enforce_memory=False)
    check_last_fit(method, call, "")


def test_advice_names_what_fits_or_the_saving_that_was_ruled_out() -> None:
    house = with_bytes(context(VIT.with_(dim=64, mlp=256, heads=4, depth=6), (0.9,)), 6_000_000)
    (member,) = house.members.values()
    assert advice(build_method({"name": "fedrolex"}, house), member).endswith("leave its rate out (now 0.9)")
    memory_optimizations = TrainingSettings(memory_optimizations=MemoryOptimizations(recompute="no", micro_batch=0))
    shut = replace(with_bytes(house, 1000), training=memory_optimizations)
    said = advice(build_method({"name": "fedrolex"}, shut), next(iter(shut.members.values())))
    assert 'leave training.memory_optimizations.recompute, training.memory_optimizations.micro_batch "auto"' in said

"""Whether a task fits is known before a run begins, that of its last round too."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cos2p.errors import BudgetError
from cos2p.memory.check import advice, check_last_fit
from cos2p.memory.ways import needed_bytes
from cos2p.methods import build_method
from cos2p.methods.base import Call, Method
from cos2p.methods.head_settings import trained_instead
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
    with pytest.raises(BudgetError, match=r'sums of its features at the end needs .* has .*finish = "trained"'):
        check_last_fit(method, call, trained_instead(method.settings))
    check_last_fit(method, replace(call, attempt=1), "")  # said once is enough
    check_last_fit(build_method({"name": "cos2p"}, method.context), call, "")
    method.context = replace(method.context, enforce_memory=False)
    check_last_fit(method, call, "")


@pytest.mark.parametrize("memory", [3_000_000, 6_000_000, 9_000_000])
def test_advice_names_a_rate_whose_tasks_do_fit_or_says_that_none_does(memory: int) -> None:
    """Of a form in which blocks stay around the window, so that a rate alone does not say what a task takes."""
    kept = {
        "name": "cos2p",
        "window": {"rest": "kept"},
        "masks": {"heads": "random", "units": "random"},
        "exits": {"kind": "none"},
    }
    house = context(VIT.with_(dim=64, mlp=256, heads=4, depth=6), (0.9,))
    name, member = next(iter(with_bytes(house, memory).members.items()))
    tight = replace(house, members={name: member})
    said = advice(build_method(kept, tight), member)
    found = re.match(r"a rate of ([\d.]+) fits in any case \(now 0\.9\)", said)
    if found is None:
        assert said.startswith("no submodel of this model fits it: give it a smaller batch")
        assert largest_fitting(build_method(kept, tight), member) is None
        return
    lower = replace(member, rate=float(found[1]))
    assert lower.rate < member.rate
    method = build_method(kept, replace(tight, members={name: lower}))
    for turn in range(6):
        assert needed_bytes(method, lower, method.assign(Call(lower, turn, turn, turn, {}))) <= memory


def test_advice_names_no_rate_that_is_not_lower() -> None:
    house = context(VIT, (0.5,))
    (member,) = house.members.values()
    said = advice(build_method({"name": "fedrolex"}, house), member)  # it has plenty: something else takes the bytes
    assert said.startswith("give it a lower rate (now 0.5), or give it a smaller batch")

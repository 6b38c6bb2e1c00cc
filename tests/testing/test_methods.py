"""Every method, with its defaults and in other forms, keeps the contract of `cos2p.testing`."""

from __future__ import annotations

from typing import Any

import pytest

from cos2p.methods import methods
from cos2p.testing import CHECKS, check_method

FORMS: dict[str, dict[str, Any]] = {
    "fedavg in closed form": {"name": "fedavg", "start": "discriminant"},
    "ramfed in closed form": {"name": "ramfed", "start": "discriminant"},
    "fedavg-platon in closed form": {"name": "fedavg-platon", "start": "discriminant"},
    "fedepth": {"name": "fedepth", "blocks": 1, "start": "means"},
    "fedra": {"name": "fedra", "start": "means"},
    "chain": {"name": "chain", "start": "means"},
    "cos2p": {"name": "cos2p", "exits": {"start": "discriminant"}},
    "fedncm": {"name": "fedncm", "start": "discriminant"},
    "ffa": {"name": "fedlora", "form": "ffa"},
    "semi-asynchronous": {"name": "fedlora", "aggregation": "semi-asynchronous"},
    "masks of segments": {"name": "fedpm", "variant": "segments"},
    "seeds": {"name": "fedmezo", "wire": "seeds"},
    "codes as numbers": {"name": "fedavg-qvit", "wire": "float32"},
}
QUICK = ("names", "restart", "promised", "hostile", "budget")
LONGER = (
    "memory",
    "declarations",
)  # where tensors are placed `tests/training/test_placement.py` checks for all trainers
CASES = {name: {"name": name} for name in methods()} | {
    f"{name} ({form['name']})": form for name, form in FORMS.items()
}


@pytest.mark.parametrize("case", CASES)
def test_a_method_keeps_the_contract(case: str) -> None:
    settings = dict(CASES[case])
    name = settings.pop("name")
    for check in QUICK:
        check_method(name, settings, only=check)


@pytest.mark.parametrize("check", LONGER)
@pytest.mark.parametrize(
    "case", [name if name in ("cos2p", "heterofl") else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_its_trainers_take_what_they_say_and_support_what_they_declare(case: str, check: str) -> None:
    settings = dict(CASES[case])
    check_method(settings.pop("name"), settings, only=check)


def test_the_checks_have_names() -> None:
    assert {*QUICK, *LONGER, "placement"} == set(CHECKS)

"""Adan against sail-sg/Adan: parameters after every step, with and without decay, and across a restart.

Left out of ours: clipping by the global norm and decay before the step (both off by default there), the fused kernel.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cos2p.numerics.adan import Adan
from tests.official.case import agree, fixture, wave

OFFICIAL = fixture("adan")
CASES = [case for case in OFFICIAL["cases"] if "no_prox" not in case["settings"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["settings"]))
def test_every_step_is_the_official_one(case: dict[str, Any]) -> None:
    fed = OFFICIAL["fed"]
    parameters = [torch.nn.Parameter(wave(shape, 1.0 + i)) for i, shape in enumerate(fed["shapes"])]
    optimizer = Adan(parameters, **case["settings"])
    for step, expected in enumerate(case["parameters"]):
        if step == fed["restart_before_step"]:
            optimizer.state.clear()
        for i, parameter in enumerate(parameters):
            parameter.grad = wave(fed["shapes"][i], 10.0 + 3 * step + i)
        optimizer.step()
        for i, parameter in enumerate(parameters):
            agree(f"Adan, step {step + 1}, parameter {i}", parameter, expected[i])

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cos2p.numerics.eight_bit import BLOCK, blocks_of, code_bytes, dequantize, quantize_, turns
from cos2p.seeding import torch_rng


def there_and_back(values: Tensor, dtype: torch.dtype, step: int = 1) -> Tensor:
    count, whole = values.numel(), blocks_of(values.numel()) * BLOCK
    padded, scratch = torch.zeros(whole), torch.empty(whole)
    padded[:count] = values
    codes, scales = torch.empty(count, dtype=dtype), torch.empty(blocks_of(count))
    quantize_(padded, scratch, turns(step, whole), codes, scales)
    dequantize(codes, scales, padded, scratch)
    return padded[:count].clone()


def test_whole_codes_come_back_exactly() -> None:
    signed = torch.tensor([127.0**2, -(100.0**2), 9.0, -1.0, 0.0]) / 127**2
    torch.testing.assert_close(there_and_back(signed, torch.int8), signed, rtol=1e-6, atol=0)
    unsigned = torch.tensor([255.0**4, 200.0**4, 81.0, 1.0]) / 255**4
    torch.testing.assert_close(there_and_back(unsigned, torch.uint8), unsigned, rtol=1e-5, atol=0)


@given(st.integers(1, 700), st.floats(-30, 15), st.integers(1, 10**7))
def test_the_error_is_at_most_one_code(count: int, exponent: float, step: int) -> None:
    values = torch.randn(count, generator=torch_rng(0, "blockwise", count)) * 10**exponent
    most = torch.cat([block.abs().max().expand(len(block)) for block in values.split(BLOCK)])
    shares = (values.abs() / most).double()
    # d(c²) = 2c + 1 codes at most between a code and the next, of 127²; for c⁴ one code is (1 + 1/c)⁴ − 1 of a value
    error = (there_and_back(values, torch.int8, step) - values).abs().double()
    assert (error <= most * (2 * 127 * shares.sqrt() + 1.1) / 127**2 * 1.001).all()
    back = there_and_back(values.abs(), torch.uint8, step).double() / most
    codes = (255 * shares.sqrt().sqrt()).clamp(min=1.0)
    assert ((back.sqrt().sqrt() * 255 - codes).abs() <= 1.01 + 0.375 / codes).all()


def test_no_second_moment_beside_others_becomes_zero() -> None:
    """It is divided by: what was small must not look like what never was."""
    assert (there_and_back(torch.tensor([1.0, 1e-30, 0.0]), torch.uint8) > 0).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_zeros_stay_zeros_and_do_not_touch_other_blocks(dtype: torch.dtype) -> None:
    values = torch.cat((torch.zeros(BLOCK), torch.full((10,), 1e-20)))
    back = there_and_back(values, dtype)
    assert torch.count_nonzero(back[:BLOCK]) == 0
    torch.testing.assert_close(back[BLOCK:], values[BLOCK:], rtol=1e-5, atol=0)


@pytest.mark.parametrize(("dtype", "within"), [(torch.int8, 2e-4), (torch.uint8, 2e-4)])
def test_over_the_steps_the_mean_is_right(dtype: torch.dtype, within: float) -> None:
    values = torch.linspace(0.01, 1.0, 200)
    mean = torch.stack([there_and_back(values, dtype, step) for step in range(1, 401)]).double().mean(0)
    assert (mean / values - 1).abs().max() < 20 * within
    assert (mean / values - 1).mean().abs() < within


@pytest.mark.parametrize(("beta", "spread"), [(0.99, 0.1), (0.999, 0.1), (0.99, 0.01)])
def test_a_running_average_of_squares_neither_stands_still_nor_drifts(beta: float, spread: float) -> None:
    """Second moments of gradients whose sizes differ by `spread` inside a block, against the average in floats."""
    rng, deviations = torch_rng(1, "running average"), torch.logspace(torch.tensor(spread).log10().item(), 0, BLOCK)
    exact, coded = torch.zeros(BLOCK), torch.zeros(BLOCK)
    for step in range(1, 1501):
        square = (torch.randn(BLOCK, generator=rng) * deviations) ** 2
        exact = beta * exact + (1 - beta) * square
        coded = there_and_back(beta * coded + (1 - beta) * square, torch.uint8, step)
    ratio = coded / exact
    assert ratio.mean().item() == pytest.approx(1.0, abs=0.02)
    assert ratio.std().item() < 0.15


def test_bytes_are_those_of_codes_and_scales() -> None:
    assert code_bytes(4096) == 4096 + 16 * 4
    assert code_bytes(4097) == 4097 + 17 * 4

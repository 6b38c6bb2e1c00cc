from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p_rivals.qvit.quantizers import (
    UNSET,
    ActStep,
    WeightStep,
    from_codes,
    levels,
    pack_codes,
    packed_bytes,
    quantized,
    unpack_codes,
    weight_codes,
)


def weight_step(*values: float) -> WeightStep:
    module = WeightStep(len(values))
    module.load_state_dict({"step": torch.tensor(values)}, assign=True)
    return module


def act_step(step: list[float], zero: list[float]) -> ActStep:
    module = ActStep(len(step))
    module.load_state_dict({"step": torch.tensor(step), "zero": torch.tensor(zero)}, assign=True)
    return module


@given(st.integers(2, 8), st.integers(0, 1000))
def test_a_row_has_at_most_two_to_the_bits_values(bits: int, seed: int) -> None:
    weight = torch.randn(3, 600, generator=torch.Generator().manual_seed(seed))
    module = weight_step(UNSET, UNSET, UNSET)
    module.see(weight, bits)
    for row in module(weight, bits).detach():
        assert len(row.unique()) <= 2**bits


@given(st.integers(2, 8), st.floats(0.01, 2.0), st.integers(0, 1000))
def test_inside_the_range_the_error_is_at_most_half_a_step(bits: int, step: float, seed: int) -> None:
    low, high = levels(bits, True)
    x = torch.rand(500, generator=torch.Generator().manual_seed(seed)) * (high - low) * step + low * step
    error = (quantized(x, torch.tensor(step), None, bits, signed=True) - x).abs().max()
    assert error <= step / 2 + 1e-5


def test_hand_computed_values_and_gradients() -> None:
    """Two bits, step ½: codes −2 … 1, so values −1 … ½."""
    x = torch.tensor([-3.0, -0.6, 0.1, 0.3, 2.0], requires_grad=True)
    step = torch.tensor(0.5, requires_grad=True)
    y = quantized(x, step, None, 2, signed=True)
    assert y.tolist() == [-1.0, -0.5, 0.0, 0.5, 0.5]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]  # none outside the clamp
    # x/a is −6, −1.2, .2, .6, 4: outside the code itself, inside round(x/a) − x/a.
    slope = -2 + (-1 + 1.2) + (0 - 0.2) + (1 - 0.6) + 1
    assert step.grad is not None
    assert float(step.grad) == pytest.approx(slope / math.sqrt(5 * 1))


def test_a_zero_point_moves_the_range() -> None:
    """Unsigned, two bits, step 1, zero-point 1: codes 0 … 3 stand for −1 … 2."""
    x = torch.tensor([-5.0, -0.8, 0.4, 1.7, 9.0])
    zero = torch.tensor(1.0, requires_grad=True)
    y = quantized(x, torch.tensor(1.0), zero, 2, signed=False)
    assert y.tolist() == [-1.0, -1.0, 0.0, 2.0, 2.0]
    y.sum().backward()
    assert zero.grad is not None
    assert float(zero.grad) == pytest.approx(-2 / math.sqrt(5 * 3))  # from the two outside


def test_gradients_agree_with_the_straight_through_formula() -> None:
    """The same as autograd gives for the formula with rounding taken as the identity."""
    rng = torch.Generator().manual_seed(3)
    x, zero = torch.randn(4, 6, generator=rng), torch.tensor([[0.0], [1.0], [-1.0], [0.0]])
    step = torch.tensor([[0.3], [0.5], [0.7], [1.1]])
    upstream = torch.randn(4, 6, generator=rng)
    grads = []
    for own in (True, False):
        a, b, z = (t.clone().requires_grad_() for t in (x, step, zero))
        if own:
            y = quantized(a, b, z, 3, signed=True)
        else:
            clamped = (a / b + z).clamp(-4, 3)
            y = (clamped + (clamped.round() - clamped).detach() - z) * b
        (y * upstream).sum().backward()
        scale = 1.0 if own else 1 / math.sqrt(24 * 3)
        assert a.grad is not None
        assert b.grad is not None
        assert z.grad is not None
        grads.append((a.grad, b.grad * scale, z.grad * scale))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_the_first_batch_sets_what_is_unset_and_nothing_else() -> None:
    act = act_step([UNSET, 0.5], [0.0, 0.0]).train()
    x = torch.full((2, 3, 2), 4.0)
    act(x, 8, axis=2)
    assert float(act.step.detach()[0]) == pytest.approx(math.log(2 * 4 / math.sqrt(127)))
    assert float(act.step.detach()[1]) == 0.5
    act(x * 100, 8, axis=2)
    assert float(act.step.detach()[0]) == pytest.approx(math.log(2 * 4 / math.sqrt(127)))


def test_a_batch_of_zeros_and_inference_set_nothing() -> None:
    act = act_step([UNSET], [0.0]).train()
    act(torch.zeros(2, 1), 4, axis=1)
    assert float(act.step.detach()[0]) == UNSET
    act.eval()
    act(torch.ones(2, 1), 4, axis=1)
    assert float(act.step.detach()[0]) == UNSET


def test_steps_of_weights_are_set_row_by_row_and_a_row_of_zeros_stays_unset() -> None:
    module = weight_step(UNSET, UNSET, 0.3)
    module.see(torch.tensor([[1.0, -3.0], [0.0, 0.0], [9.0, 9.0]]), 2)
    assert module.step.tolist() == pytest.approx([math.log(4.0), UNSET, 0.3])


@given(
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(0, 5), st.integers(2, 8)), max_size=4),
    st.integers(0, 99),
)
def test_codes_come_back_as_they_went(tensors: dict[str, tuple[int, int]], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    bits = {name: width for name, (_, width) in tensors.items()}
    codes = {n: torch.randint(0, 2**w, (rows, 3), generator=rng).to(torch.uint8) for n, (rows, w) in tensors.items()}
    shapes = {name: (rows, 3) for name, (rows, _) in tensors.items()}
    packed = pack_codes(codes, bits)
    assert packed.nbytes == packed_bytes(shapes, bits)
    back = unpack_codes(packed, shapes, bits)
    assert all(torch.equal(back[name], codes[name]) for name in codes)


@given(st.integers(2, 8), st.integers(0, 99))
def test_decoded_codes_are_the_quantised_weight(bits: int, seed: int) -> None:
    weight = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed))
    module = weight_step(*[UNSET] * 4)
    module.see(weight, bits)
    codes = weight_codes(weight, module.step.detach(), bits)
    assert int(codes.max()) < 2**bits
    torch.testing.assert_close(from_codes(codes, module.step.detach(), bits), module(weight, bits).detach())

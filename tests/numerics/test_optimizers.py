from __future__ import annotations

import io
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cos2p.errors import ConfigError
from cos2p.numerics import adan
from cos2p.numerics.adan import TEMPORARY_BYTES, Adan
from cos2p.numerics.optimizers import STATE_BYTES, learning_rate, make_optimizer
from cos2p.seeding import torch_rng
from tests.numerics.temporaries import TemporaryBytes


def parameter(values: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.as_tensor(values, dtype=dtype).clone().requires_grad_()


def step(optimizer: torch.optim.Optimizer, theta: Tensor, gradient: Any) -> None:
    theta.grad = torch.as_tensor(gradient, dtype=theta.dtype).reshape(theta.shape)
    optimizer.step()


class ScalarAdan:
    """The update of one number, written line by line from the paper's equations."""

    def __init__(self, theta: float, lr: float, betas: tuple[float, float, float], eps: float, decay: float) -> None:
        self.theta, self.lr, self.betas, self.eps, self.decay = theta, lr, betas, eps, decay
        self.m = self.u = self.n = 0.0
        self.previous: float | None = None
        self.k = 0

    def step(self, g: float) -> float:
        b1, b2, b3 = self.betas
        self.k += 1
        delta = 0.0 if self.previous is None else g - self.previous
        self.m = b1 * self.m + (1 - b1) * g
        self.u = b2 * self.u + (1 - b2) * delta
        self.n = b3 * self.n + (1 - b3) * (g + b2 * delta) ** 2
        m_hat = self.m / (1 - b1**self.k)
        u_hat = self.u / (1 - b2**self.k)
        n_hat = self.n / (1 - b3**self.k)
        change = self.lr * (m_hat + b2 * u_hat) / (math.sqrt(n_hat) + self.eps)
        self.theta = (self.theta - change) / (1 + self.lr * self.decay)
        self.previous = g
        return self.theta


class TestAdan:
    def test_first_step_is_the_rate_along_the_sign(self) -> None:
        theta = parameter([1.0, 1.0, 1.0])
        step(Adan([theta], lr=0.1, eps=0.5), theta, [2.0, -0.5, 0.0])
        # -η·g/(|g|+ε): -0.1·2/2.5 = -0.08, +0.1·0.5/1 = 0.05, 0
        assert theta.tolist() == pytest.approx([0.92, 1.05, 1.0])

    def test_a_constant_gradient_leaves_the_difference_at_zero(self) -> None:
        theta = parameter([1.0, 2.0])
        optimizer = Adan([theta], lr=0.1)
        for _ in range(5):
            step(optimizer, theta, [3.0, -4.0])
        assert torch.count_nonzero(optimizer.state[theta]["u"]) == 0
        # m̂ = g and √n̂ = |g|, so every step is one η.
        assert theta.tolist() == pytest.approx([0.5, 2.5], abs=1e-7)

    def test_decay_without_gradient_divides(self) -> None:
        theta = parameter([8.0])
        optimizer = Adan([theta], lr=0.5, weight_decay=2.0)
        for _ in range(3):
            step(optimizer, theta, [0.0])
        assert theta.item() == pytest.approx(1.0)  # 8 / (1 + 0.5·2)³

    @pytest.mark.parametrize("betas", [(0.98, 0.92, 0.99), (0.5, 0.0, 0.9), (0.0, 0.7, 0.0)])
    def test_follows_the_scalar_reference(self, betas: tuple[float, float, float]) -> None:
        rng = torch_rng(0, "adan reference")
        start = torch.randn(7, generator=rng, dtype=torch.float64)
        theta = parameter(start)
        optimizer = Adan([theta], lr=0.03, betas=betas, eps=1e-3, weight_decay=0.1)
        references = [ScalarAdan(x, 0.03, betas, 1e-3, 0.1) for x in start.tolist()]
        for _ in range(20):
            gradient = torch.randn(7, generator=rng, dtype=torch.float64)
            step(optimizer, theta, gradient)
            expected = [r.step(g) for r, g in zip(references, gradient.tolist(), strict=True)]
            assert theta.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-14)

    @settings(max_examples=40, deadline=None)
    @given(
        shapes=st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=1, max_size=6),
        chunk=st.integers(1, 40),
        strided=st.booleans(),
    )
    def test_chunks_do_not_change_the_result(self, shapes: list[list[int]], chunk: int, strided: bool) -> None:
        def run() -> list[Tensor]:
            rng = torch_rng(1, "adan chunks")
            thetas = [parameter(torch.randn(shape, generator=rng)) for shape in shapes]
            if strided:
                thetas = [t.detach().permute(tuple(reversed(range(t.dim())))).requires_grad_() for t in thetas]
            optimizer = Adan(thetas, lr=0.1, weight_decay=0.1)
            for _ in range(2):
                for theta in thetas:
                    theta.grad = torch.randn(theta.shape, generator=rng, dtype=theta.dtype)
                optimizer.step()
            return [theta.detach() for theta in thetas]

        whole = run()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(adan, "TEMPORARY_BYTES", chunk * 8)
            cut = run()
        for expected, got in zip(whole, cut, strict=True):
            assert torch.equal(got, expected)

    @pytest.mark.parametrize("strided", [False, True])
    def test_temporaries_stay_below_the_bound(self, strided: bool) -> None:
        rows = TEMPORARY_BYTES // 4 // 128  # four parameters, each as large as the bound and more
        thetas = [torch.zeros(rows, 128 + i).requires_grad_() for i in range(4)]
        if strided:
            thetas = [theta.detach().T.requires_grad_() for theta in thetas]
        optimizer = Adan(thetas, lr=0.1)
        for theta in thetas:
            theta.grad = torch.ones(theta.shape)
        optimizer.step()  # makes the state
        with TemporaryBytes() as temporaries:
            optimizer.step()
        assert 0 < temporaries.peak <= TEMPORARY_BYTES
        assert temporaries.alive == 0

    def test_state_is_what_the_ledger_counts(self) -> None:
        theta = parameter(torch.ones(5, 4), torch.float32)
        optimizer = Adan([theta], lr=0.1)
        step(optimizer, theta, torch.ones(5, 4))
        tensors = [value for value in optimizer.state[theta].values() if isinstance(value, Tensor)]
        assert sum(t.numel() * t.element_size() for t in tensors) == STATE_BYTES["adan"] * theta.numel()

    def test_parameters_without_a_gradient_are_left_alone(self) -> None:
        idle, busy = parameter([1.0]), parameter([1.0])
        optimizer = Adan([idle, busy], lr=0.1, weight_decay=0.5)
        step(optimizer, busy, [1.0])
        assert idle.item() == 1.0
        assert idle not in optimizer.state
        # and its first gradient is a first step, however late: no leftover bias correction
        step(optimizer, idle, [7.0])
        assert idle.item() == pytest.approx((1.0 - 0.1) / 1.05)

    def test_empty_tensors_are_legal(self) -> None:
        empty, full = parameter(torch.zeros(0, 6)), parameter([1.0])
        optimizer = Adan([empty, full], lr=0.1)
        empty.grad = torch.zeros_like(empty)
        step(optimizer, full, [1.0])
        assert full.item() == pytest.approx(0.9)
        assert empty.shape == (0, 6)

    def test_only_empty_tensors_are_legal(self) -> None:
        empty = parameter(torch.zeros(0, 6))
        optimizer = Adan([empty], lr=0.1)
        step(optimizer, empty, torch.zeros(0, 6))
        assert optimizer.state[empty]["step"] == 1

    def test_state_dict_round_trip_continues_bit_for_bit(self) -> None:
        rng = torch_rng(2, "adan state")
        gradients = torch.randn(6, 3, generator=rng)
        theta = parameter([1.0, 2.0, 3.0], torch.float32)
        optimizer = Adan([theta], lr=0.1)
        for gradient in gradients[:3]:
            step(optimizer, theta, gradient)
        twin = parameter(theta.detach(), torch.float32)
        resumed = Adan([twin], lr=0.7)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        for gradient in gradients[3:]:
            step(optimizer, theta, gradient)
            step(resumed, twin, gradient)
        assert torch.equal(theta, twin)

    def test_restart_is_a_fresh_optimizer(self) -> None:
        theta, twin = parameter([1.0]), parameter([1.0])
        optimizer = Adan([theta], lr=0.1)
        step(optimizer, theta, [5.0])
        with torch.no_grad():
            theta.fill_(1.0)
        optimizer.state.clear()
        fresh = Adan([twin], lr=0.1)
        for gradient in ([-2.0], [3.0]):
            step(optimizer, theta, gradient)
            step(fresh, twin, gradient)
        assert torch.equal(theta, twin)

    def test_the_gradient_is_not_kept_by_reference(self) -> None:
        theta = parameter([1.0])
        optimizer = Adan([theta], lr=0.1)
        step(optimizer, theta, [5.0])
        optimizer.zero_grad(set_to_none=False)
        assert optimizer.state[theta]["previous"].item() == 5.0

    def test_groups_keep_their_own_values(self) -> None:
        decayed, plain = parameter([1.0]), parameter([1.0])
        optimizer = Adan([{"params": [decayed], "weight_decay": 1.0}, {"params": [plain]}], lr=1.0)
        decayed.grad, plain.grad = torch.zeros_like(decayed), torch.zeros_like(plain)
        optimizer.step()
        assert (decayed.item(), plain.item()) == (0.5, 1.0)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"lr": -0.1}, "lr=-0.1"),
            ({"lr": math.nan}, "lr=nan"),
            ({"weight_decay": -1.0}, "weight_decay=-1.0"),
            ({"betas": (0.9, 0.9)}, "three values"),
            ({"betas": (0.9, 1.0, 0.9)}, "three values"),
            ({"eps": 0.0}, "eps=0.0"),
        ],
    )
    def test_impossible_values(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Adan([parameter([1.0])], **options)


class TestMakeOptimizer:
    @pytest.mark.parametrize(("name", "kind"), [("adan", Adan), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
    def test_known_names(self, name: str, kind: type) -> None:
        theta = parameter([1.0, -1.0], torch.float32)
        optimizer = make_optimizer(name, [theta], lr=0.1, weight_decay=0.5)
        assert isinstance(optimizer, kind)
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert optimizer.param_groups[0]["weight_decay"] == 0.5
        step(optimizer, theta, [1.0, 1.0])
        assert (theta[0] < 1.0).item()

    @pytest.mark.parametrize(
        ("entry", "name", "options"),
        [
            ("adan", "adan", {}),
            ("adamw", "adamw", {}),
            ("sgd", "sgd", {}),
            ("sgd+momentum", "sgd", {"momentum": 0.9}),
        ],
    )
    def test_state_bytes_are_true(self, entry: str, name: str, options: dict[str, Any]) -> None:
        theta = parameter(torch.ones(10, 10), torch.float32)
        optimizer = make_optimizer(name, [theta], lr=0.1, **options)
        step(optimizer, theta, torch.ones(10, 10))
        per_parameter = [v for v in optimizer.state[theta].values() if isinstance(v, Tensor) and v.dim() > 0]
        assert sum(t.nbytes for t in per_parameter) == STATE_BYTES[entry] * 100

    @pytest.mark.parametrize("name", ["adan", "adamw", "sgd", "adan-8bit", "adamw-8bit"])
    def test_needs_few_temporaries(self, name: str) -> None:
        theta = parameter(torch.ones(TEMPORARY_BYTES // 2), torch.float32)  # twice the bound
        optimizer = make_optimizer(name, [theta], lr=0.1)
        step(optimizer, theta, torch.ones_like(theta))
        with TemporaryBytes() as temporaries:
            optimizer.step()
        assert temporaries.peak <= TEMPORARY_BYTES

    @pytest.mark.parametrize("name", ["adan", "adamw", "sgd", "adan-8bit", "adamw-8bit"])
    def test_groups_and_generators(self, name: str) -> None:
        first, second = parameter([1.0]), parameter([1.0])
        groups = [{"params": (t for t in [first]), "lr": 0.0}, {"params": [second]}]
        optimizer = make_optimizer(name, groups, lr=0.1)
        first.grad = second.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
        assert first.item() == 1.0
        assert second.item() == pytest.approx(0.9)

    @pytest.mark.parametrize("name", ["adan", "adamw", "sgd", "adan-8bit", "adamw-8bit"])
    def test_empty_tensors_are_legal(self, name: str) -> None:
        empty = parameter(torch.zeros(0, 6))
        step(make_optimizer(name, [empty], lr=0.1), empty, torch.zeros(0, 6))

    def test_unknown_name_lists_the_known(self) -> None:
        with pytest.raises(ConfigError, match="'adam' is unknown; known are adamw, adamw-8bit, adan, adan-8bit, sgd"):
            make_optimizer("adam", [parameter([1.0])], lr=0.1)

    def test_unknown_option_lists_the_known(self) -> None:
        with pytest.raises(ConfigError, match="'adan' has no option 'momentum'; it has betas, eps"):
            make_optimizer("adan", [parameter([1.0])], lr=0.1, momentum=0.9)

    def test_no_parameters(self) -> None:
        with pytest.raises(ConfigError, match="no parameters"):
            make_optimizer("sgd", [], lr=0.1)

    def test_impossible_rate(self) -> None:
        with pytest.raises(ConfigError, match="lr=inf"):
            make_optimizer("adamw", [parameter([1.0])], lr=math.inf)


class TestLearningRate:
    @pytest.mark.parametrize(("progress", "rate"), [(0.0, 1.0), (1 / 3, 0.75), (0.5, 0.5), (1.0, 0.0)])
    def test_cosine(self, progress: float, rate: float) -> None:
        assert learning_rate("cosine", 1.0, progress) == pytest.approx(rate)

    @pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
    def test_constant(self, progress: float) -> None:
        assert learning_rate("constant", 0.25, progress) == 0.25

    @given(st.floats(0, 1), st.floats(0, 1))
    def test_cosine_never_rises(self, a: float, b: float) -> None:
        early, late = sorted((a, b))
        assert learning_rate("cosine", 1.0, late) <= learning_rate("cosine", 1.0, early)


def test_no_step_imports_torchs_compiler() -> None:
    """40 MB that no ledger knows of, in the middle of a device's first task."""
    script = """
import sys, torch
from cos2p.numerics.optimizers import leave_compiler_out, make_optimizer
leave_compiler_out()
for name in ("adan", "adamw", "sgd", "adan-8bit", "adamw-8bit"):
    tensor = torch.ones(80, 80, requires_grad=True)
    stepper = make_optimizer(name, [tensor], lr=0.1)
    (tensor**2).sum().backward()
    stepper.step()
    stepper.zero_grad()
    assert tensor.requires_grad and float(tensor.detach().mean()) < 1, name
print("torch._dynamo" in sys.modules)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


@pytest.mark.parametrize(("name", "torchs"), [("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_steps_are_torchs_own(name: str, torchs: type[torch.optim.Optimizer]) -> None:
    ours, theirs = (torch.linspace(-1, 1, 50).requires_grad_() for _ in range(2))
    steppers = [make_optimizer(name, [ours], lr=0.1), torchs([theirs], lr=0.1, weight_decay=0.0)]  # type: ignore[call-arg]
    for _ in range(3):
        for tensor, stepper in zip((ours, theirs), steppers, strict=True):
            stepper.zero_grad()
            (tensor**4).sum().backward()
            stepper.step()
    torch.testing.assert_close(ours, theirs)


class TestSGD:
    @staticmethod
    def steps(optimizer: torch.optim.Optimizer, tensors: list[Tensor], *, without: int | None = None) -> list[Tensor]:
        for number in range(3):
            optimizer.zero_grad()
            for place, tensor in enumerate(tensors):
                rng = torch_rng(number, "gradient", place)
                tensor.grad = None if place == without else torch.randn(tensor.shape, generator=rng)
            optimizer.step()
        return [tensor.detach() for tensor in tensors]

    @staticmethod
    def tensors() -> list[Tensor]:
        return [torch.randn(size, generator=torch_rng(0, "start", size)).requires_grad_() for size in (1, 7, 64, 333)]

    @pytest.mark.parametrize("without", [None, 1])
    @pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"momentum": 0.9}, {"fused": False}])
    def test_it_ends_with_torchs_bits(self, options: dict[str, Any], without: int | None) -> None:
        ours, theirs = self.tensors(), self.tensors()
        found = self.steps(make_optimizer("sgd", ours, 0.3, **options), ours, without=without)
        plain = torch.optim.SGD(theirs, 0.3, **{"fused": True, **options})
        expected = self.steps(plain, theirs, without=without)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))

    @pytest.mark.parametrize("name", ["sgd", "adamw"])
    def test_hooks_are_called(self, name: str) -> None:
        tensors, called = self.tensors(), list[str]()
        optimizer = make_optimizer(name, tensors, 0.3)
        optimizer.register_step_pre_hook(lambda *_: called.append("before"))
        optimizer.register_step_post_hook(lambda *_: called.append("after"))
        self.steps(optimizer, tensors)
        assert called == ["before", "after"] * 3

    def test_gradients_are_dropped_or_zeroed(self) -> None:
        tensors = self.tensors()
        optimizer = make_optimizer("sgd", tensors, 0.3)
        self.steps(optimizer, tensors)
        optimizer.zero_grad(set_to_none=False)
        assert all(tensor.grad is not None and not tensor.grad.any() for tensor in tensors)
        optimizer.zero_grad()
        assert all(tensor.grad is None for tensor in tensors)

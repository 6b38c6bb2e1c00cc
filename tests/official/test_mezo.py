"""The step of FedMeZO against princeton-nlp/MeZO's trainer: both losses, projected gradient, weights, for three steps.

The noise comes from the same seeds; tensors are named so that our order (by name) is the official one (as registered).
Ours steps back and forward in one pass, the official code in two, so weights differ in their last bit. The projected
gradient is a difference of two nearly equal float32 losses over 2ε: a last bit of a loss, 1e-7, is 5e-5 of it at
ε = 1e-3. Hence the cases with ε = 1/4, where everything can be compared closely.

Different on purpose: we draw from a generator of our own, never the global one, and skip a batch without a finite loss.
Not compared: FedMeZO's server, which is plain averaging, and its personal learning rates.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cos2p_rivals.fedmezo.steps import replay, step
from tests.official.case import agree, fixture, wave

OFFICIAL = fixture("mezo")
SHAPES: dict[str, list[int]] = OFFICIAL["fed"]["shapes"]


class Toy(nn.Module):
    """The fixture's model, and its loss."""

    def __init__(self) -> None:
        super().__init__()
        for i, (name, shape) in enumerate(SHAPES.items()):
            module, parameter = name.split(".")
            if module not in self._modules:
                self.add_module(module, nn.Module())
            self.get_submodule(module).register_parameter(
                parameter, nn.Parameter(wave(shape, 1.0 + i), requires_grad=False)
            )

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        p = dict(self.named_parameters())
        hidden = F.linear(x, p["fc1.weight"], p["fc1.bias"])
        hidden = F.layer_norm(hidden, hidden.shape[-1:], p["layer_norm.weight"], p["layer_norm.bias"])
        return F.cross_entropy(F.linear(torch.tanh(hidden), p["fc2.weight"], p["fc2.bias"]), labels)


@pytest.mark.parametrize("case", OFFICIAL["cases"], ids=lambda c: f"ε {c['zo_eps']} λ {c['weight_decay']}")
def test_three_steps(case: dict[str, Any]) -> None:
    toy, epsilon, lr = Toy(), case["zo_eps"], case["lr"]
    inputs, labels = wave([5, 3], 50.0), torch.tensor(OFFICIAL["fed"]["labels"])
    weights = dict(toy.named_parameters())
    last_bit = 1.2e-7 / (2 * epsilon)  # of a loss of about 1, in the projected gradient
    for number, official in enumerate(case["steps"], start=1):
        taken, loss = step(weights, partial(toy, inputs, labels), official["seed"], epsilon, lr, case["weight_decay"])
        half = epsilon * taken / lr  # of the difference between the losses; `loss` is their mean
        losses = [official["loss_plus"], official["loss_plus"] - 2 * epsilon * official["projected_grad"]]
        where = f"MeZO ε {epsilon} λ {case['weight_decay']}, step {number}"
        agree(f"{where}, losses", torch.tensor([loss + half, loss - half], dtype=torch.float64), losses)
        gradient = torch.tensor(taken / lr, dtype=torch.float64)
        agree(f"{where}, projected gradient", gradient, [official["projected_grad"]], 20 * last_bit)
        for name, parameter in toy.named_parameters():
            agree(f"{where}, {name}", parameter, official["parameters"][name], max(1e-6, 4 * lr * last_bit))


def test_official_steps_played_back_from_seeds() -> None:
    """`wire = "seeds"`: from the official seeds and projected gradients the server gets the official weights."""
    case = OFFICIAL["cases"][0]
    start = {name: wave(shape, 1.0 + i) for i, (name, shape) in enumerate(SHAPES.items())}
    seeds = torch.tensor([s["seed"] for s in case["steps"]])
    scales = torch.tensor([case["lr"] * s["projected_grad"] for s in case["steps"]])
    shapes = {name: tuple(shape) for name, shape in SHAPES.items()}
    delta = replay(shapes, seeds, scales, decay=0.0, start={})
    for name, expected in case["steps"][-1]["parameters"].items():
        agree(f"MeZO replayed, {name}", start[name] - delta[name], expected)

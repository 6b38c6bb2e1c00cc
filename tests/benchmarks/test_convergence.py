"""The controlled problem is what it says, the merge in it is the project's, and the small form runs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.convergence.__main__ import Curve, at_the_minimum
from benchmarks.convergence.fits import interval, slope
from benchmarks.convergence.plot import Panel, figure
from benchmarks.convergence.problem import STEEPEST, Problem
from benchmarks.convergence.rounds import Setting, mean_squared_gradient

SMALL = Problem(clients=4, segments=3, scalars=2, seeds=3)


@pytest.mark.parametrize("coupling", [0.0, 1.5])
def test_the_known_gradient_is_that_of_the_value(coupling: float) -> None:
    problem = Problem(segments=3, scalars=2, seeds=4, coupling=coupling)
    weights = problem.first().double().requires_grad_()
    problem.value(weights).sum().backward()
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad, problem.gradient((weights - problem.minimiser()).detach()))


def test_the_minimum_is_zero_and_the_steepest_slope_is_known() -> None:
    assert SMALL.value(SMALL.minimiser()).abs().max() == 0
    line = torch.linspace(-4, 4, 80_001).view(1, -1, 1)  # one scalar a segment, many segments, no coupling
    assert SMALL.gradient(line).abs().max().item() == pytest.approx(STEEPEST, abs=1e-6)


def test_clients_differ_but_not_on_average() -> None:
    offsets = Problem(skew=0.5).offsets()
    assert offsets.mean(0).abs().max() < 1e-6
    assert offsets.square().mean().sqrt().item() == pytest.approx(0.5)


@pytest.mark.parametrize("rule", ["paper", "uniform"])
def test_without_noise_everybody_does_the_same_gradient_descent(rule: str) -> None:
    """Any weights that sum to 1 give plain gradient descent, whoever holds what."""
    problem = Problem(clients=4, segments=3, scalars=2, seeds=3, noise=0.0)
    weights, expected = problem.first(), torch.zeros(3)
    for _ in range(5):
        gradient = problem.gradient(weights - problem.minimiser())
        expected += gradient.square().sum((-1, -2)) / 5
        weights = weights - 0.1 * gradient
    found = mean_squared_gradient(problem, Setting(5, steps=1, holders=2, rate=0.1, rule=rule))  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected)


def test_a_delay_makes_every_step_late() -> None:
    """With τ = 2 the first three steps all use the first gradient."""
    problem = Problem(clients=1, segments=1, scalars=1, seeds=1, noise=0.0)
    first = problem.first()
    gradient = problem.gradient(first - problem.minimiser())
    seen = [problem.gradient(first - k * 0.1 * gradient - problem.minimiser()).square().sum() for k in range(4)]
    found = mean_squared_gradient(problem, Setting(4, steps=1, holders=1, delay=2, rate=0.1))
    torch.testing.assert_close(found[0], sum(seen) / torch.tensor(4.0))


def test_slopes_are_found_for_each_seed() -> None:
    ys = [torch.tensor([3.0, 5.0]) * x**-0.5 for x in (1.0, 2.0, 4.0)]
    found = slope((1.0, 2.0, 4.0), ys)
    assert found.mean == pytest.approx(-0.5)
    assert found.half == pytest.approx(0.0, abs=1e-6)
    assert interval([1.0, 3.0]).half == pytest.approx(12.7062, rel=1e-4)  # t of one degree of freedom, times 1


def test_more_rounds_more_holders_and_more_steps_help() -> None:
    problem = Problem(seeds=8)
    base = mean_squared_gradient(problem, Setting(rounds=64)).mean()
    for better in (Setting(rounds=192), Setting(rounds=64, holders=8), Setting(rounds=64, steps=8)):
        assert mean_squared_gradient(problem, better).mean() < 0.9 * base


def test_the_printed_bound_fails_where_its_noise_term_is_missing() -> None:
    printed, measured = at_the_minimum(seeds=20, rounds=2000, rate=0.001)
    assert measured.mean - measured.half > 1.5 * printed


def test_the_figure_is_drawn() -> None:
    curve = Curve("Q", "rounds", (1, 2), (torch.ones(2), torch.ones(2) / 2))
    drawn = figure([Panel("against Q", curve.places(), {"γ": curve.means()}, -0.5)], "what there is to be seen")
    root = ElementTree.fromstring(drawn)
    assert root.attrib["role"] == "img"
    assert drawn.count("<circle") == 2
    assert drawn.count("polyline") == 2


def test_the_recorded_figure_is_well_formed() -> None:
    path = Path(__file__).parents[2] / "docs" / "results" / "convergence.svg"
    assert ElementTree.fromstring(path.read_text(encoding="utf-8")).attrib["aria-label"]

"""The mean squared gradient norm against Q, E, N* and τ, next to the paper's O(1/√(N*EQ)).

    python -m benchmarks.convergence [--seeds 24] [--small] [--figure docs/results/convergence.svg]

A controlled problem with known gradient (`problem`), the project's own merge (`rounds`). Slopes are exponents p of
y ∝ xᵖ, fitted for each seed in log-log; ± is the 95 % interval over seeds. At most three minutes; `--small`: seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.convergence.fits import Interval, interval, slope
from benchmarks.convergence.plot import Panel, figure
from benchmarks.convergence.problem import Problem
from benchmarks.convergence.rounds import Setting, mean_squared_gradient
from cos2p.aggregation.weights import Rule

RULES: tuple[Rule, ...] = ("paper", "uniform")
NAMES = {"paper": "the paper's γ", "uniform": "uniform weights"}


@dataclass(frozen=True)
class Curve:
    """Mean squared gradients along one field of the setting, every other one as it is."""

    title: str
    field: str
    xs: tuple[int, ...]
    values: tuple[Tensor, ...]
    """For each x one number per seed."""

    def slope(self) -> Interval:
        """Against 1 + τ for delays, which may be 0."""
        return slope(self.places(), self.values)

    def places(self) -> list[float]:
        return [1.0 + x if self.field == "delay" else float(x) for x in self.xs]

    def means(self) -> list[float]:
        return [float(value.mean()) for value in self.values]


def sweep(problem: Problem, base: Setting, field: str, xs: Sequence[int], title: str) -> Curve:
    values = tuple(mean_squared_gradient(problem, replace(base, **{field: x})) for x in xs)
    return Curve(title, field, tuple(xs), values)


def show(curve: Curve, expected: str) -> None:
    cells = "  ".join(f"{x}: {mean:.3g}" for x, mean in zip(curve.xs, curve.means(), strict=True))
    print(f"  {curve.title:<46}{curve.slope()!s:>17}   {expected:<7} {cells}", flush=True)


def rates(problem: Problem, base: Setting, doublings: int) -> list[Panel]:
    """Does it fall as 1/√(N*EQ) with the corollary's step size? Prints, and returns what is to be drawn."""
    powers = [2**power for power in range(doublings)]
    axes = {
        "rounds": ("Q", [128 * power for power in powers], "-0.5"),
        "steps": ("E", powers[:4], "-0.5"),
        "holders": ("N*", [n for n in powers if n <= problem.clients], "-0.5"),
        "delay": ("1 + τ", [0, *powers[:4]], "≥ 0"),
    }
    panels = []
    for field, (symbol, xs, expected) in axes.items():
        curves = [sweep(problem, replace(base, rule=rule), field, xs, f"{symbol}, {NAMES[rule]}") for rule in RULES]
        for curve in curves:
            show(curve, expected)
        drawn = {f"{NAMES[c_rule]}: {c.slope()}": c.means() for c_rule, c in zip(RULES, curves, strict=True)}
        panels.append(Panel(f"against {symbol}", curves[0].places(), drawn, None if field == "delay" else -0.5))
    return panels


def loose_ends(problem: Problem, base: Setting, rounds: Sequence[int]) -> None:
    """Where the proof assumes what the algorithm does not do."""
    skewed = replace(problem, skew=0.5)
    for rule in RULES:
        show(sweep(skewed, replace(base, rule=rule), "rounds", rounds, f"Q, unequal clients, {NAMES[rule]}"), "-0.5")
    coupled = replace(problem, coupling=1.0)
    for cut, seen in ((False, "see"), (True, "lack")):
        title = f"Q, coupled segments, clients {seen} the others"
        show(sweep(coupled, replace(base, rule="uniform", cut=cut), "rounds", rounds, title), "-0.5")


def at_the_minimum(seeds: int, rounds: int, rate: float) -> tuple[float, Interval]:
    """(printed bound, measured) for one client with one segment that starts at the minimum: F(w₁) = 0."""
    alone = Problem(clients=1, segments=1, scalars=1, noise=1.0, start=0.0, seeds=seeds)
    setting = Setting(rounds, steps=1, holders=1, rate=rate)
    measured = interval(mean_squared_gradient(alone, setting).tolist())
    return alone.bound(rate, rounds, 1, 1, 0), measured


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--small", action="store_true", help="short curves, for a look in seconds")
    parser.add_argument("--figure", type=Path, help="write the curves here, as SVG")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    started = time.monotonic()
    problem, base = Problem(seeds=options.seeds), Setting(rounds=128 if options.small else 512)
    doublings = 2 if options.small else 5
    print(f"{problem}\n{base}\nslopes of 1/Q Σ‖∇F‖² (the corollary's next to them), then its mean at each point")
    panels = rates(problem, base, doublings)
    print("where the proof is loose")
    loose_ends(problem, base, [128 * 4**power for power in range(2 if options.small else 3)])
    for rate, rounds in ((0.004, 1000), (0.002, 2000), (0.001, 4000))[: 1 if options.small else 3]:
        printed, measured = at_the_minimum(options.seeds, rounds, rate)
        print(
            f"  one client, started at the minimum, η = {rate:g}, Q = {rounds}: measured {measured.mean:.2e} ± "
            f"{measured.half:.0e}, printed bound {printed:.2e}: {measured.mean / printed:.2f}×"
        )
    if options.figure:
        label = "Mean squared gradient against Q, E, N* and 1 + τ; dashed: the slope of one over the square root"
        options.figure.write_text(figure(panels, label), encoding="utf-8")
    print(f"{time.monotonic() - started:.0f} s, {time.process_time():.0f} s of processor time")


if __name__ == "__main__":
    main()

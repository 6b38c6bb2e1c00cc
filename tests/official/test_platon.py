"""PLATON against QingruZhang/PLATON's Pruner: averages, scores, schedule, choice, and a weight's sensitivity.

Different on purpose: a head or a unit is scored as one, by the mean over its weights; `correct_bias` is on by default
(off here, as in the official code). The official code notices the end of a window at the first step of the next one,
ours at its last step, so its averages are read one step later. It also keeps the weight that lies exactly on the
threshold, one more than the share allows; ours never exceeds a budget.
"""

from __future__ import annotations

import pytest
import torch

from cos2p.methods import width_spec
from cos2p.training.masks import Remembered
from cos2p.training.settings import LocalSettings
from cos2p_rivals.platon.device import PlatonTask, Sensitivity, sensitivity
from cos2p_rivals.platon.method import remaining_share
from cos2p_rivals.segments import best_first
from tests.official.block import VIT, by_segment, give_gradients, model
from tests.official.case import agree, fixture, wave

OFFICIAL = fixture("platon")


def test_averages_and_score_at_every_border() -> None:
    """Twelve official weights stand for twelve units; each step's |w·g| goes in as a unit's sensitivity."""
    averages = OFFICIAL["averages"]
    config = VIT.with_(mlp=12)
    task = PlatonTask(
        local=LocalSettings(),
        beta1=averages["beta1"],
        beta2=averages["beta2"],
        window=averages["window"],
        correct_bias=False,
    )
    memory: Remembered = {}
    observer = Sensitivity(config, width_spec([[0, 1]], [range(12)]), task, memory)
    weights = wave([12], 0.5)
    for number, border in enumerate(averages["borders"]):
        for step in range(number * task.window, (number + 1) * task.window):
            observer.see({"units.0": (weights * wave([12], 20.0 + step)).abs()})
        agree(f"PLATON Ī, border {number + 1}", memory["platon.mean.units.0"], border["mean"])
        agree(f"PLATON Ū, border {number + 1}", memory["platon.spread.units.0"], border["spread"])
        score = torch.tensor(border["mean"]) * torch.tensor(border["spread"])
        agree(f"PLATON S, border {number + 1}", observer.scores()["units.0"], score)


@pytest.mark.parametrize("case", OFFICIAL["masks"]["cases"], ids=lambda case: f"share {case['share']}")
def test_the_best_scores_are_kept(case: dict[str, object]) -> None:
    border = OFFICIAL["averages"]["borders"][-1]
    scores = torch.tensor(border["mean"]) * torch.tensor(border["spread"])
    kept, share = case["kept"], case["share"]
    assert isinstance(kept, list)
    assert isinstance(share, float)
    ours = best_first(scores, range(12))
    assert sorted(ours[: len(kept)]) == kept
    assert len(kept) == 12 - int(12 * (1 - share)) + 1  # the one on the threshold too


def test_the_share_that_is_kept_over_the_run() -> None:
    schedule = OFFICIAL["schedule"]
    total = schedule["total_step"]
    initial, final = schedule["initial_steps"] / total, schedule["final_steps"] / total
    steps, shares = zip(*schedule["step_and_share"], strict=True)
    ours = [remaining_share(step / total, schedule["final_share"], initial, final) for step in steps]
    agree("PLATON share kept", torch.tensor(ours, dtype=torch.float64), shares)


def test_a_segments_sensitivity_is_the_mean_of_its_weights() -> None:
    """The official I after two steps of a window, averaged over the weights of each head and unit."""
    shapes = OFFICIAL["sensitivity"]["shapes"]
    expected = by_segment(OFFICIAL["sensitivity"]["ipt"], shapes)
    tiny = model(shapes)
    total: dict[str, torch.Tensor] = {}
    for step in range(2):
        give_gradients(tiny, shapes, step)
        total = {key: total.get(key, torch.zeros(())) + value for key, value in sensitivity(tiny, VIT).items()}
    for key, value in total.items():
        agree(f"PLATON I of {key}", value / 2, expected[key] / expected[f"size of {key}"])

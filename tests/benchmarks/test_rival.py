from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rival.cells import Cell, Cells, Wanted, measured_starts, wanted
from benchmarks.rival.clock import counted, rows
from benchmarks.rival.fits import largest, peak
from benchmarks.rival.forms import FORMS, RIVAL
from benchmarks.rival.plans import Tier, plan, positions, tiers
from benchmarks.rival.ratios import of_kind, of_run, rival
from benchmarks.rival.wire import WIRES, bytes_of_a_task
from cos2p import model_config
from cos2p.methods.cos2p.settings import FORMS as METHOD_FORMS
from cos2p.recipe import Recipe, recipe_values
from cos2p.runtime.run_setup import build_run_setup


@pytest.fixture(scope="module")
def tier() -> Tier:
    """E1's boards that train a sixteenth: 2 of 8 blocks."""
    return next(iter(tiers("e1")))


def test_the_paper_s_windows_stand_everywhere_alike(tier: Tier) -> None:
    assert (tier.rate, len(tier.clients)) == (0.0625, 1)
    assert list(positions(tier, "paper")) == list(range(7))
    assert all(share == pytest.approx(1 / 7, abs=0.01) for share in positions(tier, "paper").values())
    assert measured_starts(tier, trains_masks=False) == (0, 4)
    assert measured_starts(tier, trains_masks=True) == (4,)


def test_the_cheap_form_is_the_methods_own() -> None:
    own = recipe_values("e1", ("method.form=cheap",))
    for table, fields in METHOD_FORMS["cheap"].items():  # the recipe's own fields stand above a form's
        own["method"].setdefault(table, {}).update(fields)
    form = FORMS["cheap"]
    changed = recipe_values("e1", (*form.masks, *form.wire))
    found, expected = (Recipe.parse(values).method for values in (changed, own))
    assert found == {**expected, "form": "paper"}


def test_tasks_that_two_forms_share_are_measured_once() -> None:
    keys = [item.key for item in wanted("e1", list(FORMS))]
    assert len(keys) == 2 * (1 + 2 * 3)
    assert len(set(keys)) == 2 * (1 + 3 + 1)


def test_a_run_by_hand(tier: Tier, tmp_path: Path) -> None:
    """20 s with masks and 10 without, in the middle; other positions by their FLOPs; 20 rounds and 100."""
    cells = Cells(tmp_path / "cells.json", samples=2)
    assert of_run(cells, tier, "paper") is None
    cells.add(Wanted(tier, RIVAL, False, 0), Cell(10.0, 100, 110, 5, 5))
    for trains_masks, seconds in ((False, 10.0), (True, 20.0)):
        for start in (0, 4):
            scale = plan(tier, "paper", trains_masks, start).flops / plan(tier, "paper", trains_masks, 4).flops
            cells.add(Wanted(tier, "paper", trains_masks, start), Cell(seconds * scale, 80 + start, 90, 5, 5))
    again = Cells(cells.path, samples=2)
    theirs, run = rival(again, tier), of_run(again, tier, "paper")
    first, later = (of_kind(again, tier, "paper", masks) for masks in (True, False))
    assert theirs is not None
    assert run is not None
    assert first is not None
    assert later is not None
    mean = sum(share * plan(tier, "paper", True, s).flops for s, share in positions(tier, "paper").items())
    assert first.seconds == pytest.approx(20 * mean / plan(tier, "paper", True, 4).flops)
    assert run.seconds == pytest.approx((20 * first.seconds + 100 * later.seconds) / 120)
    assert (theirs.seconds, theirs.peak, run.peak) == (10, 100, 84)
    assert Cells(cells.path, samples=4)[Wanted(tier, RIVAL, False, 0)] is None


def test_scores_of_a_quarter_take_a_twentieth_of_five_epochs_and_eight_bits_half_of_the_prefix(tier: Tier) -> None:
    paper, cheap = (plan(tier, form, True, 4) for form in ("paper", "cheap"))
    assert cheap.mask_flops == pytest.approx(0.05 * paper.mask_flops)
    frozen = paper.down - plan(tier, "paper", True, 0).down
    assert cheap.down < paper.down - 0.4 * frozen


def test_sixteen_bits_halve_what_trains_and_leave_the_prefix(tier: Tier) -> None:
    rivals = [bytes_of_a_task(tier, RIVAL, wire) for wire in ("32", "16", "8")]
    assert [part / rivals[0] for part in rivals[1:]] == pytest.approx([0.5, 0.26], abs=0.01)
    paper, halved = (plan(tier, "paper", False, 4, WIRES[wire]) for wire in ("32", "16"))
    assert halved.up == pytest.approx(paper.up / 2, rel=0.01)
    assert paper.down - halved.down == pytest.approx(paper.up - halved.up, rel=0.01)


def test_a_run_is_counted_without_training() -> None:
    """One round of two: masks by one pass over a quarter of the samples take a share of their FLOPs and of the time."""
    found = []
    for changes in ((), rows()["first-order-masks"]):
        recipe = Recipe.load("quickstart", ("schedule.rounds=1", "schedule.evaluate_every=1000", *changes))
        found.append(counted(build_run_setup(recipe)))
    (plain, slow), (scored, fast) = found
    assert scored.mask_flops == pytest.approx(plain.mask_flops / 4 / plain_epochs("quickstart"), rel=0.02)
    assert fast < slow
    assert scored.down == pytest.approx(plain.down, rel=0.01)


def plain_epochs(name: str) -> int:
    return int(Recipe.load(name).method.get("masks", {}).get("epochs", 5))


def test_the_largest_rate_that_fits_is_the_last_one() -> None:
    config = model_config("vit-mini")
    budget = peak(config, "fedrolex", {}, 4, 0.25)
    rate = largest(config, "fedrolex", {}, 4, budget)
    assert rate >= 0.25
    assert peak(config, "fedrolex", {}, 4, rate) <= budget < peak(config, "fedrolex", {}, 4, rate + 1 / 256)
    assert largest(config, "fedrolex", {}, 4, 1000) == 0.0

"""Who lies, told from pairs of devices that hardly agree."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cos2p.aggregation.robust.sketch import compare
from cos2p.aggregation.robust.standing import DEVICES, FEWEST, Evidence, Standing
from cos2p.seeding import torch_rng

SCALARS = 40_000
NAMES = [f"board-{number}" for number in range(8)]


def one_round(number: int, seed: int, liar: str, agree: float = 0.2) -> dict[tuple[str, str], Evidence]:
    """Five of eight answer, each with half of the scalars; cosines of the honest ones are about `agree`²."""
    rng = torch_rng(seed, "standing", number)
    common = torch.randn(SCALARS, generator=rng)
    updates = {}
    for place in torch.randperm(len(NAMES), generator=rng)[:5].tolist():
        own = agree * common + torch.randn(SCALARS, generator=rng)
        held = torch.rand(SCALARS, generator=rng) < 0.5
        updates[NAMES[place]] = torch.where(held, -own if NAMES[place] == liar else own, torch.nan)
    found = {}
    for a, x in updates.items():
        for b, y in updates.items():
            if a < b:
                both = ~(x.isnan() | y.isnan())
                found[a, b] = Evidence(float(x[both] @ y[both]), float(x[both] @ x[both]), float(y[both] @ y[both]))
    return found


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_liar_is_told_from_cosines_of_a_few_hundredths(seed: int) -> None:
    standing = Standing()
    for number in range(8):
        standing.note(one_round(number, seed, liar=NAMES[3]))
    opinions = standing.opinions()
    assert opinions[NAMES[3]].trust == 0.0
    assert opinions[NAMES[3]].agreement < 0
    assert all(opinion.trust == 1.0 for name, opinion in opinions.items() if name != NAMES[3])


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_nobody_is_doubted_where_nobody_agrees(seed: int) -> None:
    """Updates that have nothing to do with each other: chance alone makes no malicious device."""
    standing = Standing()
    for number in range(4):
        standing.note(one_round(number, seed, liar="", agree=0.0))
        assert {opinion.trust for opinion in standing.opinions().values()} <= {1.0}


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), devices=st.integers(3, 8))
def test_nobody_is_doubted_where_updates_cancel_out(seed: int, devices: int) -> None:
    """Around an optimum every device pulls to its own data, and the pulls sum up to nothing."""
    rng, standing = torch_rng(seed, "optimum"), Standing()
    pulls = torch.randn(devices, 4_000, generator=rng)
    pulls -= pulls.mean(0)
    last: dict[str, torch.Tensor] = {}
    for _ in range(25):
        updates = 0.5 * pulls + torch.randn(pulls.shape, generator=rng)
        new = list(zip(NAMES, updates, strict=False))
        standing.note(compare(new, last))
        last = dict(new)
        assert {opinion.trust for opinion in standing.opinions().values()} <= {1.0}


def test_to_have_no_part_in_where_the_others_go_is_no_fault() -> None:
    """An honest device whose classes or blocks nobody else has looks like that."""
    agreed, nothing = Evidence(0.3, 1, 1), Evidence(0.0, 1, 1)
    names = ["a", "alone", "b", "c"]
    standing = Standing()
    standing.note({(x, y): nothing if "alone" in (x, y) else agreed for x in names for y in names if x < y})
    assert {opinion.trust for opinion in standing.opinions().values()} == {1.0}


def test_two_of_five_that_lie_together_are_the_minority() -> None:
    names = ["a", "b", "c", "x", "y"]
    standing = Standing()
    same = {(p, q): (p in "xy") == (q in "xy") for p in names for q in names if p < q}
    for _ in range(FEWEST):
        standing.note({pair: Evidence(0.2 if alike else -0.2, 1, 1) for pair, alike in same.items()})
    assert [standing.opinions()[name].trust for name in names] == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_first_round_that_falls_into_two_camps_is_no_attack() -> None:
    """Devices whose data differ: half of a FedAvg fleet points one way at first, half the other."""
    names = ["a", "b", "c", "x", "y"]
    standing = Standing()
    camps = {(p, q): (p in "xy") == (q in "xy") for p in names for q in names if p < q}
    standing.note({pair: Evidence(0.1 if alike else -0.1, 1, 1) for pair, alike in camps.items()})
    assert {opinion.trust for opinion in standing.opinions().values()} == {1.0}


def test_one_that_hardly_differs_from_having_no_part_is_not_opposed() -> None:
    """A slow device of quickstart: a hair on the wrong side, where the others agree much more than that."""
    names = ["a", "b", "c", "d", "slow", "slower"]
    apart = {"slow", "slower"}
    standing = Standing()
    for _ in range(20):
        standing.note(
            {
                (p, q): Evidence(0.02 if not apart & {p, q} else 0.008 if {p, q} == apart else -0.001, 1, 1)
                for p in names
                for q in names
                if p < q
            }
        )
    assert {opinion.trust for opinion in standing.opinions().values()} == {1.0}


def own_cosines(**cosines: float) -> Standing:
    """Devices that agree a little with each other, and so much each with itself."""
    standing = Standing()
    for _ in range(FEWEST):
        pairs = {(a, b): Evidence(0.05, 1, 1) for a in cosines for b in cosines if a < b}
        standing.note(pairs | {(name, name): Evidence(own, 1, 1) for name, own in cosines.items()})
    return standing


def test_who_sends_the_same_whatever_model_it_gets_counts_for_nothing() -> None:
    opinions = own_cosines(a=0.1, b=-0.05, c=0.3, drift=0.97, twin=0.95).opinions()
    assert {name: opinion.trust for name, opinion in opinions.items()} == {
        "a": 1,
        "b": 1,
        "c": 1,
        "drift": 0,
        "twin": 0,
    }
    assert opinions["drift"].stuck == pytest.approx(0.97)


def test_where_all_updates_resemble_the_last_ones_nobody_is_stuck() -> None:
    """A head that converges: every device's updates are alike from round to round."""
    opinions = own_cosines(a=0.7, b=0.6, c=0.55, d=0.95).opinions()
    assert {opinion.trust for opinion in opinions.values()} == {1.0}


def test_two_devices_are_no_majority() -> None:
    standing = Standing()
    standing.note({("a", "b"): Evidence(-0.9, 1, 1)})
    assert standing.opinions() == {}


def test_devices_that_were_not_heard_for_long_are_forgotten() -> None:
    standing = Standing()
    for number in range(DEVICES + 10):
        standing.note({(f"d{number}", f"d{number + 1}"): Evidence(0.1, 1, 1)})
    state = standing.state()
    assert len(state["seen"]) == DEVICES
    assert "d0" not in dict(state["seen"])
    assert all("d0" not in pair[:2] for pair in state["pairs"])


def test_it_goes_on_from_a_checkpoint() -> None:
    whole, first = Standing(), Standing()
    for number in range(3):
        whole.note(one_round(number, 1, NAMES[0]))
        first.note(one_round(number, 1, NAMES[0]))
    first.strike(NAMES[0], 0.0)
    again = Standing()
    again.load_state(json.loads(json.dumps(first.state())))
    assert again.state() == first.state()
    for standing in (whole, again):
        standing.note(one_round(3, 1, NAMES[0]))
    assert whole.opinions() == again.opinions()
    assert again.strike(NAMES[0], 0.0) == 2
    assert again.strike(NAMES[0], 0.5) == 0


def test_a_pair_that_agrees_with_itself_is_not_the_direction_of_the_fleet() -> None:
    """Two that send the same, and oppose the others a little, are found; nobody else is blamed."""
    names = ["a", "b", "c", "d", "e", "f", "x", "y"]
    standing = Standing()
    for _ in range(4):
        cosines = {(p, q): 0.99 if {p, q} == {"x", "y"} else -0.03 if q in "xy" else 0.03 for p in names for q in names}
        standing.note({pair: Evidence(cosine, 1, 1) for pair, cosine in cosines.items() if pair[0] < pair[1]})
    opinions = standing.opinions()
    assert [opinions[name].trust for name in names] == [1.0] * 6 + [0.0] * 2


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_chance_makes_nobody_opposed_however_long_it_plays(seed: int) -> None:
    """Few scalars have large cosines by chance; after many rounds there is still nothing to see in them."""
    rng, standing = torch_rng(seed, "chance"), Standing()
    for _ in range(30):
        drawn = torch.randn(8, 400, generator=rng)
        found = {
            (NAMES[i], NAMES[j]): Evidence(float(drawn[i] @ drawn[j]), *drawn[[i, j]].square().sum(1).tolist(), 400)
            for i in range(8)
            for j in range(i)
        }
        standing.note(found)
        assert {opinion.trust for opinion in standing.opinions().values()} <= {1.0}

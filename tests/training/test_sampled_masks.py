"""`masks.final = "sampled"`: the kept mask is a draw by importance, and still exactly as large as the budget allows."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.methods import run_task
from cos2p.models.spec import SubmodelSpec
from cos2p.recipe import Recipe
from cos2p.runtime.world import build_world, first_weights
from cos2p.seeding import torch_rng
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server
from cos2p.training.masks import sampled, top

SURE, NEVER = 40.0, -40.0


def draw(importance: list[float], candidates: tuple[int, ...], count: int, seed: int = 0) -> tuple[int, ...]:
    return sampled(torch.tensor(importance), candidates, count, torch_rng(seed, "draw"))


def test_a_draw_of_the_right_size_stays() -> None:
    assert draw([NEVER, SURE, NEVER, SURE], (0, 1, 2, 3), 2) == (1, 3)


def test_a_draw_too_large_keeps_its_most_important() -> None:
    assert draw([SURE, SURE + 2, SURE + 1, NEVER], (0, 1, 2, 3), 2) == (1, 2)


def test_a_draw_too_small_is_filled_with_the_most_important_others() -> None:
    assert draw([NEVER, NEVER - 1, SURE, NEVER + 1], (0, 1, 2, 3), 2) == (2, 3)


def test_only_candidates_are_drawn() -> None:
    assert draw([SURE, SURE, NEVER, NEVER], (2, 3), 1) == (2,)
    assert draw([SURE, SURE, NEVER, NEVER], (2, 3), 5) == (2, 3)


def test_segments_are_kept_as_often_as_their_importance_says() -> None:
    """Two even segments (σ = ½) and one place: the draw, unlike the best, does not always keep the first."""
    importance = [0.01, 0.0]
    kept = [draw(importance, (0, 1), 1, seed)[0] for seed in range(400)]
    assert top(torch.tensor(importance), (0, 1), 1) == (0,)
    # Segment 1 is kept when it alone is drawn: one case in four.
    assert 0.18 < kept.count(1) / 400 < 0.32


@given(importance=st.lists(st.floats(-5, 5), min_size=1, max_size=12), count=st.integers(0, 14), seed=st.integers(0, 9))
def test_the_budget_always_holds(importance: list[float], count: int, seed: int) -> None:
    candidates = tuple(range(0, len(importance), 2))
    kept = draw(importance, candidates, count, seed)
    assert len(kept) == min(count, len(candidates))
    assert set(kept) <= set(candidates)
    assert list(kept) == sorted(kept)


def first_update(final: str) -> tuple[SubmodelSpec, int, int]:
    """The mask a device comes back with from its first task, and the quotas of that task."""
    changes = [
        f"method.masks.final={final}",
        "model.depth=2",
        "data.train_samples=120",
        "training.epochs=1",
        "method.masks.epochs=1",
    ]
    world = build_world(Recipe.load("quickstart", changes))
    server = Server(world.context, world.method(), first_weights(world.recipe, world.config))
    client = world.context.names[0]
    (order,) = (effect.order for effect in server.handle(ClientJoined(client)) if isinstance(effect, Send))
    assert order.settings["mask"]["final"] == final
    update, _ = run_task(world.config, server.orders.task(order), world.shards[client], {})
    assert order.quotas is not None
    return update.spec, sum(q.heads for q in order.quotas), sum(q.units for q in order.quotas)


def test_from_the_recipe_to_the_update() -> None:
    by_draw, heads, units = first_update("sampled")
    best, _, _ = first_update("top")
    assert by_draw.window != best.window
    for spec in (by_draw, best):
        assert sum(len(keep.heads) for keep in spec.window) == heads
        assert sum(len(keep.units) for keep in spec.window) == units

"""What a plan says of a recipe before anything is loaded."""

from __future__ import annotations

from cos2p.recipe import Recipe
from cos2p.terminal.recipe_plan import plan_text


def test_whose_speed_a_simulation_counts_with_is_said() -> None:
    """A Jetson's figures are its GPU's; a processor's, or one's own, need no word."""
    said = [line for line in plan_text(Recipe.load("quickstart")) if line.startswith("speed")]
    assert said == []  # the shipped recipe gives its own FLOP/s
    values = Recipe.load("quickstart").model_dump(mode="json", exclude_none=True)
    devices = [{"preset": "jetson-agx-orin-64gb"}, {"preset": "raspberry-pi-4"}]
    (line,) = (
        line for line in plan_text(Recipe.parse(values | {"fleet": {"devices": devices}})) if line.startswith("speed")
    )
    assert line.startswith("speed    jetson-agx-orin-64gb: FLOP/s of the GPU")

"""The model card of an exported model: what it was trained on, by whom, how, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w

from cos2p.data.config import DataConfig
from cos2p.models.config import ModelConfig
from cos2p.models.layout import parameter_count
from cos2p.recipe import Recipe
from cos2p.runtime.usage import Usage


def model_card(
    recipe: Recipe, config: ModelConfig, result: Mapping[str, Any], use: Usage, exit: int, device: str = ""
) -> str:
    """Markdown with the front matter that model hubs read. `device`: it is that device's own submodel; of the run it
    may know no more than method and classes."""
    whose = f"the own submodel of the device `{device}`" if device else "the server's model"
    fleet = f"{len(result['devices'])} devices" if result["devices"] else "devices"
    about = (
        f"A {config.family} model of {exit} of {config.depth} blocks and width {config.dim} "
        f"(the whole model: {parameter_count(config):,} parameters), trained by {result['title']} on "
        f"{fleet} whose data did not leave them. This is {whose}."
    )
    parts = [
        plain_card(recipe.name, use, f"{recipe.description}\n\n{about}".strip()),
        _figures(result, exit, device, config.task == "language-modeling"),
        f"## Data\n\n{_data(recipe.data, result)}\n",
        f"## Fleet\n\n{_fleet(result)}\n" if result["devices"] else "",
        f"## Recipe\n\n```toml\n{recipe_toml(recipe)}```\n",
    ]
    return "\n".join(part for part in parts if part)


def plain_card(title: str, use: Usage, about: str = "") -> str:
    """The card of a model of which no more is known than how it is used."""
    named = {"library_name": use.library, "pipeline_tag": use.tag, "base_model": use.base}
    front = [f"{name}: {value}" for name, value in named.items() if value]
    parts = [
        "\n".join(["---", *front, "tags:", "- cos2p", "- federated-learning", "---\n"]),
        f"# {title}\n",
        f"{about}\n" if about else "",
        f"## Use\n\n{use.text}\n",
    ]
    return "\n".join(part for part in parts if part)


def _figures(result: Mapping[str, Any], exit: int, device: str, causal: bool) -> str:
    """What `result.json` says of this very model, with what needs no model next to it."""
    score = result["devices"].get(device, {}).get("top1") if device else result["exits"].get(str(exit))
    of = "its own test samples" if device else "the test samples"
    what = "next tokens that are right" if causal else "accuracy"
    rows = [(f"{what}, {of}", score)]
    if not causal:
        rows += [("chance", result.get("chance")), ("always the most frequent class", result.get("majority"))]
    lines = [f"| {name} | {100 * value:.1f} % |" for name, value in rows if value is not None]
    return "\n".join(["## Figures\n", "| | |", "|---|---|", *lines, ""]) if lines else ""


def _data(data: DataConfig, result: Mapping[str, Any]) -> str:
    where = f"`{data.source}`" + (f", `{data.path}`" if data.path else "")
    classes = ", ".join(f"`{name}`" for name in result["classes"][:50])
    more = f" and {len(result['classes']) - 50} more" if len(result["classes"]) > 50 else ""
    return f"Source: {where}." + (f" Classes: {classes}{more}." if classes else " The next token is predicted.")


def _fleet(result: Mapping[str, Any]) -> str:
    lines = ["| device | share of the model | samples | updates |", "|---|---|---|---|"]
    shown = list(result["devices"].items())[:20]
    lines += [f"| {name} | {d['rate']} | {d['samples']} | {d['updates']} |" for name, d in shown]
    hidden = len(result["devices"]) - len(shown)
    rounds = f"{result['rounds']:,} rounds, {result['updates']:,} updates, seed {result['seed']}."
    return "\n".join(lines) + (f"\n\nand {hidden:,} more." if hidden else "") + f"\n\n{rounds}"


# A recipe as the TOML that is kept next to what came out of it.


def recipe_toml(recipe: Recipe) -> str:
    """TOML knows no empty value: such fields are left out, and their default is empty."""
    return tomli_w.dumps(_without_empty(recipe.model_dump(mode="json")))


def _without_empty(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _without_empty(value) for name, value in values.items() if value is not None}
    return [_without_empty(value) for value in values] if isinstance(values, list) else values

"""A run's model as a folder for other programs, complete: weights, class names, how inputs are prepared, a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from cos2p.checksums import note_folder
from cos2p.data.config import DataConfig
from cos2p.data.paths import find
from cos2p.data.tokenizers import byte_tokenizer, resolved
from cos2p.errors import CheckpointError, DataError
from cos2p.methods import Method, method_class, method_settings
from cos2p.models.config import ModelConfig
from cos2p.models.hub import save_pretrained
from cos2p.models.hub_adapter import fits_base, save_adapter
from cos2p.models.hub_config import is_native
from cos2p.models.hub_pooling import is_sentence_model
from cos2p.models.layout import Weights, parameter_count
from cos2p.recipe import Recipe
from cos2p.runtime.usage import Usage, usage


def save_model(
    folder: Path,
    recipe: Recipe,
    config: ModelConfig,
    weights: Weights,
    result: Mapping[str, Any],
    exit: int | None = None,
    device: str = "",
    data: DataConfig | None = None,
) -> Path:
    """Write the model with the head of depth `exit` (all blocks by default) as a Hugging Face folder; returns it.

    `weights` are as the method evaluates them, or those of the device of that name; `data` is how inputs are prepared,
    if it is not as the recipe says. CheckpointError for a model that has no form there.
    """
    fitted = _written_config(Method if device else method_class(recipe.method["name"]), config, weights, result)
    depth = fitted.depth if exit is None else exit
    inputs = _inputs(folder, recipe, data or recipe.data, fitted)
    tokenizer = inputs["tokenizer"]
    sentence = not is_native(fitted) and is_sentence_model(fitted, tokenizer)
    use = usage(fitted, sentence=sentence, crop=inputs["crop"], has_tokenizer=tokenizer is not None)
    card = model_card(recipe, fitted, result, use, depth, device)
    save_pretrained(folder, fitted, weights, depth, result["classes"] or None, card=card, **inputs)
    note_folder(folder, but=("README.md",))
    return folder


def save_adapters(
    folder: Path,
    recipe: Recipe,
    config: ModelConfig,
    weights: Weights,
    result: Mapping[str, Any],
    exit: int,
    device: str,
    data: DataConfig,
) -> Path:
    """Write the adapters among the weights, and the model they belong to unless a hub has exactly that one."""
    named = recipe.model.pretrained
    base = named if fits_base(named, config, weights, exit) else ""
    inputs = _inputs(folder, recipe, data, config)
    use = usage(config, "peft", base=base, crop=inputs["crop"], has_tokenizer=inputs["tokenizer"] is not None)
    card = model_card(recipe, config, result, use, exit, device)
    return save_adapter(folder, config, weights, base, result["classes"] or None, exit, card=card, **inputs)


def _written_config(
    method: type[Method], config: ModelConfig, weights: Weights, result: Mapping[str, Any]
) -> ModelConfig:
    """That of the model which the method evaluates; CheckpointError if no Hugging Face type computes it."""
    if method.own_model is not None:
        raise CheckpointError(
            f"{result['title']} answers by a forward pass of its own, which no Hugging Face type has; "
            "use it with cos2p predict, or export it as ONNX"
        )
    fitted = method.evaluation_config(config, weights)
    if fitted != config and fitted.heads * fitted.head_dim != fitted.dim:
        raise CheckpointError(
            f"{result['title']} leaves {fitted.heads} heads of {fitted.head_dim} in a width of {fitted.dim}, "
            "which no Hugging Face type has; use it with cos2p predict, or export it as ONNX"
        )
    return fitted


def _inputs(folder: Path, recipe: Recipe, data: DataConfig, config: ModelConfig) -> dict[str, Any]:
    images = config.family == "vit"
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "normalize": data.normalize if images else None,
        "crop": data.crop,
        "tokenizer": None if images else tokenizer_file(data, recipe.model.pretrained, folder),
    }


def tokenizer_file(data: DataConfig, pretrained: str, folder: Path) -> Path | None:
    """The file by which texts become ids; one is written into the folder for bytes. None where the run's files are not
    at hand (a fleet's admin)."""
    try:
        named = resolved(data, pretrained).tokenizer
        if named != "bytes":
            found = find(named)
            return found / "tokenizer.json" if found.is_dir() else found
    except DataError:
        return None
    file = folder / "tokenizer.json"
    file.write_text(byte_tokenizer(), encoding="utf-8")
    return file


# ---------------------------------------------------------------- the card


CARD_TAG = "tags:\n- cos2p"


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
        f"## Recipe\n\nFields that are not as by default:\n\n```toml\n{_set_fields(recipe)}```\n",
    ]
    return "\n".join(part for part in parts if part)


def plain_card(title: str, use: Usage, about: str = "") -> str:
    """The card of a model of which no more is known than how it is used."""
    named = {"library_name": use.library, "pipeline_tag": use.tag, "base_model": use.base}
    front = [f"{name}: {value}" for name, value in named.items() if value]
    parts = [
        "\n".join(["---", *front, CARD_TAG, "- federated-learning", "---\n"]),
        f"# {title}\n",
        f"{about}\n" if about else "",
        f"## Use\n\n{use.text}\n",
    ]
    return "\n".join(part for part in parts if part)


def _figures(result: Mapping[str, Any], exit: int, device: str, causal: bool) -> str:
    """The figures of this very model in `result.json`, next to those that need no model."""
    score = result["devices"].get(device, {}).get("top1") if device else result["exits"].get(str(exit))
    of = "its own test samples" if device else "the test samples"
    what = "next tokens that are right" if causal else "accuracy"
    rows = [(f"{what}, {of}", score)]
    if not causal:
        rows += [("chance", result.get("chance")), ("always the most frequent class", result.get("majority"))]
    lines = [f"| {name} | {100 * value:.1f} % |" for name, value in rows if value is not None]
    return "\n".join(["## Figures\n", "| | |", "|---|---|", *lines, ""]) if lines else ""


def _data(data: DataConfig, result: Mapping[str, Any]) -> str:
    where = f"`{data.source}`" + (f", `{Path(data.path).name}`" if data.path else "")
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


def _set_fields(recipe: Recipe) -> str:
    """Fields that differ from the default; a path is its name alone, since a card goes elsewhere."""
    method = method_settings(recipe.method).model_dump(mode="json", exclude_defaults=True)
    values = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"method"})
    return tomli_w.dumps(_written({**values, "method": {"name": recipe.method["name"], **method}}, names=True))


def recipe_toml(recipe: Recipe) -> str:
    """TOML knows no empty value: such fields are left out, and their default is empty."""
    return tomli_w.dumps(_written(recipe.model_dump(mode="json")))


def _written(values: Any, names: bool = False) -> Any:
    if isinstance(values, dict):
        return {name: _written(value, names) for name, value in values.items() if value is not None}
    if isinstance(values, list):
        return [_written(value, names) for value in values]
    return Path(values).name if names and isinstance(values, str) and Path(values).is_absolute() else values

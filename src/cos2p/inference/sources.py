"""A trained model that answers, and where it is found: a run folder, a Hugging Face folder, a device's own submodel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

from cos2p.checksums import check, check_folder
from cos2p.data.config import DataConfig
from cos2p.data.tokenizers import Encoder, make_encoder, resolved
from cos2p.errors import CheckpointError, ConfigError, DataError, RunError
from cos2p.methods import Method, method_class
from cos2p.models.config import ModelConfig
from cos2p.models.hub import load_pretrained
from cos2p.models.hub_adapter import load_adapter
from cos2p.models.hub_config import class_names
from cos2p.models.hub_export import stored_normalization
from cos2p.models.hub_files import read_json
from cos2p.models.hub_pooling import POOLING_FIELD
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.recipe import Recipe
from cos2p.runtime.own_models import OWN_MODELS, own_model_file
from cos2p.runtime.run_folder import stored_recipe
from cos2p.tracking.event_kinds import Started
from cos2p.tracking.events import read_events
from cos2p.training.personal import Personal

Exit = int | Literal["best"] | None
"""Depth of an exit; `best`: by the validation samples of the run; None: the deepest."""


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """A model, with how its inputs are prepared and what its answers are called."""

    where: str
    """Where it was found, for messages."""
    config: ModelConfig
    weights: Weights
    """All that `config` has, as the method evaluates them."""
    exit: int
    """Depth of the exit that answers: so many blocks below it."""
    classes: tuple[str, ...]
    """Names of the classes; empty for a language model."""
    data: DataConfig
    """How inputs are prepared: size, channels, crop, mean and deviation; tokenizer and length."""
    method: type[Method] = Method
    """Knows the forward pass of the weights."""
    recipe: Recipe | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    """Figures of its run; empty where there is no run."""
    device: str = ""
    """Whose own submodel it is; empty: the server's model."""

    def __repr__(self) -> str:
        kind = f"{self.config.family}, exit {self.exit} of {self.config.depth}"
        return f"Trained({self.where!r}, {kind}, {len(self.classes)} classes)"

    @property
    def is_text(self) -> bool:
        return self.config.family != "vit"

    @property
    def generates(self) -> bool:
        return self.config.task == "language-modeling"

    @property
    def answer_word(self) -> str:
        """The kind of an answer: a class's name, or the token that comes next."""
        return "next token" if self.generates else "label"

    @cached_property
    def model(self) -> ElasticTransformer:
        exits = sorted({self.exit, self.config.depth})  # a model's last exit is always its deepest
        return self.method.evaluation_model(self.config, self.weights, exits).eval()

    @cached_property
    def encoder(self) -> Encoder:
        return make_encoder(self.data)

    def check_tokens(self, ids: Iterable[int]) -> None:
        """DataError for a token that the model has no row for."""
        if (outside := max(ids, default=0)) >= self.config.vocab:
            raise DataError(
                f"{self.where} has {self.config.vocab} token rows, but its tokenizer gives token {outside}; "
                "put the tokenizer.json it was trained with next to it"
            )

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """Logits (B, classes), of a language model (B, T, vocabulary)."""
        return self.model(inputs)[0]  # type: ignore[no-any-return]


def open_trained(place: str | Path, exit: Exit = None, device: str = "") -> Trained:
    """The model at `place`, with the exit and of the device that are asked for; an error that says what is there."""
    path = Path(place).expanduser()
    if path.is_file():
        if device or exit is not None:
            raise ConfigError(f"{path} is one device's submodel with one exit; leave --device and --exit out")
        return _own(Personal.read(path), str(path))
    if not path.is_dir():
        raise RunError(f"there is nothing at {path}; name a run folder, a Hugging Face folder or a device's file")
    if (path / "model.onnx").is_file():
        raise CheckpointError(
            f"{path} holds model.onnx, which is not read here; its README.md has code that uses it, and cos2p export "
            "--format hf writes what is read"
        )
    if (path / "adapter_config.json").is_file() and not (device or exit):
        return _adapted(path)
    if any(path.glob("*.gguf")) and not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path} holds a GGUF file, which is not read here; write it as a Hugging Face folder first: "
            "python -m tools.gguf_folder, or transformers' from_pretrained(..., gguf_file=...)"
        )
    if (path / "config.json").is_file():
        if device or exit is not None:
            raise ConfigError(f"{path} is an exported model with one exit; --device and --exit need its run folder")
        return _hugging_face(path)
    if not (path / "recipe.toml").is_file():
        raise RunError(f"{path} is neither a run folder (no recipe.toml) nor a Hugging Face folder (no config.json)")
    return _device_of(path, device, exit) if device else _server(path, exit)


def _server(run: Path, exit: Exit) -> Trained:
    if not (run / "result.json").is_file() or not (run / "weights.safetensors").is_file():
        raise RunError(f"{run}: this run has not finished; go on with:  cos2p run --resume --out {run}")
    recipe, result = stored_recipe(run), read_json(check(run / "result.json"))
    started = next((e for e in read_events(run / "events.jsonl") if isinstance(e, Started)), None)
    if started is None:
        raise RunError(f"{run / 'events.jsonl'} does not say how the run began; it is damaged")
    weights = safetensors.torch.load_file(check(run / "weights.safetensors"))
    method = method_class(recipe.method["name"])
    config = ModelConfig.from_dict(started.model)
    if not isinstance(result.get("classes"), list) or not isinstance(result.get("best_exit") or 0, int):
        raise RunError(f"{run / 'result.json'} is not as cos2p writes it: it names no classes, or no exit as the best")
    return Trained(
        where=str(run),
        config=config,
        weights=weights,
        exit=_chosen(exit, config, result),
        classes=tuple(result["classes"]),
        data=prepared(recipe.data, config, _tokenizer(recipe, run)),
        method=method,
        recipe=recipe,
        result=result,
    )


def _chosen(exit: Exit, config: ModelConfig, result: Mapping[str, Any]) -> int:
    if exit == "best":
        return int(result.get("best_exit") or config.depth)
    if exit is not None and not 1 <= exit <= config.depth:
        raise ConfigError(f"there is no exit {exit}; the model has exits 1 to {config.depth}, or take the best")
    return config.depth if exit is None else exit


def _device_of(run: Path, device: str, exit: Exit) -> Trained:
    if exit is not None:
        raise ConfigError(f"the submodel of {device} has one exit, at its top; leave --exit out")
    file = own_model_file(run, device)
    if not file.is_file():
        raise RunError(f"{run} holds no submodel of {device!r}; {_others(run)}")
    result = read_json(check(run / "result.json")) if (run / "result.json").is_file() else {}
    return _own(Personal.read(file), str(file), result, _tokenizer(stored_recipe(run), run))


def _others(run: Path) -> str:
    kept = sorted(file.stem for file in (run / OWN_MODELS).glob("*.safetensors"))
    if kept:
        return f"there are those of {', '.join(kept[:10])}{' ...' if len(kept) > 10 else ''}"
    return (
        "none is kept there: run.device_models was too small, the method trains no plain submodel, or it is a fleet's "
        "run, where each device keeps its own"
    )


def _own(own: Personal, where: str, result: Mapping[str, Any] | None = None, tokenizer: str = "") -> Trained:
    recipe = Recipe.parse(own.facts["recipe"], where)
    config, weights = own.full()
    # On a device there is nothing of the run but this file.
    known = {"classes": own.facts["classes"], "title": method_class(recipe.method["name"]).title, "devices": {}}
    return Trained(
        where=where,
        config=config,
        weights=weights,
        exit=config.depth,
        classes=tuple(own.facts["classes"]),
        data=prepared(recipe.data, config, tokenizer or _tokenizer(recipe, None)),
        recipe=recipe,
        result={**known, **(result or {})},
        device=str(own.facts["device"]),
    )


def _hugging_face(folder: Path) -> Trained:
    check_folder(folder)
    values = read_json(folder / "config.json")
    kinds = values.get("architectures") or [""]
    if POOLING_FIELD not in values and not str(kinds[0]).endswith(("Classification", "ForCausalLM")):
        raise CheckpointError(f"{folder} has no head that answers ({kinds[0] or 'config.json names no architecture'})")
    return _plain(folder, values, *load_pretrained(folder))


def _adapted(folder: Path) -> Trained:
    """A `peft` folder: its base with the adapter in it."""
    if read_json(folder / "adapter_config.json").get("task_type") != "CAUSAL_LM":
        raise CheckpointError(
            f"{folder} is an adapter of a classifier, which is not read here; its README.md has code that uses it, and "
            "cos2p export --format hf writes what is read"
        )
    config, weights, base = load_adapter(folder)
    own = folder if (folder / "tokenizer.json").is_file() else base
    return replace(_plain(own, read_json(base / "config.json"), config, weights), where=str(folder))


def _plain(folder: Path, values: dict[str, Any], config: ModelConfig, weights: Weights) -> Trained:
    data = DataConfig(channels=1 if config.channels == 1 else 3)
    tokenizer = ""
    if config.family == "vit":
        data = _image_preparation(folder, data)
    elif (folder / "tokenizer.json").is_file():
        tokenizer = str(folder / "tokenizer.json")
    else:
        raise CheckpointError(f"{folder} has no tokenizer.json; copy the one its texts were read by into it")
    labels = class_names(values) or [str(number) for number in range(config.classes)]
    classes = () if config.task == "language-modeling" else tuple(labels)
    return Trained(str(folder), config, weights, config.depth, classes, prepared(data, config, tokenizer), Method)


def _image_preparation(folder: Path, data: DataConfig) -> DataConfig:
    file = folder / "preprocessor_config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} has no preprocessor_config.json, which says how images are to be prepared")
    crop = "center" if read_json(file).get("do_center_crop") else "stretch"
    return data.model_copy(update={"crop": crop, **stored_normalization(folder)})


def prepared(data: DataConfig, config: ModelConfig, tokenizer: str) -> DataConfig:
    """How inputs of any size become the model's, whatever the recipe's data were."""
    if config.family == "vit":
        return data.model_copy(update={"image_size": config.image, "channels": config.channels})
    length = min(data.max_tokens, config.max_tokens) if tokenizer == "" else config.max_tokens
    return data.model_copy(update={"tokenizer": tokenizer or data.tokenizer, "max_tokens": length})


def _tokenizer(recipe: Recipe, run: Path | None) -> str:
    """The run's own copy, or where the recipe has it from. A language model's copy puts no mark behind a text, as its
    training did: there the recipe's comes first."""
    copy = [] if run is None else [str(file) for file in [run / "model" / "tokenizer.json"] if file.is_file()]
    if copy and run is not None:
        check(run / "model" / "tokenizer.json")
    if copy and recipe.data.task == "classification":
        return copy[0]
    try:
        return resolved(recipe.data, recipe.model.pretrained).tokenizer
    except DataError:
        return next(iter(copy), "")


def exit_option(text: str | None) -> Exit:
    """`--exit N|best`."""
    if text is None or text == "best":
        return None if text is None else "best"
    if not text.isdigit():
        raise ConfigError(f"--exit {text!r} is neither a depth, such as 3, nor `best`")
    return int(text)

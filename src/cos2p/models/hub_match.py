"""A checkpoint's tensors against the model it says it holds: every name and shape, before any tensor is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.hub_config import attention_window, position_offset, promises_head, read_config
from cos2p.models.hub_export import GREY_FIELD
from cos2p.models.hub_files import StoredTensor, read_json, resolve
from cos2p.models.hub_pooling import HEAD_FILE, POOLING_FIELD, stored_pooling
from cos2p.models.hub_tables import is_ignored, their_names
from cos2p.models.layout import exit_parameters, layout


@dataclass(frozen=True)
class Checkpoint:
    """What `config.json` and its neighbours say; no tensor has been read."""

    path: Path
    config: ModelConfig
    kind: str
    """Its `model_type`."""
    has_head: bool
    """It says that it has the head of our exit; a bare BertModel or ViTModel does not."""
    head: Path | None = None
    """Where its classifier is, if transformers has none for its pooling."""
    offset: int = 0
    """Rows of its position table before that of the first token (RoBERTa)."""
    window: int | None = None
    """So many tokens back each one sees (Mistral); None for all."""
    says_pooling: bool = False
    """It names its pooling, or has a classifier, which was trained behind its family's."""
    is_grey: bool = False
    """It takes colour images and sees their luma: a model of grey images that was saved for pipelines."""

    @classmethod
    def read(cls, folder: str | Path, pooling_chosen: bool = False) -> Checkpoint:
        """`pooling_chosen`: a pooling that cannot be computed does not matter."""
        path = resolve(folder)
        values = read_json(path / "config.json")
        config = read_config(values, str(path / "config.json"))
        promised = promises_head(values, config)
        try:
            said = stored_pooling(path, values, promised)
        except CheckpointError:
            if not pooling_chosen:
                raise
            said = {}
        grey, apart = values.get(GREY_FIELD) is True, POOLING_FIELD in values and not promised
        return cls(
            path,
            config.with_(**said),
            values["model_type"],
            promised or apart,
            path / HEAD_FILE if apart else None,
            position_offset(values),
            attention_window(values),
            bool(said) or (promised and config.task == "classification"),
            grey,
        )


def match(checkpoint: Checkpoint, config: ModelConfig, tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Our names to theirs of what `config` takes from the checkpoint.

    CheckpointError unless the file holds exactly what it should, whether it will be used or not.
    """
    stored = checkpoint.config
    # A model that is pooled in another way may have kept its family's pooler.
    held = stored.with_(pooling="", pooler="")
    expected = their_names(held, held.depth, checkpoint.kind)
    shapes = {name: _shape(held, name, checkpoint.offset) for name in expected}
    optional = [] if checkpoint.has_head else ["exit.linear."]
    optional += ["exit.pooler."] if not checkpoint.has_head or stored.pooler == "none" else []
    for module in optional:
        names = [name for name in expected if name.startswith(module)]
        if not any(expected[name] in tensors for name in names):
            expected = {name: theirs for name, theirs in expected.items() if name not in names}
    fresh_linear = _differ(config, stored, "outputs", "task", "pooling", "pooler")
    _refuse_problems(checkpoint, held, expected, shapes, tensors, fresh_linear)
    return {name: theirs for name, theirs in expected.items() if _is_used(config, name, fresh_linear)}


def _differ(a: ModelConfig, b: ModelConfig, *names: str) -> bool:
    return any(getattr(a, name) != getattr(b, name) for name in names)


def _is_used(config: ModelConfig, name: str, fresh_linear: bool) -> bool:
    if name.startswith("exit."):
        return name.removeprefix("exit.") in exit_parameters(config) and not (
            fresh_linear and name.startswith("exit.linear.")
        )
    if name.endswith(".scale"):
        name = name.removesuffix("scale") + "weight"
    return name in layout(config)  # not so: blocks above the depth, the output table of a classifier


def _refuse_problems(
    checkpoint: Checkpoint,
    held: ModelConfig,
    expected: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, StoredTensor],
    fresh_linear: bool,
) -> None:
    problems = [
        f"{theirs} of shape {shapes[name]} is missing" for name, theirs in expected.items() if theirs not in tensors
    ]
    for name, theirs in expected.items():
        found = tensors.get(theirs)
        unused = name.startswith("exit.linear.") and fresh_linear
        if found is not None and found.shape != shapes[name] and not unused:
            problems.append(f"{found.name} has shape {found.shape}, config.json says {shapes[name]}")
    known = set(expected.values()) | _unused_heads(held)
    extra = [t.name for name, t in tensors.items() if name not in known and not is_ignored(checkpoint.kind, name)]
    problems += [f"{name} does not belong to a {checkpoint.kind} of {held.depth} blocks" for name in sorted(extra)]
    if problems:
        more = f"; and {len(problems) - 6} more" if len(problems) > 6 else ""
        raise CheckpointError(f"{checkpoint.path} does not fit its config.json: {'; '.join(problems[:6])}{more}")


def _unused_heads(held: ModelConfig) -> set[str]:
    """A tied language model may carry its table twice."""
    return {"lm_head.weight"} if held.family == "llama" and held.tied else set()


def _shape(config: ModelConfig, name: str, offset: int) -> tuple[int, ...]:
    if name.endswith(".scale"):
        return (config.dim,)
    if name == "embed.positions" and offset:
        return (config.max_tokens + offset, config.dim)
    if name.startswith("exit."):
        return exit_parameters(config)[name.removeprefix("exit.")].shape
    return layout(config)[name].shape

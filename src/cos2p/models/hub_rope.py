"""Rotary positions in a `config.json`: `rope_parameters` (transformers 5), `rope_theta` and `rope_scaling` (before)."""

from __future__ import annotations

from typing import Any

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig

_LLAMA3 = {"rope_low": "low_freq_factor", "rope_high": "high_freq_factor"}
_LLAMA3 |= {"rope_original": "original_max_position_embeddings"}
_NEEDED = {"default": {}, "linear": {"rope_factor": "factor"}, "llama3": {"rope_factor": "factor", **_LLAMA3}}


def rope_fields(values: dict[str, Any], where: str) -> dict[str, Any]:
    """As fields of a `ModelConfig`."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"{where}: rope_parameters is {rope!r}; it must be an object with rope_theta")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _NEEDED:
        raise CheckpointError(f"{where}: rotary scaling {kind!r} cannot be computed; only {', '.join(_NEEDED)} can")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(
            f"{where}: partial_rotary_factor is {rope['partial_rotary_factor']}; only 1 can be computed"
        )
    missing = [theirs for theirs in _NEEDED[kind].values() if theirs not in rope]
    if missing:
        raise CheckpointError(f"{where}: rotary scaling {kind!r} lacks {', '.join(missing)}")
    fields: dict[str, Any] = {"rope_theta": float(rope.get("rope_theta", values.get("rope_theta", 10000.0)))}
    if kind != "default":
        fields |= {"rope_scaling": kind} | {ours: rope[theirs] for ours, theirs in _NEEDED[kind].items()}
    return fields


def rope_values(config: ModelConfig) -> dict[str, Any]:
    """As fields of a `config.json`, for both generations of transformers."""
    kind = "default" if config.rope_scaling == "none" else config.rope_scaling
    rope = {"rope_type": kind, "rope_theta": config.rope_theta}
    rope |= {theirs: getattr(config, ours) for ours, theirs in _NEEDED[kind].items()}
    old = {} if kind == "default" else {"rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"}}
    return {"rope_parameters": rope, "rope_theta": config.rope_theta, **old}

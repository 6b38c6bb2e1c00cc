"""The frozen parts that a device makes of a checkpoint in its own files, as tasks would bring them.

A part is named by the hash of its bytes as they travel (`training.client_cache`). A device that names those of its own
files is not sent what it has; parts of another checkpoint have other names, and are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from cos2p.messages import Precision
from cos2p.models.config import ModelConfig
from cos2p.models.hub import pretrained_part
from cos2p.models.layout import Axis, Weights, layout
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.slicing import Slice, part_key, take
from cos2p.training.client_cache import part_name
from cos2p.training.embeddings import Embeddings, cut_tables
from cos2p.training.prefix import encode

Rows = tuple[int, ...] | None


def table_rows(config: ModelConfig, embeddings: Embeddings, rows: str) -> Rows:
    """The rows of the token tables that a device is given (see `training.embeddings`); None: all."""
    return cut_tables(SubmodelSpec.full(config), config, embeddings, rows).rows


def own_parts(folder: str | Path, config: ModelConfig, precision: Precision, rows: Rows) -> Iterator[Weights]:
    """One after the other: the checkpoint is never in memory as a whole."""
    for part in _parts(config):
        yield _made(folder, config, part, precision, rows)


def own_names(folder: str | Path, config: ModelConfig, precision: Precision, rows: Rows) -> Mapping[str, str]:
    """By part: its name."""
    return {
        part: _named(folder, config, part, precision, None if part.startswith("blocks.") else rows)
        for part in _parts(config)
    }


@lru_cache(maxsize=4096)
def _named(*of: Any) -> str:
    """The name of a block is the same for all devices."""
    return part_name(_made(*of))


def _parts(config: ModelConfig) -> Iterator[str]:
    return iter(dict.fromkeys(part_key(name) for name in layout(config) if not name.startswith("exit")))


def _made(folder: str | Path, config: ModelConfig, part: str, precision: Precision, rows: Rows) -> Weights:
    cuts: dict[str, Slice | None] = {}
    for name, parameter in layout(config).items():
        if name.startswith(part):
            by_row = rows is not None and parameter.axes[0] is Axis.ROW
            cuts[name] = (0, torch.tensor(rows, dtype=torch.int64)) if by_row else None
    return encode(take(pretrained_part(folder, config, part), cuts), precision)

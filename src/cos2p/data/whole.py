"""All samples of one file or folder, labelled by the classes of a model that exists already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cos2p.data.config import SOURCES, DataConfig
from cos2p.data.examples import Examples
from cos2p.data.load import examples_at, reader_of
from cos2p.data.raw import Raw
from cos2p.data.select import IntArray
from cos2p.data.survey import unreadable
from cos2p.errors import DataError

_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".npz": "npz", ".txt": "text",
}  # fmt: skip


def source_of(path: str) -> str:
    """Which `data.source` reads a file of this name; empty if the name does not say so."""
    name = path.removesuffix(".gz")
    return next((source for suffix, source in _SUFFIXES.items() if name.lower().endswith(suffix)), "")


def load_whole(config: DataConfig, names: Sequence[str], split: str = "") -> Examples:
    """The samples of `config`, none set aside; label i is class `names[i]`. Of several splits the one asked for."""
    if config.source not in SOURCES or config.source == "bundle":
        raise DataError(f"data.source {config.source!r} gives whole data sets only; name a file or a folder")
    splits = reader_of(config)(config).named()
    if split and split not in splits and len(splits) > 1:
        raise DataError(f"{config.path} has no split {split!r}; it has {', '.join(splits)}")
    raw = splits.get(split, splits["train"])
    if raw.count == 0:
        raise DataError(f"{raw.where} holds no samples")
    labels = None if config.task == "language-modeling" else known_labels(raw, names)
    bad: list[tuple[str, str]] = []
    everything = np.arange(raw.count, dtype=np.int64)
    examples = examples_at(raw, everything, labels, tuple(names), config, config.cache, bad, None)
    if bad and not config.skip_bad:
        raise unreadable(bad, raw.count)
    return examples


def known_labels(raw: Raw, names: Sequence[str]) -> IntArray:
    """Each label as the number of the class of that name; numbers, where no name fits, count the classes from 0."""
    stored: Sequence[Any] = raw.labels if raw.labels is not None else ()
    if len(stored) != raw.count:
        raise DataError(f"{raw.where} has no labels; name their column with --label-column")
    if raw.class_names is not None:
        stored = [raw.class_names[int(label)] for label in stored]
    number = {name: k for k, name in enumerate(names)}
    called = [str(label) for label in stored]
    if set(called) <= number.keys():
        return np.asarray([number[label] for label in called], dtype=np.int64)
    if all(label.isdigit() and int(label) < len(names) for label in called):
        return np.asarray([int(label) for label in called], dtype=np.int64)
    row, wrong = next((i, label) for i, label in enumerate(called) if label not in number)
    some = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    raise DataError(f"{raw.where}: sample {row} has the label {wrong!r}; the model's classes are {some}")

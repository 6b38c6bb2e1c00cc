"""A split before anything costly is done: labels and groups are known, samples are read when they are chosen.

So 50,000 JPEGs are not decoded when a run needs 3,000 of them. Labels as stored (integers, strings of digits, names)
become classes 0 .. K-1 with their names.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cos2p.data import paths
from cos2p.data.config import DataConfig
from cos2p.data.lazy import Encoded
from cos2p.data.ragged import Tokens
from cos2p.data.select import Groups, IntArray
from cos2p.errors import DataError


def row_words(where: str, row: int) -> str:
    """The line of a text file where the row begins, as an editor counts; else the row, from 0."""
    file = Path(where.removesuffix(".gz"))
    if file.suffix not in (".csv", ".tsv", ".jsonl") or not Path(where).is_file():
        return f"row {row}"
    with (
        suppress(OSError, ValueError, csv.Error),
        (gzip.open if where.endswith(".gz") else open)(where, "rt", encoding="utf-8-sig", newline="") as lines,
    ):
        table, begins = file.suffix != ".jsonl", 1
        reader = (
            csv.reader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")
            if table
            else csv.reader(lines, quoting=csv.QUOTE_NONE)
        )
        left = row + table  # the header
        for record in reader:
            if record and not left:
                return f"line {begins}"
            left, begins = left - bool(record), reader.line_num + 1
    return f"row {row}"


@dataclass(frozen=True, eq=False)
class Raw:
    """One split as a source offers it. Exactly one of `images`, `encoded`, `texts`, `chats` and `tokens` is set."""

    where: str
    """File or folder, for messages."""
    count: int
    labels: Sequence[Any] | None
    """One per sample, as stored: integers, strings of digits, or names. None: there are no labels."""
    images: Callable[[IntArray], torch.Tensor] | None = None
    """Reads the images at these indices: (n, C, H, W), uint8 or float32."""
    encoded: Callable[[IntArray], Encoded] | None = None
    """The images at these indices, ascending, as they are stored."""
    texts: Callable[[IntArray], list[str]] | None = None
    answers: Callable[[IntArray], list[str]] | None = None
    """The right answer to each text, if the source says so in words."""
    chats: Callable[[IntArray], list[Any]] | None = None
    """Lists of messages, as they are stored."""
    tokens: Tokens | None = None
    """All texts, where they had to be tokenised to know how many there are."""
    groups: Groups | None = None
    class_names: tuple[str, ...] | None = None
    """If the source states them; name i belongs to label i."""


@dataclass(frozen=True, eq=False)
class RawSplits:
    train: Raw
    validation: Raw | None = None
    test: Raw | None = None

    @classmethod
    def of(cls, config: DataConfig, split: Callable[[str], Raw]) -> RawSplits:
        """Those whose file or name the config gives, each read by `split`; training always."""
        return cls(split(config.train), *(split(name) if name else None for name in (config.validation, config.test)))

    def named(self) -> dict[str, Raw]:
        """The splits there are, training first."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: raw for name, raw in splits.items() if raw is not None}


# ---------------------------------------------------------------- labels


def encode_labels(splits: RawSplits, config: DataConfig) -> tuple[tuple[str, ...], dict[str, IntArray]]:
    """Class names, and the classes of every sample of every split.

    The training split says which classes there are, unless `data.classes` or the source does. Numbers of the test
    split are places in `data.test_classes`, where those are given; names are names everywhere.
    """
    own = config.classes if isinstance(config.classes, tuple) else _class_file(config)
    stated = own or splits.train.class_names
    labels = {name: _labels(raw, config) for name, raw in splits.named().items()}
    numbers = {name: _integers(values) for name, values in labels.items()}
    if (trained := numbers["train"]) is not None and all(values is not None for values in numbers.values()):
        names = stated or _numbered(trained, splits.train)
    else:
        names = stated or tuple(sorted(set(map(str, labels["train"]))))
        if not isinstance(config.classes, tuple):  # one split has names: what looks like numbers elsewhere are names
            numbers = dict.fromkeys(numbers)
    classes = {}
    for name, raw in splits.named().items():
        found = numbers[name]
        if found is None:
            classes[name] = _by_name(labels[name], names, raw)
            continue
        _check_range(found, names, raw)
        order = config.test_classes if name == "test" and config.test_classes else names
        classes[name] = np.asarray([names.index(own) for own in order], dtype=np.int64)[found]
    return names, classes


def _labels(raw: Raw, config: DataConfig) -> Sequence[Any]:
    if raw.labels is None:
        raise DataError(f"{raw.where} has no labels; name their column in data.label_column")
    for row, label in enumerate(raw.labels):
        if label is None or label == "" or label != label:
            raise DataError(
                f"{raw.where}: {row_words(raw.where, row)} has no label; fill in column {config.label_column!r}"
            )
    return raw.labels


def _integers(labels: Sequence[Any]) -> IntArray | None:
    """The labels as whole numbers, or None if one of them is not."""
    try:
        values = np.asarray([int(label) for label in labels], dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return None
    if any(isinstance(label, float) and label != int(label) for label in labels):
        return None
    return values


def _numbered(values: IntArray, raw: Raw) -> tuple[str, ...]:
    """Names for classes 0 .. the largest label."""
    if len(values) == 0:
        return ()
    highest, distinct = int(values.max()), len(np.unique(values))
    if values.min() >= 0 and highest + 1 > 2 * distinct + 1:
        raise DataError(
            f"{raw.where}: only {distinct} different labels up to {highest}; number the classes from 0, "
            f"or give all {highest + 1} names in data.classes"
        )
    return tuple(str(k) for k in range(highest + 1))


def _check_range(values: IntArray, names: tuple[str, ...], raw: Raw) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= len(names)))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{raw.where}: {row_words(raw.where, row)} has label {values[row]}, but the classes are 0 to "
            f"{len(names) - 1}; correct the label, or list all classes in data.classes"
        )


def _by_name(labels: Sequence[Any], names: tuple[str, ...], raw: Raw) -> IntArray:
    number = {name: k for k, name in enumerate(names)}
    codes = np.empty(len(labels), dtype=np.int64)
    for row, label in enumerate(labels):
        if str(label) not in number:
            some = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
            raise DataError(
                f"{raw.where}: {row_words(raw.where, row)} has label {str(label)!r}, which is none of the "
                f"{len(names)} classes ({some}); correct the label, or list all classes in data.classes"
            )
        codes[row] = number[str(label)]
    return codes


def _class_file(config: DataConfig) -> tuple[str, ...]:
    """One name per line; lines such as `3<tab>name` are read as label 3. Empty without a file."""
    if not config.classes:
        return ()
    file = paths.find(config.path, str(config.classes))
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as a list of class names ({error})") from error
    names = []
    for number, line in enumerate(line for line in lines if line.strip()):
        first, _, rest = line.partition("\t")
        names.append(rest.split("\t")[0].strip() if rest.strip() and first == str(number) else line.strip())
    if not names:
        raise DataError(f"{file} names no classes; write one name per line")
    return tuple(names)

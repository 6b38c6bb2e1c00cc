"""From a `DataConfig` to samples in memory: read labels, choose, then decode or tokenise what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from cos2p.data.arrays import read_digits, read_idx, read_npz
from cos2p.data.config import SOURCES, TABLES, DataConfig
from cos2p.data.examples import Bundle, Examples
from cos2p.data.folder import read_folder
from cos2p.data.lazy import LazyImages, left_out, open_images, unreadable
from cos2p.data.ragged import Tokens
from cos2p.data.raw import Raw, RawSplits, encode_labels, row_words
from cos2p.data.select import IntArray, split_off, stratified
from cos2p.data.text import choices, read_text, tokenize, tokenize_answers, tokenize_chats
from cos2p.data.tokenizers import check_fits, checkpoint_vocabulary, resolved
from cos2p.errors import DataError
from cos2p.extras import extra
from cos2p.seeding import numpy_rng


def load(config: DataConfig, seed: int, pretrained: str = "") -> Bundle:
    """The training, validation and test samples; the same for the same config and seed.

    Texts for a model that starts from the checkpoint `pretrained` are read by its tokenizer, unless the config names
    one, and all their tokens must be in its table.

    The test set is the source's own, or, if it has none, `test_fraction` of its samples. Of the training samples
    `train_samples` are drawn, and of these `validation_fraction` are set aside. Every draw keeps the classes in
    proportion. Raises `DataError`, with the thing and the way out named.
    """
    if config.source not in SOURCES or config.source == "bundle":
        from cos2p.data.own import load_registered, read_bundle

        return read_bundle(config) if config.source == "bundle" else load_registered(config, seed)
    is_text = config.is_text
    config = resolved(config, pretrained) if is_text else config
    if is_text and pretrained:
        check_fits(config, pretrained)
    splits = reader_of(config)(config)
    for raw in splits.named().values():
        if raw.count == 0:
            raise DataError(f"{raw.where} holds no samples")
    if config.has_labels:
        names, labels = encode_labels(splits, config)
        strata = labels
    else:
        names, labels = (), {}
        strata = {name: _group_codes(raw) for name, raw in splits.named().items()}
    chosen = _choose(splits, strata, config, seed)

    bad: list[tuple[str, str]] = []
    limit = checkpoint_vocabulary(pretrained) if pretrained and is_text else None
    count = sum(len(indices) for indices in chosen.values())

    def examples(split: str) -> Examples:
        # Without a split of its own, a set is a part of the training split.
        name = split if split in splits.named() else "train"
        room = config.cache * len(chosen[split]) // count
        return examples_at(splits.named()[name], chosen[split], labels.get(name), names, config, room, bad, limit)

    train, test = examples("train"), examples("test")
    validation = examples("validation")
    notes = _notes_on_bad(bad, config, count, left=min(len(train), len(test)))
    if len(validation) == 0:
        validation = train.subset(np.empty(0, dtype=np.int64))
    _check_shapes(train, {"validation": validation, "test": test})
    return Bundle(train=train, validation=validation, test=test, notes=notes)


def _notes_on_bad(bad: list[tuple[str, str]], config: DataConfig, count: int, left: int) -> tuple[str, ...]:
    """Nothing to say, a note, or the end, by what the recipe says of images that cannot be read."""
    if not bad:
        return ()
    if not config.skip_bad or left == 0:
        raise unreadable(bad, count)
    return (left_out(bad, count),)


def _check_shapes(train: Examples, others: dict[str, Examples]) -> None:
    for name, other in others.items():
        if other.inputs.shape[1:] != train.inputs.shape[1:]:
            raise DataError(
                f"{name} samples have the shape {tuple(other.inputs.shape[1:])}, training samples "
                f"{tuple(train.inputs.shape[1:])}; set data.image_size to bring all images to one size"
            )


def reader_of(config: DataConfig) -> Callable[[DataConfig], RawSplits]:
    """The format's reader. Tables are imported when needed: pyarrow takes its time."""
    if config.source in TABLES:
        extra("pyarrow", "tables", "Reading tables")
        from cos2p.data.tables import read_hub, read_tables  # slow to import

        return read_hub if config.source == "hub" else read_tables
    readers = {"digits": read_digits, "idx": read_idx, "npz": read_npz, "folder": read_folder, "text": read_text}
    return readers[config.source]


def _choose(splits: RawSplits, strata: dict[str, IntArray], config: DataConfig, seed: int) -> dict[str, IntArray]:
    """Indices of each set, into its own split or, if it has none, into the training split."""
    train = np.arange(splits.train.count, dtype=np.int64)
    if splits.test is None:
        count = round(config.test_fraction * len(train))
        if count == 0:
            raise DataError(
                f"{splits.train.where} has no test set, and data.test_fraction {config.test_fraction} of "
                f"{len(train)} samples is none; raise it, or name a test set in data.test"
            )
        train, test = split_off(strata["train"], count, numpy_rng(seed, "data", "test split"))
        test_strata = strata["train"]
    else:
        test = np.arange(splits.test.count, dtype=np.int64)
        test_strata = strata["test"]
    test = _sample(test, test_strata, config.test_samples, "test", seed)
    train = _sample(train, strata["train"], config.train_samples, "train", seed)
    if splits.validation is not None:
        validation = np.arange(splits.validation.count, dtype=np.int64)
    else:
        count = round(config.validation_fraction * len(train))
        rest, taken = split_off(strata["train"][train], count, numpy_rng(seed, "data", "validation split"))
        train, validation = train[rest], train[taken]
    if len(train) == 0:
        raise DataError(
            f"{splits.train.where}: nothing is left to train on; lower data.test_fraction or "
            f"data.validation_fraction, or use more samples"
        )
    return {"train": train, "validation": validation, "test": test}


def _sample(indices: IntArray, strata: IntArray, count: int, split: str, seed: int) -> IntArray:
    if count == 0:
        return indices
    if count > len(indices):
        raise DataError(
            f"data.{split}_samples asks for {count}, but there are {len(indices)} {split} samples; "
            f"ask for fewer, or 0 for all"
        )
    return indices[stratified(strata[indices], count, numpy_rng(seed, "data", f"{split} samples"))]


def examples_at(
    raw: Raw,
    indices: IntArray,
    labels: IntArray | None,
    names: tuple[str, ...],
    config: DataConfig,
    room: int,
    bad: list[tuple[str, str]],
    limit: int | None,
) -> Examples:
    """The samples at `indices`, without images that cannot be read; these are added to `bad`. Token ids must be
    below `limit`."""
    inputs: torch.Tensor | LazyImages | None = None
    if raw.encoded is not None:
        opened = open_images(raw.encoded(indices), config, room)
        bad += opened.bad
        inputs, indices = opened.images, indices[opened.good]
    elif raw.images is not None:
        inputs = raw.images(indices)
    common: dict[str, Any] = {
        "class_names": names if config.task == "classification" else (),
        "groups": None if raw.groups is None else raw.groups.subset(indices),
    }
    classes = None if labels is None else torch.from_numpy(labels[indices].copy())
    tokens = raw.tokens.subset(indices) if raw.tokens is not None else None
    if config.task == "instruction" and config.has_labels:
        common["choices"] = choices(names, config)
    if raw.chats is not None:
        tokens = tokenize_chats(raw.chats(indices), config, raw.where, indices)
    elif raw.texts is not None and config.task == "instruction":
        answers = raw.answers(indices) if raw.answers else [names[i] for i in (classes if classes is not None else ())]
        tokens = tokenize_answers(raw.texts(indices), answers, config)
    elif raw.texts is not None:
        tokens = tokenize(raw.texts(indices), config)
    if tokens is not None:
        _check_lengths(tokens, raw, indices, 1 if config.task == "classification" else 2)
        _check_ids(tokens, raw, indices, limit)
        return Examples(
            inputs=tokens.ids,
            labels=torch.empty((len(indices), 0), dtype=torch.int64) if classes is None else classes,
            pad_id=tokens.ids.fill,
            vocabulary=tokens.vocabulary,
            **common,
        )
    if inputs is None or classes is None:
        raise DataError(f"{raw.where} has neither texts nor labelled images")
    return Examples(inputs=inputs, labels=classes, **common)


def _check_lengths(tokens: Tokens, raw: Raw, indices: IntArray, least: int) -> None:
    """A text without tokens would make attention, or the loss, divide by zero."""
    short = (tokens.ids.lengths < least).nonzero()
    if len(short):
        row = int(indices[int(short[0])])
        raise DataError(
            f"{raw.where}: the text of {row_words(raw.where, row)} has fewer than {least} token(s); "
            "take it out of the data"
        )


def _check_ids(tokens: Tokens, raw: Raw, indices: IntArray, limit: int | None) -> None:
    if limit is None or tokens.vocabulary <= limit:
        return
    for rows in torch.arange(len(indices)).split(1024):
        highest = tokens.ids[rows].amax(1)
        if int(highest.max()) >= limit:
            at = int(rows[0]) + int(highest.argmax())
            raise DataError(
                f"{raw.where}: the text of {row_words(raw.where, int(indices[at]))} has the token "
                f"{int(highest.max())}, but the checkpoint's "
                f"table ends at {limit - 1}; take the tokenizer that the checkpoint was trained with (data.tokenizer)"
            )


def _group_codes(raw: Raw) -> IntArray:
    if raw.groups is None:
        return np.zeros(raw.count, dtype=np.int64)
    return raw.groups.codes


# ---------------------------------------------------------------- all samples, for a model that exists already

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
    if not names and config.task == "instruction" and raw.labels is not None:
        names = sorted({str(label) for label in raw.labels})
    labels = known_labels(raw, names) if config.has_labels else None
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

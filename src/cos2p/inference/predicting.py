"""Labels with probabilities for images or texts out of files, tables, folders and standard input.

A language model gives the tokens that may come next.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cos2p.data.config import DataConfig
from cos2p.data.folder import is_image_name
from cos2p.data.images import BadImage, Content, decode_many
from cos2p.data.load import reader_of, source_of
from cos2p.errors import DataError
from cos2p.inference.sources import Trained

STDIN = "-"


@dataclass(frozen=True)
class Item:
    name: str
    content: Content | str
    """An image as it is stored, or a text."""


@dataclass(frozen=True)
class Prediction:
    name: str
    answers: tuple[tuple[str, float], ...] = ()
    """Labels (of a language model: next tokens) with their probabilities, the likeliest first."""
    error: str = ""
    """Why there is no answer."""


def predict(trained: Trained, items: Sequence[Item], top: int = 1, batch: int = 32) -> Iterator[Prediction]:
    """One for each item, in order; what cannot be read has an error in place of answers, and the rest goes on."""
    for start in range(0, len(items), batch):
        part = items[start : start + batch]
        yield from _texts(trained, part, top) if trained.is_text else _images(trained, part, top)


def _images(trained: Trained, items: Sequence[Item], top: int) -> Iterator[Prediction]:
    contents: list[tuple[str, Content]] = []
    for item in items:
        assert not isinstance(item.content, str)
        contents.append((item.name, item.content))
    pixels = [decoded for _, decoded in decode_many(contents, trained.data)]
    good = [torch.tensor(image) for image in pixels if not isinstance(image, BadImage)]
    answers = iter(_answers(trained, trained.outputs(trained.data.normalize(torch.stack(good))), top) if good else [])
    for item, image in zip(items, pixels, strict=True):
        yield (
            Prediction(item.name, error=image.reason)
            if isinstance(image, BadImage)
            else Prediction(item.name, next(answers))
        )


def _texts(trained: Trained, items: Sequence[Item], top: int) -> Iterator[Prediction]:
    texts = [str(item.content) for item in items]
    ids = trained.encoder.encode(texts)
    ids = [_open_end(row, trained) for row in ids]
    trained.check_tokens(token for row in ids for token in row)
    longest = max(map(len, ids))
    padded = torch.tensor([row + [trained.config.pad_token] * (longest - len(row)) for row in ids])
    outputs = trained.outputs(padded)
    if trained.generates:
        outputs = outputs[torch.arange(len(ids)), torch.tensor([len(row) - 1 for row in ids])]
    for item, answers in zip(items, _answers(trained, outputs, top), strict=True):
        yield Prediction(item.name, answers)


def _open_end(ids: list[int], trained: Trained) -> list[int]:
    """A language model goes on with a text: the mark of its end is taken off."""
    after = list(trained.encoder.around[1])
    return ids[: -len(after)] if trained.generates and after and ids[-len(after) :] == after else ids


def _answers(trained: Trained, outputs_BC: Tensor, top: int) -> list[tuple[tuple[str, float], ...]]:
    shares = outputs_BC.softmax(-1)
    values, places = shares.topk(min(top, shares.shape[1]), dim=1)
    return [
        tuple((_label(trained, place), share) for share, place in zip(*row, strict=True))
        for row in zip(values.tolist(), places.tolist(), strict=True)
    ]


def _label(trained: Trained, number: int) -> str:
    if trained.generates:
        return trained.encoder.decode([number])
    return trained.classes[number] if number < len(trained.classes) else str(number)


# ---------------------------------------------------------------- inputs


def gather(inputs: Iterable[str], texts: Iterable[str], data: DataConfig, is_text: bool) -> list[Item]:
    """Every single input, in the order given. DataError if one cannot be, or there is none."""
    items = [Item(f"text {number}", text) for number, text in enumerate(texts, 1)]
    if items and not is_text:
        raise DataError("the model takes images; --text is for models that read texts")
    for name in inputs:
        items += _of(name, data, is_text)
    if not items:
        raise DataError("nothing to predict: name images, text files, tables or folders" + (" (or --text)" * is_text))
    return items


def _of(name: str, data: DataConfig, is_text: bool) -> Iterator[Item]:
    path = Path(name).expanduser()
    if name == STDIN:
        yield from _lines("line", sys.stdin.read()) if is_text else [Item("standard input", sys.stdin.buffer.read())]
    elif os.path.isdir(path):  # noqa: PTH112 - a text in place of a name is no file, however long
        yield from _in_folder(path, is_text)
    elif not os.path.isfile(path):  # noqa: PTH113
        hint = "; a text itself is given by --text" if is_text else ""
        raise DataError(f"there is no file {name}{hint}")
    elif source_of(name) in ("csv", "jsonl", "parquet"):
        yield from _rows(path, data, is_text)
    elif is_text:
        yield from _lines(f"{name}:", _read(path))
    else:
        yield Item(name, path)


def _in_folder(folder: Path, is_text: bool) -> Iterator[Item]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    chosen = [file for file in files if (file.suffix == ".txt" if is_text else is_image_name(file.name))]
    if not chosen:
        raise DataError(f"{folder} holds no {'.txt files' if is_text else 'images'}")
    for file in chosen:
        if is_text:
            yield from _lines(f"{file}:", _read(file))
        else:
            yield Item(str(file), file)


def _rows(file: Path, data: DataConfig, is_text: bool) -> Iterator[Item]:
    changes = {"source": source_of(file.name), "path": str(file.parent), "train": file.name, "group_column": ""}
    column = {"text_column": data.text_column or "text"} if is_text else {"text_column": ""}
    # Labels are not needed, and nothing but them depends on the task.
    table = data.model_copy(update={**changes, **column, "validation": "", "test": "", "task": "language-modeling"})
    try:
        raw = reader_of(table)(table).train
    except DataError as error:  # whoever predicts has options, and no recipe to set fields of
        wrong = "text" if is_text else "image"
        raise DataError(str(error).replace(f"set data.{wrong}_column", f"say which with --{wrong}-column")) from None
    everything = np.arange(raw.count, dtype=np.int64)
    if raw.texts is not None:
        for row, text in enumerate(raw.texts(everything)):
            yield Item(f"{file} row {row}", text)
    elif raw.encoded is not None:
        for row, (_, content) in enumerate(raw.encoded(everything)):
            yield Item(f"{file} row {row}", content)


def _lines(name: str, text: str) -> Iterator[Item]:
    """One text a line; empty lines are none."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield Item(f"{name}{number}" if name.endswith(":") else f"{name} {number}", line)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text in UTF-8 ({error})") from None

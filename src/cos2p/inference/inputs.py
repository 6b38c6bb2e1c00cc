"""What is to be predicted: images or texts out of files, tables, folders and standard input, each with a name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cos2p.data.config import DataConfig
from cos2p.data.folder import is_image_name
from cos2p.data.images import Content
from cos2p.data.load import reader_of
from cos2p.data.whole import source_of
from cos2p.errors import DataError

STDIN = "-"


@dataclass(frozen=True)
class Item:
    name: str
    content: Content | str
    """An image as it is stored, or a text."""


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
    elif path.is_dir():
        yield from _in_folder(path, is_text)
    elif not path.is_file():
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

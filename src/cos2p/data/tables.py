"""Tables with images or texts, all as Arrow tables: Parquet, CSV, JSON lines, and data sets of the Hugging Face hub."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from cos2p.data import paths
from cos2p.data.config import DataConfig
from cos2p.data.images import BadImage, Content
from cos2p.data.lazy import Encoded, ImageCells
from cos2p.data.paths import key_of
from cos2p.data.raw import Raw, RawSplits, row_words
from cos2p.data.select import Groups, IntArray
from cos2p.errors import DataError, MissingExtra, OwnerRefused
from cos2p.units import format_bytes

_CSV_BLOCK = 1 << 24
"""A CSV row must fit into one block: images in base64 are long."""
_ROWS = 256
"""Rows of a Parquet column of images that are in memory at a time."""


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns that are read one at a time, when they are needed."""

    where: str
    columns: tuple[str, ...]
    read: Callable[[list[str]], pa.Table]
    folder: Path | None = None
    """Where image files named in the table are; None: there are none."""
    class_names: tuple[str, ...] | None = None
    stream: Callable[[str], Iterator[pa.Array]] | None = None
    """One column piece by piece, for columns that do not fit into memory; None: `read` is all there is."""
    identity: str = ""
    """Changes when the content does."""


def read_tables(config: DataConfig) -> RawSplits:
    """Parquet, CSV and JSON lines."""
    open_table = {"parquet": _parquet_table, "csv": _csv_table, "jsonl": _jsonl_table}[config.source]
    return RawSplits.of(
        config, lambda name: raw_from_table(open_table(paths.find_all(config.path, name), config), config)
    )


def raw_from_table(table: Table, config: DataConfig) -> Raw:
    """Labels and groups now; images or texts when they are asked for."""
    field = next((its for its in ("messages_column", "text_column") if getattr(config, its)), "image_column")
    content = getattr(config, field)
    light = {content: field} | ({config.label_column: "label_column"} if config.has_labels else {})
    light |= {name: its for its in ("answer_column", "group_column") if (name := getattr(config, its))}
    for name, its_field in light.items():
        if name not in table.columns:
            raise DataError(
                f"{table.where} has no column {name!r}; it has {', '.join(table.columns)}; set data.{its_field}"
            )
    first = table.read([name for name in light if name != content] or [content])
    labels = first.column(config.label_column).to_pylist() if config.has_labels else None
    groups = _groups(first, table, config) if config.group_column else None

    def texts_of(column: str, field: str) -> Callable[[IntArray], list[str]]:
        def texts(indices: IntArray) -> list[str]:
            rows = table.read([column]).column(column).take(pa.array(indices)).to_pylist()
            return [_text(table, column, field, int(i), value) for i, value in zip(indices, rows, strict=True)]

        return texts

    def chats(indices: IntArray) -> list[Any]:
        rows: list[Any] = table.read([content]).column(content).take(pa.array(indices)).to_pylist()
        return rows

    def encoded(indices: IntArray) -> Encoded:
        def cells(rows: IntArray) -> Iterator[Content]:
            return image_cells(table, content, rows)

        return ImageCells(table.where, indices, cells, f"{table.identity} {content}")

    return Raw(
        where=table.where,
        count=first.num_rows,
        labels=labels,
        groups=groups,
        texts=texts_of(content, "text_column") if config.text_column else None,
        answers=texts_of(config.answer_column, "answer_column") if config.answer_column else None,
        chats=chats if config.messages_column else None,
        encoded=encoded if field == "image_column" else None,
        class_names=table.class_names,
    )


def _groups(rows: pa.Table, table: Table, config: DataConfig) -> Groups:
    values = rows.column(config.group_column).to_pylist()
    for row, value in enumerate(values):
        if value is None:
            raise DataError(
                f"{table.where}: {row_words(table.where, row)} has no value in {config.group_column!r}, its group"
            )
    return Groups.of([str(value) for value in values])


def _text(table: Table, column: str, field: str, row: int, value: Any) -> str:
    if not isinstance(value, str):
        what = "is empty" if value is None else f"holds {type(value).__name__}, not a text"
        raise DataError(f"{table.where}: column {column!r} {what} in {row_words(table.where, row)}; check data.{field}")
    if not value.strip():
        raise DataError(
            f"{table.where}: the text of {row_words(table.where, row)} is empty; "
            f"fill in column {column!r}, or delete the row"
        )
    return value


# ---------------------------------------------------------------- files


@contextmanager
def _read_as(what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        way = "; save it as UTF-8" if "UTF8" in str(error) else ""
        raise DataError(f"{what} ({error}){way}") from error


def _refuse_larger_than_memory(file: Path, columns: list[str]) -> None:
    """A column of texts may say one long text a million times in a few bytes: its size is counted before it is made."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    plain = {field.name for field in pa.parquet.read_schema(file) if not pa.types.is_nested(field.type)}
    columns = [name for name in columns if name in plain]
    with pa.parquet.ParquetFile(file, read_dictionary=columns) as opened:
        kinds = {name: opened.schema_arrow.field(name).type for name in columns}
        for name in (name for name, kind in kinds.items() if pa.types.is_dictionary(kind)):
            size = 0
            for batch in opened.iter_batches(65_536, columns=[name]):
                coded = batch.column(0)
                lengths = pa.compute.binary_length(coded.dictionary)
                size += pa.compute.sum(lengths.take(coded.indices).cast("int64")).as_py() or 0
                if size > memory:
                    raise DataError(
                        f"{file}: column {name!r} is larger than this machine's {format_bytes(memory)}, though the "
                        f"file has {format_bytes(file.stat().st_size)}; it is not read"
                    )


def _parquet_table(files: list[Path], config: DataConfig) -> Table:
    where = paths.listed(files)
    with _read_as(f"{files[0]} cannot be read as Parquet"):
        schema = pa.parquet.read_schema(files[0])

    def read(columns: list[str]) -> pa.Table:
        with _read_as(f"{where}: columns {', '.join(columns)} cannot be read"):
            for file in files:
                _refuse_larger_than_memory(file, columns)
            return pa.concat_tables([pa.parquet.read_table(file, columns=columns) for file in files])

    def stream(column: str) -> Iterator[pa.Array]:
        with _read_as(f"{where}: column {column} cannot be read"):
            for file in files:
                with pa.parquet.ParquetFile(file) as opened:
                    for batch in opened.iter_batches(batch_size=_ROWS, columns=[column]):
                        yield batch.column(0)

    names = _stated_classes(schema.metadata or {}, config.label_column)
    return Table(where, tuple(schema.names), read, files[0].parent, names, stream=stream, identity=_identity(files))


_DEEPEST = 64
"""Nesting of JSON: arrow's reader overflows the stack, and ends the process, at some thousands."""
_NESTING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]')


def _refuse_deep(file: Path) -> None:
    with pa.input_stream(file, compression="detect") as stream:
        rest, number = b"", 0
        while block := stream.read(_CSV_BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                number += 1
                if line.count(b"[") + line.count(b"{") > _DEEPEST and _depth(line) > _DEEPEST:
                    raise DataError(f"{file}, line {number}: JSON that is nested deeper than {_DEEPEST} is not read")
        if _depth(rest) > _DEEPEST:
            raise DataError(f"{file}, line {number + 1}: JSON that is nested deeper than {_DEEPEST} is not read")


def _depth(line: bytes) -> int:
    deepest = depth = 0
    for token in _NESTING.finditer(line):
        first = line[token.start()]
        depth += (first in b"[{") - (first in b"]}")
        deepest = max(deepest, depth)
    return deepest


def _jsonl_table(files: list[Path], config: DataConfig) -> Table:
    options = pa.json.ReadOptions(block_size=_CSV_BLOCK)

    def read_file(file: Path) -> pa.Table:
        _refuse_deep(file)
        with pa.input_stream(file, compression="detect") as stream:
            return pa.json.read_json(stream, read_options=options)

    where = paths.listed(files)
    with _read_as(f"{where} cannot be read as JSON lines, an object a line"):
        table = pa.concat_tables([read_file(file) for file in files], promote_options="permissive")
    return Table(where, tuple(table.column_names), table.select, files[0].parent, identity=_identity(files))


def _separator(file: Path) -> str:
    """The mark between columns: a tab, a comma or, as spreadsheets of many countries write it, a semicolon."""
    try:
        with pa.input_stream(file, compression="detect") as stream:
            header = stream.read(_CSV_BLOCK).lstrip().split(b"\n", 1)[0]
    except (pa.ArrowException, OSError):
        return ","  # whoever reads the file will say what is wrong
    try:
        looks_like_json = isinstance(json.loads(header), dict)
    except ValueError:
        looks_like_json = False
    if looks_like_json:
        raise DataError(f"{file}: this looks like JSON lines; set data.source = 'jsonl'")
    return "\t" if ".tsv" in file.suffixes else max(",;\t", key=lambda mark: header.count(mark.encode()))


def _csv_table(files: list[Path], config: DataConfig) -> Table:
    parse = pa.csv.ParseOptions(delimiter=_separator(files[0]), newlines_in_values=True)
    block = pa.csv.ReadOptions(block_size=_CSV_BLOCK)

    def read_file(file: Path, columns: list[str]) -> pa.Table:
        # As strings, so that the text "null" stays a text and "007" keeps its zeros.
        types = {column: pa.string() for column in columns}
        convert = pa.csv.ConvertOptions(include_columns=columns, column_types=types, strings_can_be_null=False)
        return pa.csv.read_csv(file, read_options=block, parse_options=parse, convert_options=convert)

    def read(columns: list[str]) -> pa.Table:
        with _read_as(f"{paths.listed(files)} cannot be read as CSV"):
            return pa.concat_tables([read_file(file, columns) for file in files])

    with (
        _read_as(f"{files[0]} cannot be read as CSV with a header line"),
        pa.csv.open_csv(files[0], read_options=block, parse_options=parse) as reader,
    ):
        columns = tuple(reader.schema.names)
    return Table(paths.listed(files), columns, read, files[0].parent, identity=_identity(files))


def _stated_classes(metadata: dict[bytes, bytes], label_column: str) -> tuple[str, ...] | None:
    """Class names that a Parquet file carries: as `datasets` writes them, or a plain list named `classes`."""
    if b"huggingface" in metadata:
        features = json.loads(metadata[b"huggingface"]).get("info", {}).get("features", {})
        names = features.get(label_column, {}).get("names")
        return tuple(names) if names else None
    if b"classes" in metadata:
        return tuple(metadata[b"classes"].decode().split(","))
    return None


def _identity(files: list[Path]) -> str:
    stamps = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return key_of(json.dumps(stamps))


# ---------------------------------------------------------------- the Hugging Face hub

_VALIDATION_NAMES = ("validation", "valid", "val", "dev")


def read_hub(config: DataConfig) -> RawSplits:
    if paths.is_confined():
        message = "data.source 'hub' fetches from the network; this device reads its own folder alone"
        raise OwnerRefused(message, public=message)
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra(
            f"data set {config.path!r} from the hub needs the datasets library: pip install cos2p[hub]"
        ) from error
    try:
        path, _, name = config.path.partition(":")
        loaded = datasets.load_dataset(path, name=name or None)
    except Exception as error:  # network, unknown name, gated, broken script: whatever it was, say its words
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"data set {config.path!r} cannot be fetched from the hub ({reason}); "
            f"check data.path (NAME, or NAME:CONFIGURATION) and the network"
        ) from error
    train = config.train or "train"
    test = config.test or ("test" if "test" in loaded else "")
    usual = next((name for name in _VALIDATION_NAMES if name in loaded and name != test), "")
    validation = config.validation or usual

    def split(name: str) -> Raw:
        if name not in loaded:
            raise DataError(f"data set {config.path!r} has no split {name!r}; it has {', '.join(loaded)}")
        return raw_from_table(_table(loaded[name], f"{config.path} ({name})", datasets, config), config)

    return RawSplits(split(train), *(split(name) if name else None for name in (validation, test)))


def _table(dataset: Any, where: str, datasets: Any, config: DataConfig) -> Table:
    columns = tuple(dataset.column_names)
    if not config.text_column and config.image_column in columns:
        # Encoded bytes as they are stored: only the chosen ones will be decoded.
        dataset = dataset.cast_column(config.image_column, datasets.Image(decode=False))

    def read(names: list[str]) -> pa.Table:
        return dataset.select_columns(names).with_format("arrow")[:]

    label = dataset.features.get(config.label_column)
    names = getattr(label, "names", None)
    # A fingerprint says what the rows were made from; without one nothing of them is found again.
    identity = getattr(dataset, "_fingerprint", None) or uuid.uuid4().hex
    return Table(where, columns, read, class_names=tuple(names) if names else None, identity=f"{where} {identity}")


# ---------------------------------------------------------------- cells of an image column


def image_cells(table: Table, column: str, rows: IntArray) -> Iterator[Content]:
    """The encoded images of these rows, ascending; a file name becomes its file."""
    start = 0
    for piece in _pieces(table, column):
        first, last = np.searchsorted(rows, (start, start + len(piece)))
        for row in rows[first:last].tolist():
            yield _image(table, f"{table.where}, row {row}", piece[row - start].as_py())
        start += len(piece)


def _pieces(table: Table, column: str) -> Iterator[pa.Array]:
    if table.stream is not None:
        return table.stream(column)
    chunks: list[pa.Array] = table.read([column]).column(column).chunks
    return iter(chunks)


def _image(table: Table, name: str, value: Any) -> Content:
    if isinstance(value, dict):  # the hub's way: {"bytes": ..., "path": ...}
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes) and value:
        return value
    if isinstance(value, str) and value:
        return _file_or_base64(table, name, value)
    if value in (None, "", b""):
        return BadImage(name, "it is empty; encoded bytes or a file name were expected")
    raise DataError(f"{name}: the image holds {type(value).__name__}; encoded bytes or a file name were expected")


def _file_or_base64(table: Table, name: str, value: str) -> Content:
    # File names are short; asking the system about a megabyte of base64 is an error of its own.
    if table.folder is not None and len(value) < 1024 and (table.folder / value).is_file():
        return paths.opened(table.folder / value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        shown = value if len(value) < 80 else value[:77] + "..."
        return BadImage(name, f"{shown!r} is neither a file in {table.folder} nor an image in base64")

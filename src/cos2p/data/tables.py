"""Tables with images or texts: Parquet, CSV, JSON lines, and what the hub hands over, all as Arrow tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from cos2p.data import paths
from cos2p.data.cachedir import key_of
from cos2p.data.cells import Table, image_cells
from cos2p.data.config import DataConfig
from cos2p.data.encoded import Encoded, ImageCells
from cos2p.data.groups import Groups
from cos2p.data.images import Content
from cos2p.data.raw import Raw, RawSplits
from cos2p.data.select import IntArray
from cos2p.errors import DataError

_CSV_BLOCK = 1 << 24
"""A CSV row must fit into one block: images in base64 are long."""
_ROWS = 256
"""Rows of a Parquet column of images that are in memory at a time."""


def read_parquet(config: DataConfig) -> RawSplits:
    return _splits(_parquet_table, config)


def read_csv(config: DataConfig) -> RawSplits:
    return _splits(_csv_table, config)


def read_jsonl(config: DataConfig) -> RawSplits:
    return _splits(_jsonl_table, config)


def raw_from_table(table: Table, config: DataConfig) -> Raw:
    """Labels and groups now; images or texts when they are asked for."""
    content = config.text_column or config.image_column
    field = "text_column" if config.text_column else "image_column"
    light = {content: field}
    if config.has_labels:
        light[config.label_column] = "label_column"
    if config.answer_column:
        light[config.answer_column] = "answer_column"
    if config.group_column:
        light[config.group_column] = "group_column"
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
        encoded=None if config.text_column else encoded,
        class_names=table.class_names,
    )


def _splits(open_table: Callable[[list[Path], DataConfig], Table], config: DataConfig) -> RawSplits:
    def split(name: str) -> Raw:
        return raw_from_table(open_table(paths.find_all(config.path, name), config), config)

    return RawSplits(
        train=split(config.train),
        validation=split(config.validation) if config.validation else None,
        test=split(config.test) if config.test else None,
    )


def _parquet_table(files: list[Path], config: DataConfig) -> Table:
    try:
        schema = pa.parquet.read_schema(files[0])
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{files[0]} cannot be read as Parquet ({error})") from error

    def read(columns: list[str]) -> pa.Table:
        try:
            return pa.concat_tables([pa.parquet.read_table(file, columns=columns) for file in files])
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{_where(files)}: columns {', '.join(columns)} cannot be read ({error})") from error

    def stream(column: str) -> Iterator[pa.Array]:
        try:
            for file in files:
                with pa.parquet.ParquetFile(file) as opened:
                    for batch in opened.iter_batches(batch_size=_ROWS, columns=[column]):
                        yield batch.column(0)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{_where(files)}: column {column} cannot be read ({error})") from error

    names = _stated_classes(schema.metadata or {}, config.label_column)
    return Table(
        _where(files), tuple(schema.names), read, files[0].parent, names, stream=stream, identity=_identity(files)
    )


def _jsonl_table(files: list[Path], config: DataConfig) -> Table:
    options = pa.json.ReadOptions(block_size=_CSV_BLOCK)

    def read_file(file: Path) -> pa.Table:
        with pa.input_stream(file, compression="detect") as stream:
            return pa.json.read_json(stream, read_options=options)

    try:
        table = pa.concat_tables([read_file(file) for file in files], promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{_where(files)} cannot be read as JSON lines, an object a line ({error})") from error
    identity = _identity(files)
    return Table(_where(files), tuple(table.column_names), table.select, files[0].parent, identity=identity)


def _refuse_json(file: Path) -> None:
    """JSON lines pass for a CSV file with odd column names; better to say so."""
    try:
        with pa.input_stream(file, compression="detect") as stream:
            start = stream.read(_CSV_BLOCK).lstrip().split(b"\n", 1)[0]
    except (pa.ArrowException, OSError):
        return  # whoever reads the file will say what is wrong
    try:
        looks_like_json = isinstance(json.loads(start), dict)
    except ValueError:
        looks_like_json = False
    if looks_like_json:
        raise DataError(f"{file}: this looks like JSON lines; set data.source = 'jsonl'")


def _csv_table(files: list[Path], config: DataConfig) -> Table:
    _refuse_json(files[0])
    parse = pa.csv.ParseOptions(delimiter="\t" if ".tsv" in files[0].suffixes else ",", newlines_in_values=True)
    block = pa.csv.ReadOptions(block_size=_CSV_BLOCK)

    def read_file(file: Path, columns: list[str]) -> pa.Table:
        # As strings, so that the text "null" stays a text and "007" keeps its zeros.
        types = {column: pa.string() for column in columns}
        convert = pa.csv.ConvertOptions(include_columns=columns, column_types=types, strings_can_be_null=False)
        return pa.csv.read_csv(file, read_options=block, parse_options=parse, convert_options=convert)

    def read(columns: list[str]) -> pa.Table:
        try:
            return pa.concat_tables([read_file(file, columns) for file in files])
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{_where(files)} cannot be read as CSV ({error})") from error

    try:
        with pa.csv.open_csv(files[0], read_options=block, parse_options=parse) as reader:
            columns = tuple(reader.schema.names)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{files[0]} cannot be read as CSV with a header line ({error})") from error
    return Table(_where(files), columns, read, files[0].parent, identity=_identity(files))


def _stated_classes(metadata: dict[bytes, bytes], label_column: str) -> tuple[str, ...] | None:
    """Class names that a Parquet file carries: as `datasets` writes them, or a plain list named `classes`."""
    if b"huggingface" in metadata:
        features = json.loads(metadata[b"huggingface"]).get("info", {}).get("features", {})
        names = features.get(label_column, {}).get("names")
        return tuple(names) if names else None
    if b"classes" in metadata:
        return tuple(metadata[b"classes"].decode().split(","))
    return None


def _groups(rows: pa.Table, table: Table, config: DataConfig) -> Groups:
    values = rows.column(config.group_column).to_pylist()
    for row, value in enumerate(values):
        if value is None:
            raise DataError(f"{table.where}: row {row} has no value in {config.group_column!r}, its group")
    return Groups.of([str(value) for value in values])


def _text(table: Table, column: str, field: str, row: int, value: Any) -> str:
    if not isinstance(value, str):
        what = "is empty" if value is None else f"holds {type(value).__name__}, not a text"
        raise DataError(f"{table.where}: column {column!r} {what} in row {row}; check data.{field}")
    if not value.strip():
        raise DataError(f"{table.where}: the text of row {row} is empty; fill in column {column!r}, or delete the row")
    return value


def _where(files: list[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"


def _identity(files: list[Path]) -> str:
    stamps = [(str(file.absolute()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return key_of(json.dumps(stamps))

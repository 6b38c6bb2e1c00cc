"""A first recipe for one's own data, model and devices: it looks at all three and explains what it chose."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cos2p.data.config import DataConfig
from cos2p.data.load import reader_of, source_of
from cos2p.data.raw import Raw
from cos2p.data.text import tokenize_chats
from cos2p.data.tokenizers import make_encoder, resolved
from cos2p.devices.device import PRESETS
from cos2p.errors import ConfigError, DataError
from cos2p.models.hub import pretrained_config
from cos2p.models.hub_fit import DataFacts
from cos2p.models.sizes import SIZES
from cos2p.older_python import tomllib
from cos2p.recipe import Recipe
from cos2p.units import parse_bytes

_TEXT_COLUMNS = ("text", "sentence", "content", "review", "tweet", "question", "message", "utterance", "query", "title")
_CHAT_COLUMNS = ("messages", "conversations")
_LABEL_COLUMNS = ("label", "class", "category", "target", "intent", "sentiment", "y")

_TEMPLATE = """\
# Written by cos2p new. Check it with:  cos2p recipes validate {file}
name = {name}

[model]
{model}
[data]
{data}
[partition]
{partition}local_test = 0.2        # share of each device's samples that tests its own submodel

{devices}
[training]
epochs = 2              # passes over a device's samples in one task
lr = "auto"             # devices try a few rates and agree on one; or a number, such as 1e-3

[schedule]
rounds = {rounds}
mu = 0.5                # a round closes when this share of the devices has answered ...
t_clk = 10.0            # ... and so many seconds have passed

[method]
name = "cos2p"          # others: cos2p run {file} --method fedavg
{form}"""

_GROWING = """\
form = "growing"        # a fresh model learns block after block; "paper": windows roll over all of its blocks
"""

_BY_CLASS = """\
kind = "dirichlet"      # "iid": all devices alike
alpha = 1.5             # the smaller, the more unequal the devices' classes: 0.1 to 100
"""
_WITHOUT_CLASSES = 'kind = "iid"            # "natural": each file, as one author, to one device\n'
_TOKENS, _CHAT_TOKENS = 128, 2048
"""At most, of a text and of a chat."""
_LOOKED_AT = 2000
"""Texts whose tokens are counted."""
_TRAINED_SHARE = 0.6
"""The share of all samples that devices train on when validation and test parts are taken off."""


@dataclass(frozen=True)
class Draft:
    """A recipe as a text with comments, and what was seen in the data and the model."""

    text: str
    facts: tuple[str, ...]

    @property
    def recipe(self) -> Recipe:
        return Recipe.parse(tomllib.loads(self.text), "the new recipe")


def usual_model(data: str, text_column: str = "", label_column: str = "") -> str:
    """A named size that reads such data."""
    table = _table(data, text_column, label_column)
    if "task" in table:
        return "llama-nano"
    return "bert-small" if _is_text(table) else "vit-tiny"


def draft_recipe(
    data: str,
    model: str,
    devices: str,
    *,
    memory: str = "",
    name: str = "mine",
    file: str = "",
    text_column: str = "",
    label_column: str = "",
    tokenizer: str = "",
    image_size: int = 0,
    rounds: int = 20,
) -> Draft:
    """`devices` is a number, or presets with numbers such as `raspberry-pi-4:4,laptop:2`."""
    table = _table(data, text_column, label_column)
    if tokenizer:
        there = Path(tokenizer).expanduser()
        table["tokenizer"] = str(there.resolve()) if there.exists() else tokenizer
    chosen, inputs = _chosen_model(model, table, image_size)
    facts = []
    raw = None if table["source"] == "digits" else _raw(table | inputs)
    if raw is not None:
        facts.append(_samples(raw, table))
        if _is_text(table):
            tokens, fact = _tokens(raw, table, inputs["max_tokens"], chosen.get("pretrained", ""))
            inputs["max_tokens"] = tokens
            facts.append(fact)
    groups = [_group(part, memory) for part in devices.split(",")]
    number = sum(count for _, count in groups)
    batch = 16 if raw is None else _batch(raw.count, number)
    facts.append(f"{number} devices{f' of {memory} each' if memory else ''}, batch {batch}")
    text = _TEMPLATE.format(
        file=file or f"{name}.toml",
        name=json.dumps(name),
        model=_fields(chosen),
        data=_fields(table | inputs),
        partition=_BY_CLASS if "task" not in table else _WITHOUT_CLASSES,
        devices="\n".join(lines + f"batch = {batch}\n" for lines, _ in groups),
        rounds=rounds,
        form="" if "pretrained" in chosen or "task" in table else _GROWING,
    )
    return Draft(text, tuple(facts))


def _raw(table: dict[str, Any]) -> Raw:
    config = DataConfig.model_validate(table)
    return reader_of(config)(config).train


def _samples(raw: Raw, table: dict[str, Any]) -> str:
    kind = "texts" if _is_text(table) else "images"
    if raw.chats is not None:
        return f"{raw.where}: {raw.count:,} chats, all that the assistant says is learned"
    if raw.labels is None:
        return f"{raw.where}: {kind} without labels, the next token is predicted"
    if not raw.count:
        raise ConfigError(f"{raw.where} has no rows below its first line, which names the columns")
    classes = len(set(map(str, raw.labels)))
    if classes < 2:
        raise ConfigError(f"{raw.where} has one single class; a classifier needs two. Check the label column")
    column = table.get("label_column")
    if column and 2 * classes > raw.count:
        raise ConfigError(
            f"column {column!r} of {raw.where} has {classes:,} values in {raw.count:,} rows, too many for classes; "
            "say which column with --label-column"
        )
    columns = f" ({table['text_column']!r} and {column!r})" if column else ""
    return f"{raw.where}: {raw.count:,} {kind}, {classes:,} classes{columns}"


def _tokens(raw: Raw, table: dict[str, Any], limit: int, pretrained: str) -> tuple[int, str]:
    """As many tokens as 99 % of the texts have, rounded up to eight."""
    config = DataConfig.model_validate({**table, "max_tokens": limit})
    try:
        encoder = make_encoder(resolved(config, pretrained))
    except DataError as error:
        way = str(error).replace("name one in data.tokenizer", "name one with --tokenizer")
        raise ConfigError(f"the model's tokenizer: {way}") from None
    if raw.tokens is not None:
        return limit, f"texts are cut into rows of {limit} tokens"
    rows = np.unique(np.linspace(0, raw.count - 1, min(raw.count, _LOOKED_AT)).astype(np.int64))
    if raw.chats is not None:
        lengths = tokenize_chats(raw.chats(rows), resolved(config, pretrained), raw.where, rows).ids.lengths.tolist()
    else:
        assert raw.texts is not None
        lengths = [len(ids) for ids in encoder.encode(raw.texts(rows))]
    usual = int(np.quantile(lengths, 0.99, method="higher"))
    tokens = min(limit, max(8, 8 * math.ceil(usual / 8)))
    which = Path(given).name if (given := table.get("tokenizer")) else "the checkpoint's" if pretrained else "bytes"
    kind = "chats" if raw.chats else "texts"
    return tokens, f"99 % of the {kind} have at most {usual} tokens (tokenizer: {which}): max_tokens = {tokens}"


def _batch(samples: int, devices: int) -> int:
    """16, or fewer where a device has fewer samples to train on."""
    own = int(samples * _TRAINED_SHARE / devices)
    if own < 2:
        raise ConfigError(f"{samples} samples are too few for {devices} devices; take fewer devices")
    return min(16, own)


def _table(data: str, text_column: str, label_column: str) -> dict[str, Any]:
    """The `[data]` table for what lies at `data`."""
    if data == "digits":
        return {"source": "digits"}
    path = Path(data).expanduser()
    if not path.exists():
        raise ConfigError(f"there is no data at {data}; name a folder of class folders, or a file")
    if path.is_dir():
        plain = [file for file in path.iterdir() if file.suffix == ".txt"]
        is_plain = bool(plain) and not any(child.is_dir() for child in path.iterdir())
        tables = sorted(str(file) for file in path.iterdir() if source_of(file.name) in ("csv", "jsonl", "parquet"))
        if tables and not plain and not any(child.is_dir() for child in path.iterdir()):
            raise ConfigError(
                f"{data} is a folder of tables; name the one to train on: --data {shlex.quote(tables[0])}"
            )
        return _plain(path, "*.txt") if is_plain else {"source": "folder", "path": str(path.resolve())}
    source = source_of(data)
    if source == "text":
        return _plain(path.parent, path.name)
    if source not in ("csv", "jsonl", "parquet"):
        raise ConfigError(f"{data} is neither a folder nor a csv, tsv, jsonl, parquet or txt file")
    columns = _columns(path, source)
    files = {"source": source, "path": str(path.resolve().parent), "train": path.name, **_others(path)}
    chats = next((name for name in _CHAT_COLUMNS if name in columns), "")
    if chats and source != "csv" and not (text_column or label_column):
        return files | {"task": "instruction", "messages_column": chats}
    text = _column(text_column, columns, _TEXT_COLUMNS, "--text-column", data)
    label = _column(label_column, columns, _LABEL_COLUMNS, "--label-column", data)
    return files | {"text_column": text, "label_column": label}


def _others(train: Path) -> dict[str, str]:
    """Files next to train.csv that are called test.csv and val.csv, or the like."""
    if "train" not in train.name:
        return {}
    names = {"validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
    return {
        split: name
        for split, words in names.items()
        for word in reversed(words)
        if (train.parent / (name := train.name.replace("train", word))).is_file()
    }


def _plain(folder: Path, names: str) -> dict[str, Any]:
    """Texts without labels: the next token is predicted."""
    return {"source": "text", "path": str(folder.resolve()), "train": names, "task": "language-modeling"}


def _columns(path: Path, source: str) -> list[str]:
    probe = DataConfig(source=source, path=str(path.parent), train=path.name, text_column="\0", label_column="\0")
    try:
        reader_of(probe)(probe)
    except DataError as error:  # it names the columns there are
        said = str(error)
        if "; it has " not in said:
            raise
        return said.partition("; it has ")[2].rpartition("; set ")[0].split(", ")
    return []


def _column(given: str, columns: list[str], usual: tuple[str, ...], option: str, data: str) -> str:
    """The column that was given, or one that is called as such columns usually are."""
    known = {column.lower(): column for column in columns}
    found = given if given in columns else next((known[name] for name in usual if not given and name in known), None)
    if found is None:
        none = f"no column {given!r}, but " if given else ""
        raise ConfigError(
            f"{data} has {none}the columns {', '.join(columns)} (its first line); say which with {option}, "
            "or write a line of names above if that is no header"
        )
    return found


def _chosen_model(model: str, table: dict[str, Any], image_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `[model]` table, and how the data has to be brought to it. An error if the two cannot agree."""
    folder = Path(model).expanduser()
    is_text, digits = _is_text(table), table["source"] == "digits"
    if folder.is_dir():
        stored = pretrained_config(folder)
        tokens = min(_longest(table), stored.max_tokens) if is_text else None
        edge = None if is_text or digits else image_size or stored.image
        pretrained_config(
            folder,
            DataFacts("language-modeling" if "task" in table else "classification", max_tokens=tokens, image=edge),
        )
        return {"pretrained": str(folder.resolve())}, _inputs(tokens, edge)
    _check_kind(model, table)
    edge = None if is_text or digits else image_size or 32
    return {"size": model} | _small(model, digits), _inputs(_longest(table) if is_text else None, edge)


def _longest(table: dict[str, Any]) -> int:
    return _CHAT_TOKENS if "messages_column" in table else _TOKENS


def _is_text(table: dict[str, Any]) -> bool:
    return "text_column" in table or "messages_column" in table or table["source"] == "text"


def _inputs(tokens: int | None, edge: int | None) -> dict[str, Any]:
    return {"max_tokens": tokens} if tokens else {"image_size": edge, "channels": 3} if edge else {}


def _check_kind(model: str, table: dict[str, Any]) -> None:
    """A named size that can read such data; one that is not known is refused with the recipe."""
    family = SIZES[model].family if model in SIZES else ""
    wanted = ("llama",) if "task" in table else ("bert", "llama") if _is_text(table) else ("vit",)
    if family and family not in wanted:
        kind = "texts without labels" if "task" in table else "texts" if _is_text(table) else "images"
        fit = ", ".join(name for name, size in SIZES.items() if size.family in wanted)
        raise ConfigError(f"--model {model} cannot be trained on {kind}; take one of {fit}, or a Hugging Face folder")


def _small(model: str, digits: bool) -> dict[str, Any]:
    """A patch that divides small images; named sizes are made for large ones."""
    size = SIZES.get(model)
    if size is None or size.family != "vit":
        return {}
    return {"patch": 2} if digits else {"patch": 4} if size.patch > 8 else {}


def _group(part: str, memory: str) -> tuple[str, int]:
    """The table of a group of devices without its last line, and how many they are."""
    preset, _, number = part.strip().partition(":")
    if preset.isdigit() and not number:
        preset, number = "laptop", preset
    if preset not in PRESETS or not (number or "1").isdigit() or number == "0":
        raise ConfigError(
            f"--devices {part!r}: write a number, or PRESET:NUMBER; presets are {', '.join(sorted(PRESETS))}"
        )
    figures = PRESETS[preset].source.partition(":")[0]
    lines = (
        f"[[fleet.devices]]\npreset = {json.dumps(preset)}   # its FLOP/s are those of its {figures.lower()}\n"
        f"count = {number or 1}\n"
    ).replace("its gpu", "its GPU")
    if memory:
        if memory.strip().isdigit():
            raise ConfigError(f"--memory {memory}: add the unit, such as {memory.strip()}MB")
        parse_bytes(memory)
        lines += f"memory = {json.dumps(memory)}         # for training; what trains follows from it\n"
    return lines, int(number or 1)


def _fields(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())

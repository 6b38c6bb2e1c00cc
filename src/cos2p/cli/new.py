"""`cos2p new`: a commented recipe for one's own data, model and devices, by options or by questions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cos2p.errors import ConfigError

_TEXT_COLUMNS = ("text", "sentence", "content", "review", "tweet", "question", "title")
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
_TOKENS = 128


def new(
    file: Annotated[Path, typer.Argument(help="Where to write the recipe.")] = Path("recipe.toml"),
    data: Annotated[
        str | None, typer.Option(help="Folder of class folders, a csv, tsv, jsonl, parquet or txt file; digits: a toy.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Named size, or a Hugging Face folder.")] = None,
    devices: Annotated[
        str | None, typer.Option(help="Presets with their number, such as raspberry-pi-4:4,laptop:2.")
    ] = None,
    text_column: Annotated[str, typer.Option(help="Column of the texts of a table; empty: guessed by its name.")] = "",
    label_column: Annotated[str, typer.Option(help="Column of the labels; empty: guessed by its name.")] = "",
    image_size: Annotated[int, typer.Option(min=0, help="Edge of the images in pixels; 0: 32, or the model's.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="How long the run is.")] = 20,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file if there is one.")] = False,
) -> None:
    """Write a commented recipe for your own data, model and devices; what is not given is asked.

    cos2p new mine.toml --data photos --model vit-tiny --devices raspberry-pi-4:4,laptop:2
    """
    from cos2p.recipe import Recipe

    if file.exists() and not force:
        raise ConfigError(f"{file} exists and was left alone; choose another name, or replace it by --force")
    data = _answer(data, "--data", "Data (folder of class folders, csv, jsonl, parquet, txt, or digits)", "digits")
    table = _table(data, text_column, label_column)
    usual = {"text": "llama-nano", "csv": "bert-small", "jsonl": "bert-small"}.get(table["source"], "vit-tiny")
    model = _answer(model, "--model", "Model (named size or Hugging Face folder)", usual)
    devices = _answer(devices, "--devices", "Devices (preset:number, ...)", "raspberry-pi-4:4,laptop:2")
    chosen, inputs = _chosen_model(model, table, image_size)
    text = _TEMPLATE.format(
        file=file,
        name=json.dumps(file.stem),
        model=_fields(chosen),
        data=_fields(table | inputs),
        partition=_BY_CLASS if "task" not in table else _WITHOUT_CLASSES,
        devices="\n".join(_device(part) for part in devices.split(",")),
        rounds=rounds,
        form="" if "pretrained" in chosen or "task" in table else _GROWING,
    )
    Recipe.parse(_parsed(text), str(file))
    file.write_text(text, encoding="utf-8")
    typer.echo(f"{file}: check it with  cos2p recipes validate {file}  and run it with  cos2p run {file}", err=True)


def _answer(given: str | None, option: str, question: str, default: str) -> str:
    if given is not None:
        return given
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is missing, and there is nobody to ask; see cos2p new --help")
    return str(typer.prompt(question, default=default, err=True))


def _table(data: str, text_column: str, label_column: str) -> dict[str, Any]:
    """The `[data]` table for what lies at `data`."""
    from cos2p.data.load import source_of

    if data == "digits":
        return {"source": "digits"}
    path = Path(data).expanduser()
    if not path.exists():
        raise ConfigError(f"there is no data at {data}; name a folder of class folders, or a file")
    if path.is_dir():
        plain = [file for file in path.iterdir() if file.suffix == ".txt"]
        is_plain = bool(plain) and not any(child.is_dir() for child in path.iterdir())
        return _plain(path, "*.txt") if is_plain else {"source": "folder", "path": str(path.resolve())}
    source = source_of(data)
    if source == "text":
        return _plain(path.parent, path.name)
    if source not in ("csv", "jsonl", "parquet"):
        raise ConfigError(f"{data} is neither a folder nor a csv, tsv, jsonl, parquet or txt file")
    columns = _columns(path, source)
    text = text_column or _guessed(columns, _TEXT_COLUMNS, "--text-column", data)
    label = label_column or _guessed(columns, _LABEL_COLUMNS, "--label-column", data)
    place = {"source": source, "path": str(path.resolve().parent), "train": path.name}
    return {**place, "text_column": text, "label_column": label}


def _plain(folder: Path, names: str) -> dict[str, Any]:
    """Texts without labels: the next token is predicted."""
    return {"source": "text", "path": str(folder.resolve()), "train": names, "task": "language-modeling"}


def _columns(path: Path, source: str) -> list[str]:
    from cos2p.data.config import DataConfig
    from cos2p.data.load import reader_of
    from cos2p.errors import DataError

    probe = DataConfig(source=source, path=str(path.parent), train=path.name, text_column="\0", label_column="\0")
    try:
        reader_of(probe)(probe)
    except DataError as error:  # it names the columns there are
        said = str(error)
        if "; it has " not in said:
            raise
        return said.partition("; it has ")[2].rpartition("; set ")[0].split(", ")
    return []


def _guessed(columns: list[str], usual: tuple[str, ...], option: str, data: str) -> str:
    known = {column.lower(): column for column in columns}
    found = next((known[name] for name in usual if name in known), None)
    if found is None:
        raise ConfigError(f"{data} has the columns {', '.join(columns)}; say which with {option}")
    return found


def _chosen_model(model: str, table: dict[str, Any], image_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `[model]` table, and how the data has to be brought to it. An error if the two cannot agree."""
    folder = Path(model).expanduser()
    is_text, digits = _is_text(table), table["source"] == "digits"
    if folder.is_dir():
        from cos2p.models.hub import pretrained_config
        from cos2p.models.hub_fit import DataFacts

        stored = pretrained_config(folder)
        tokens = min(_TOKENS, stored.max_tokens) if is_text else None
        edge = None if is_text or digits else image_size or stored.image
        pretrained_config(folder, DataFacts(table.get("task", "classification"), max_tokens=tokens, image=edge))
        return {"pretrained": str(folder.resolve())}, _inputs(tokens, edge)
    _check_kind(model, table)
    edge = None if is_text or digits else image_size or 32
    return {"size": model} | _small(model, digits), _inputs(_TOKENS if is_text else None, edge)


def _is_text(table: dict[str, Any]) -> bool:
    return "text_column" in table or table["source"] == "text"


def _inputs(tokens: int | None, edge: int | None) -> dict[str, Any]:
    return {"max_tokens": tokens} if tokens else {"image_size": edge, "channels": 3} if edge else {}


def _check_kind(model: str, table: dict[str, Any]) -> None:
    """A named size that can read such data; one that is not known is refused with the recipe."""
    from cos2p.models.sizes import SIZES

    family = SIZES[model].family if model in SIZES else ""
    wanted = ("llama",) if "task" in table else ("bert", "llama") if _is_text(table) else ("vit",)
    if family and family not in wanted:
        kind = "texts without labels" if "task" in table else "texts" if _is_text(table) else "images"
        fit = ", ".join(name for name, size in SIZES.items() if size.family in wanted)
        raise ConfigError(f"--model {model} cannot be trained on {kind}; take one of {fit}, or a Hugging Face folder")


def _small(model: str, digits: bool) -> dict[str, Any]:
    """A patch that divides small images; named sizes are made for large ones."""
    from cos2p.models.sizes import SIZES

    size = SIZES.get(model)
    if size is None or size.family != "vit":
        return {}
    return {"patch": 2} if digits else {"patch": 4} if size.patch > 8 else {}


def _device(part: str) -> str:
    from cos2p.devices.device import PRESETS

    preset, _, number = part.strip().partition(":")
    if preset not in PRESETS or not (number or "1").isdigit():
        raise ConfigError(f"--devices {part!r}: write PRESET:NUMBER; presets are {', '.join(sorted(PRESETS))}")
    figures = PRESETS[preset].source.partition(":")[0]
    return (
        f"[[fleet.devices]]\npreset = {json.dumps(preset)}   # its FLOP/s are those of its {figures.lower()}\n"
        f"count = {number or 1}\nbatch = 16              # rate is left out: as large as memory allows\n"
    ).replace("its gpu", "its GPU")


def _fields(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def _parsed(text: str) -> dict[str, Any]:
    from cos2p.older_python import tomllib

    return tomllib.loads(text)

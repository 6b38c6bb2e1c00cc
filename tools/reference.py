"""Write the pages of docs/reference that say what the code says: recipe fields, methods, commands, events, exit codes.

python -m tools.reference            writes them
python -m tools.reference --check    says which are out of date, and ends with 1 if any is
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.main import get_command
from typing_extensions import get_type_hints

import cos2p.errors
from cos2p import api
from cos2p.cli.app import EXIT_CODES, app
from cos2p.devices.device import PRESETS
from cos2p.devices.settings import DeviceGroup
from cos2p.fleet.disclosure import disclosed
from cos2p.methods import methods
from cos2p.models.layout import parameter_count
from cos2p.models.sizes import SIZES
from cos2p.recipe import Recipe, tomllib_load
from cos2p.recipes import recipe_text, shipped_recipes
from cos2p.tracking.event_kinds import KINDS
from cos2p.units import format_bytes

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTICE = "<!-- Written by `python -m tools.reference` from the code; changes here are lost. -->\n\n"


def table(*columns: str, rows: list[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n"


def cell(text: str) -> str:
    """
    >>> print(cell("a|b, path/<class>, `<kept>`"))
    a\\|b, path/&lt;class>, `<kept>`
    """
    parts = text.replace("|", r"\|").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


# ---------------------------------------------------------------- recipe fields


def settings_tables(
    model: type[BaseModel], path: str, level: str = "##", shown: Callable[[str], bool] = lambda path: True
) -> Iterator[str]:
    """A table of the model's own fields, then those of the models inside it: of those that are `shown`, by path."""
    plain: list[tuple[str, ...]] = []
    inner: list[tuple[str, type[BaseModel], bool]] = []
    for name, field in model.model_fields.items():
        nested, many = nested_model(field.annotation)
        if nested is not None:
            inner.append((f"{path}.{name}" if path else name, nested, many))
            continue
        if not shown(f"{path}.{name}" if path else name):
            continue
        plain.append((f"`{name}`", type_text(field), default_text(field), range_text(field), field.description or ""))
    if path and plain:
        head = f"[[{path}]]" if model is DeviceGroup else f"[{path}]"
        yield f"{level} `{head}`\n"
    if model.__doc__ and path and plain and not is_inherited_doc(model):
        yield first_paragraph(model.__doc__) + "\n"
    if plain:
        yield table("field", "type", "default", "range", "what it means", rows=plain)
    for inside, nested, _ in inner:
        yield from settings_tables(nested, inside, level, shown)


def is_inherited_doc(model: type[BaseModel]) -> bool:
    return any(model.__doc__ == base.__doc__ for base in model.__mro__[1:])


def nested_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inside in get_args(annotation):
        if isinstance(inside, type) and issubclass(inside, BaseModel):
            return inside, True
    return None, False


def type_text(field: FieldInfo) -> str:
    return _type(field.annotation)


def _type(annotation: Any) -> str:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inside[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inside)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(part) for part in inside if part is not type(None))
    if origin in (tuple, list):
        return f"list of {_type(inside[0])}s" if inside[0] in (int, float) else f"list of {_type(inside[0])}"
    if origin is dict:
        return "table"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default_text(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True) if not field.is_required() else PydanticUndefined
    if value is PydanticUndefined:
        return "**needed**"
    if value is None or value == "":
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    if isinstance(value, dict):
        return "`" + ", ".join(f"{key} = {entry!r}" for key, entry in value.items()).replace("'", '"') + "`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def range_text(field: FieldInfo) -> str:
    found = []
    for entry in [*field.metadata, *_inner_metadata(field.annotation)]:
        found += [f"{sign} {getattr(entry, name):g}" for name, sign in SIGNS.items() if hasattr(entry, name)]
    return ", ".join(found)


def _inner_metadata(annotation: Any) -> list[Any]:
    return [entry for arg in get_args(annotation) for entry in getattr(arg, "__metadata__", ())]


def first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


@cache
def often_set() -> frozenset[str]:
    """Paths of fields that at least four shipped recipes set."""
    recipes = [tomllib_load(recipe_text(name), name) for name in shipped_recipes()]
    counted = Counter(path for values in recipes for path in set(paths(values)))
    return frozenset(path for path, count in counted.items() if count >= 4 and not path.startswith("method"))


def paths(values: Any, path: str = "") -> Iterator[str]:
    """Of all values in nested tables."""
    if isinstance(values, list) and values and isinstance(values[0], dict):
        for entry in values:
            yield from paths(entry, path)
    elif isinstance(values, dict):
        for name, inside in values.items():
            yield from paths(inside, f"{path}.{name}" if path else name)
    else:
        yield path


def recipe_page() -> str:
    sizes = [
        (f"`{name}`", c.family, str(c.depth), str(c.dim), str(c.heads), str(c.mlp), f"{parameter_count(c) / 1e6:.1f} M")
        for name, c in SIZES.items()
    ]
    presets = [
        (
            f"`{name}`",
            f"{d.flops:.2g}",
            format_bytes(d.memory),
            f"{d.down / 125000:.0f} / {d.up / 125000:.0f}",
            d.source,
        )
        for name, d in PRESETS.items()
    ]
    return "\n".join(
        [
            "# Recipe fields\n",
            "A recipe is a TOML file: `cos2p recipes cp quickstart mine.toml` gives one to change, `cos2p recipes "
            "validate mine.toml` names every wrong field. Any field can be set from the command line by its path: "
            "`--set training.lr=1e-3`, `--set fleet.devices.0.rate=0.25`. A value is TOML, a bare word is a string, "
            "and nothing after the `=` takes the field out.\n",
            "These are the fields that the shipped recipes set; the others have defaults that few need to change: "
            "[advanced](#advanced).\n",
            *settings_tables(Recipe, "", shown=often_set().__contains__),
            "## `[method]`\n",
            "`name` and the method's own settings: see [methods](methods.md).\n",
            "## Advanced\n",
            *settings_tables(Recipe, "", "###", shown=lambda path: path not in often_set() and path != "method"),
            "## Named model sizes\n",
            "For `model.size`. Classes, channels, image size and vocabulary follow the data.\n",
            table("size", "family", "blocks", "width", "heads", "MLP units", "parameters", rows=sizes),
            "## Named devices\n",
            "For `fleet.devices.N.preset`. Estimates from public figures at 30 % of peak; what the system keeps is "
            "taken off the memory. [What the simulation assumes](../explanation/simulation.md) has the reasons; "
            "`cos2p profile` measures your own.\n",
            table("preset", "FLOP/s", "memory", "down / up, Mbit/s", "where the figures come from", rows=presets),
        ]
    )


# ---------------------------------------------------------------- methods


def methods_page() -> str:
    parts = [
        "# Methods\n",
        "`cos2p run RECIPE --method NAME`, or `name` in the recipe's `[method]` table. Methods marked *over budget* "
        "train more than a device's rate allows: a bound to compare with. Where a device has too little memory, "
        "`cos2p run` refuses one, unless `fleet.enforce_memory` is false; studies mark it with `*`.\n",
        table(
            "name",
            "in tables",
            "budget",
            rows=[(f"[`{n}`](#{n})", m.title, "over budget" if m.over_budget else "kept") for n, m in shipped()],
        ),
    ]
    for name, method in shipped():
        module = inspect.getmodule(method)
        said = method.__doc__ if method.__doc__ and not is_inherited_method_doc(method) else None
        parts.append(f"## {name}\n")
        parts.append(first_paragraph(said or (module and module.__doc__) or "") + "\n")
        settings = method.settings_type
        first = next(other for other, kind in shipped() if kind.settings_type is settings)
        if settings.model_fields and first != name:
            parts.append(f"The settings of [`{first}`](#{first}).\n")
        elif settings.model_fields:
            parts += [part.replace("## `[method", "### `[method") for part in settings_tables(settings, "method")]
        else:
            parts.append("No settings of its own.\n")
    # Headings of settings repeat from method to method: their anchors are numbered by MkDocs, nobody links to them.
    return "\n".join(parts)


def shipped() -> list[tuple[str, Any]]:
    return [(n, m) for n, m in sorted(methods().items()) if m.__module__.startswith(("cos2p.", "cos2p_rivals."))]


def is_inherited_method_doc(method: type[Any]) -> bool:
    return "__doc__" not in vars(method) or vars(method)["__doc__"] is None


# ---------------------------------------------------------------- commands


def cli_page() -> str:
    group = get_command(app)
    parts = [
        "# Commands\n",
        "`-q`, `-v` and `--json` can stand before the verb or after it. Results go to stdout, all else to stderr; with "
        "`--json` stdout has one JSON object per line. Progress is a live view in a terminal, plain lines elsewhere.\n",
        "[Exit codes](exit-codes.md) are the same for all.\n",
        "## cos2p\n",
        parameter_table(group),
    ]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        parts += command_parts(f"cos2p {name}", command)
    parts += [
        "## Shell completion\n",
        "`cos2p --install-completion` sets it up for the shell you are in (bash, zsh, fish, PowerShell); open a new "
        "terminal afterwards. `cos2p --show-completion` prints the script instead, to put it where you like. Commands, "
        "options and the names of shipped recipes complete.\n",
    ]
    return "\n".join(parts)


def command_parts(title: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from command_parts(f"{title} {name}", inner)
        return
    yield f"## {title}\n"
    said, _, example = (command.help or "").partition("\n\n")
    yield " ".join(said.split()) + "\n"
    if example.strip():
        yield f"```console\n$ {example.strip()}\n```\n"
    yield parameter_table(command)


def parameter_table(command: Any) -> str:
    rows = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        flags = ", ".join(f"`{flag}`" for flag in parameter.opts)
        is_option = parameter.opts[0].startswith("-")
        if not is_option:
            flags = f"`{parameter.name.upper()}`" + ("" if parameter.required else " (may be left out)")
        elif not parameter.is_flag:
            flags += f" {parameter.metavar or parameter.name.upper()}"
        rows.append((flags, parameter.help or "", default_of(parameter)))
    return table("", "", "default", rows=rows)


def default_of(parameter: Any) -> str:
    shown = parameter.show_default
    if isinstance(shown, str):
        return shown
    if parameter.default in (None, False, "", ()) or not shown:
        return ""
    return f"`{parameter.default:g}`" if isinstance(parameter.default, float) else f"`{parameter.default}`"


# ---------------------------------------------------------------- events, exit codes


def events_page() -> str:
    parts = [
        "# Events\n",
        "`events.jsonl` in the run folder, one JSON object per line, appended as things happen. Every object has "
        "`kind` and `t`, the seconds since the run began: virtual in a simulation, the wall's on a real fleet. "
        "`cos2p run --json` prints the same lines, with two more kinds: `resumed` (first line of a run that goes on; "
        "fields as in `started`) and `waiting` (nobody has joined yet).\n",
        "After a resume the file is cut back to the checkpoint, so what happened is told once.\n",
        "```python\nfrom cos2p.tracking import Merged, read_events\n\n"
        'late = [e for e in read_events("runs/first/events.jsonl") if isinstance(e, Merged) and e.staleness > 0]\n'
        'print(f"{len(late)} updates came late")\n```\n',
    ]
    for name, kind in KINDS.items():
        hints = get_type_hints(kind, include_extras=True)
        rows = [(f"`{n}`", *_explained(hints[n], n in kind.optional)) for n in kind.names if n != "t"]
        parts += [f"## {name}\n", first_paragraph(kind.__doc__ or "") + "\n"]
        parts.append(table("field", "type", "what it says", rows=rows))
    return "\n".join(parts)


def _explained(hint: Any, optional: bool) -> tuple[str, str]:
    """Type and words of a field; an optional one is `Annotated[X | None, ...]`, or an annotated alias `| None`."""
    annotated = hint if get_origin(hint) is Annotated else get_args(hint)[0]
    inside, words = get_args(annotated)[:2]
    kept = [part for part in get_args(inside) if part is not NoneType]
    if optional and len(kept) == 1 and NoneType in get_args(inside):
        inside = kept[0]
    return _type(inside), ("not always: " if optional else "") + words


def exit_codes_page() -> str:
    found = re.findall(r"(?:^|· |: )(\d+) ([^·]+?)(?= ·|\.$|$)", " ".join(EXIT_CODES.split()))
    kinds: dict[int, list[str]] = {}
    for name, value in vars(cos2p.errors).items():
        if isinstance(value, type) and issubclass(value, cos2p.errors.Cos2pError):
            kinds.setdefault(value.exit_code, []).append(f"`{name}`")
    rows = [(number, words.strip(), ", ".join(kinds.get(int(number), []))) for number, words in found]
    return (
        "# Exit codes\n\nFor scripts. A mistake is one line on stderr, never a traceback; what is a defect of cos2p "
        "(70) comes with one, to be reported.\n\n" + table("code", "meaning", "error in Python", rows=rows)
    )


def disclosure_page() -> str:
    intro = (
        "# What leaves a device\n\nEvery field of every message that a device of a real fleet sends. "
        "`cos2p fleet disclose KIT` says the same for one kit, with what its owner has switched off already.\n\n"
    )
    rows = [(d.message, d.when, f"`{d.field}`", d.size, d.why, d.off) for d in disclosed()]
    return intro + table("message", "when", "field", "size", "why", "how to switch it off", rows=rows)


def python_page() -> str:
    """The Python API: functions with their arguments, then what a run and a study have."""
    lines = [
        "# Python API\n",
        "What the commands do, from Python: `import cos2p`.",
        "[A first run](../tutorial/first-run.md#from-python) shows it in",
        "use; names for methods of your own are on [a page of their own](method-names.md).\n",
    ]
    for function in (api.run, api.finetune, api.compare, api.open, api.wrap):
        lines += [
            f"## `cos2p.{function.__name__}`\n",
            _signature(f"cos2p.{function.__name__}", function),
            _doc(function),
        ]
    for kind in (api.Run, api.Study):
        lines += [f"## `{kind.__name__}`\n", _doc(kind)]
        members = {name: one for name, one in vars(kind).items() if not name.startswith("_") and inspect.getdoc(one)}
        rows = [(f"`{_call(name, one)}`", first_paragraph(inspect.getdoc(one) or "")) for name, one in members.items()]
        lines.append(table("name", "what it is", rows=rows))
    return "\n".join(lines)


def _signature(name: str, function: Callable[..., Any]) -> str:
    arguments = "\n".join(f"    {_plain(one)}," for one in inspect.signature(function).parameters.values())
    result = str(inspect.signature(function).return_annotation)
    return f"```text\n{name}(\n{arguments}\n) -> {result}\n```\n"


def _call(name: str, member: Any) -> str:
    if not inspect.isfunction(member):
        return name
    parameters = [_plain(one).partition(":")[0] for one in inspect.signature(member).parameters.values()]
    return f"{name}({', '.join(parameters[1:])})"


def _plain(one: inspect.Parameter) -> str:
    default = "" if one.default is one.empty else f" = {one.default!r}".replace("'", '"')
    stars = "**" if one.kind is one.VAR_KEYWORD else ""
    return f"{stars}{one.name}: {one.annotation}{default}"


def _doc(thing: Any) -> str:
    return re.sub(r"\n\n>>> .*", "", inspect.getdoc(thing) or "", flags=re.DOTALL) + "\n"


PAGES = {
    "python.md": python_page,
    "disclosure.md": disclosure_page,
    "recipe.md": recipe_page,
    "methods.md": methods_page,
    "cli.md": cli_page,
    "events.md": events_page,
    "exit-codes.md": exit_codes_page,
}


def stale() -> list[str]:
    """Names of pages that do not say what the code says."""
    return [name for name, page in PAGES.items() if not _is_current(FOLDER / name, NOTICE + page())]


def _is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main() -> None:
    if "--check" in sys.argv[1:]:
        if old := stale():
            sys.exit(f"out of date: {', '.join(old)}; write them anew by  python -m tools.reference")
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(NOTICE + page(), encoding="utf-8")


if __name__ == "__main__":
    main()

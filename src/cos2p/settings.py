"""Base of every group of settings: frozen, typed, unknown fields refused, each field with a line that explains it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)


def problems(error: ValidationError, path: str = "") -> list[str]:
    """One line for each wrong field: its path, what is wrong, what was given."""
    lines = []
    for entry in error.errors():
        where = ".".join([path, *map(str, entry["loc"])] if path else map(str, entry["loc"])) or "recipe"
        if entry["type"] == "extra_forbidden":
            lines.append(f"{where}: there is no such field")
        elif entry["type"] == "missing":
            lines.append(f"{where}: missing")
        else:
            lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ')} (got {entry['input']!r})")
    return lines

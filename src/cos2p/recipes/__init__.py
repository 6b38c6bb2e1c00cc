"""Shipped recipes: their names and their text. Knows nothing of what is inside, so that it opens fast."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from cos2p.errors import RecipeError


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    folder = resources.files("cos2p") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def recipe_text(name_or_path: str | Path) -> str:
    """The TOML text with its comments, of a shipped recipe or of a file."""
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        return _read(path)
    known = shipped_recipes()
    if str(name_or_path) not in known:
        close = get_close_matches(str(name_or_path), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise RecipeError(f"no recipe {str(name_or_path)!r}; {hint}shipped: {', '.join(known)}; or give a .toml file")
    return (resources.files("cos2p") / "recipes" / f"{name_or_path}.toml").read_text(encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RecipeError(f"the recipe {path} is not UTF-8 text; is it a TOML file?") from None

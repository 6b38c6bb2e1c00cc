"""Packages that only some runs need: imported when they are used, and named with their extra if they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cos2p.errors import MissingExtra


def extra(module: str, name: str, purpose: str) -> Any:
    """The module; `MissingExtra` says what needs it and what to install.

    >>> extra("json", "none", "this example").loads("1")
    1
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = {"PIL": "pillow"}.get(module.partition(".")[0], module.partition(".")[0])
        raise MissingExtra(
            f"{purpose} needs the package {package}, which is not installed: pip install {package} "
            f"(the extra `{name}` of cos2p brings it)"
        ) from error

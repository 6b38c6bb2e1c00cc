"""What MkDocs does next to the plain pages: results in the menu, and their tables lead to files instead of folders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Every page right below docs/results is in the menu, under its first heading."""
    pages = sorted((Path(config["docs_dir"]) / "results").glob("*.md"))
    config["nav"].append({"Results": [{_heading(page): f"results/{page.name}"} for page in pages]})
    return config


def _heading(page: Path) -> str:
    """Up to a colon: what follows is the finding."""
    return page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").partition(":")[0]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A study's table leads to run folders. A web site has no folders; the figures are what is looked for there."""
    if page.file.src_uri.startswith("results/"):
        return re.sub(r"\]\(([\w./-]*cells/[\w.%-]+)/\)", r"](\1/result.json)", markdown)
    return markdown

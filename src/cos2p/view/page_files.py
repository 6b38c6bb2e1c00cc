"""Which files make the page, in the order in which they are put into it."""

from __future__ import annotations

PAGE_FILES: dict[str, list[str]] = {"css": ["style.css"], "js": ["main.js"]}

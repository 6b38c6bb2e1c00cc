"""cos2p: train one large transformer on many weak, unequal devices."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]

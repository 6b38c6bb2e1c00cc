"""Data sets: where samples come from, which of them are used, and how they lie in memory."""

from cos2p.data.config import DataConfig
from cos2p.data.examples import IGNORE, Bundle, Examples, Normalize
from cos2p.data.groups import Groups
from cos2p.data.load import load

__all__ = ["IGNORE", "Bundle", "DataConfig", "Examples", "Groups", "Normalize", "load"]

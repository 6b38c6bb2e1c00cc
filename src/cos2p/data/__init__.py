"""Data sets: where samples come from, which of them are used, and how they lie in memory."""

from cos2p.data.config import DataConfig
from cos2p.data.examples import IGNORE, Bundle, Examples, Normalize
from cos2p.data.load import load
from cos2p.data.select import Groups

__all__ = ["IGNORE", "Bundle", "DataConfig", "Examples", "Groups", "Normalize", "load"]

"""Co-S²P: `settings` (its table and forms), `method` (which submodel, which exits, when it aggregates, what the server
remembers), `factored` (low-rank factors for devices of few bytes)."""

from cos2p.methods.cos2p.method import Cos2p, Cos2pAsync, Cos2pSync, TopWindow
from cos2p.methods.cos2p.settings import Cos2pSettings

__all__ = ["Cos2p", "Cos2pAsync", "Cos2pSettings", "Cos2pSync", "TopWindow"]

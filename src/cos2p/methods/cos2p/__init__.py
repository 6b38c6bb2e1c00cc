"""Co-S²P: `settings` (its table and forms), `method` (which submodel, which exits, what the server
remembers), `keeps` (masks as sets), `variants` (when it aggregates)."""

from cos2p.methods.cos2p.method import Cos2p
from cos2p.methods.cos2p.settings import Cos2pSettings
from cos2p.methods.cos2p.variants import Cos2pAsync, Cos2pSync

__all__ = ["Cos2p", "Cos2pAsync", "Cos2pSettings", "Cos2pSync"]

"""PruneFL: `method` keeps one mask for the fleet, `reconfiguration` moves it, `device` reports the gradients."""

from cos2p_rivals.prunefl.method import PruneFl

__all__ = ["PruneFl"]

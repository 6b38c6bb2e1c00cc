"""PLATON on the devices, FedAvg or FedAsync on the server: `method` chooses the segments, `device` scores them."""

from cos2p_rivals.platon.method import FedAsyncPlaton, FedAvgPlaton

__all__ = ["FedAsyncPlaton", "FedAvgPlaton"]

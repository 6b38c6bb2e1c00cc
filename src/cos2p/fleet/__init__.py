"""The fleet: devices, and whose data is whose."""

from cos2p.fleet.devices import PRESETS, Device, device
from cos2p.fleet.partition import PartitionKind, local_split, partition, sizes_by_weight

__all__ = ["PRESETS", "Device", "PartitionKind", "device", "local_split", "partition", "sizes_by_weight"]

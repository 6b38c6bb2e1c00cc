"""Devices: how fast, how large, when they are there; what they can train, and how long a task takes.

Knows tasks and trainers (what is to be done), nothing of methods, servers or networks.
"""

from cos2p.devices.device import PRESETS, Device, device

__all__ = ["PRESETS", "Device", "device"]

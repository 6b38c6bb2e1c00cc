"""What a link does to packets: a TUN device at either end, and between them delay, jitter, loss, outages and a NAT.

The kernel does rate and queue (`tbf` on both TUN devices); packets then come here. `netem` would do most of it, but is
not in every kernel, and knows no NAT. One thread serves all links of a test; at some Mbit/s that is a few hundred
packets a second.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MAPPINGS_SECONDS = 60.0


@dataclass
class Conditions:
    """Of one link. Rates in bits a second, times in seconds, one way each."""

    up: float = 100e6
    down: float = 100e6
    delay: float = 0.001
    jitter: float = 0.0
    loss: float = 0.0
    outage: tuple[float, float] = (0.0, 0.0)
    """(every, for) seconds; nothing passes meanwhile."""


THREE_G = Conditions(up=384e3, down=1.6e6, delay=0.15, jitter=0.05, loss=0.01)
PROFILES = {
    "3g": THREE_G,
    "edge": Conditions(up=64e3, down=64e3, delay=0.4, loss=0.03),
    "flaky": replace(THREE_G, outage=(120.0, 20.0)),
    "far": Conditions(delay=5.0),
    "lossy": Conditions(delay=0.02, loss=0.5),
}
"""Those of docs/results/network.md; some are presets of recipes too (`cos2p.devices.device.LINKS`)."""


@dataclass
class Link:
    """One device's line. The NAT knows a mapping by the device's port; the public address is the device's alone."""

    name: str
    conditions: Conditions
    inside: int
    """File descriptor of the TUN device in the device's namespace, and ..."""
    outside: int
    """... of that in the router's."""
    private: IPv4Address
    public: IPv4Address
    cut: bool = False
    mapping_seconds: float = float("inf")
    """A mapping that was idle for longer is dropped, and its packets with it."""
    mappings: dict[tuple[int, int], float] = field(default_factory=dict)
    """(protocol, port of the device): when it was used last."""
    began: float = field(default_factory=time.monotonic)
    bytes_up: int = 0
    bytes_down: int = 0
    """That arrived at the other end."""
    repeated: int = 0
    """Bytes of TCP's payload that had been sent before."""
    answered: float = 0.0
    """When a packet of the server last came through."""
    ends: dict[tuple[bool, int, int], int] = field(default_factory=dict)
    """By way and ports: the last byte that was sent."""
    last_out: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def is_down(self, now: float) -> bool:
        every, seconds = self.conditions.outage
        return self.cut or (every > 0 and (now - self.began) % every > every - seconds)

    def change_address(self, public: IPv4Address) -> None:
        """As after a reconnect of the device's router: no mapping survives, and answers go where nobody is."""
        self.mappings.clear()
        self.public = public


class Forwarder:
    def __init__(self, seed: int = 0) -> None:
        self.links: list[Link] = []
        self._rng = random.Random(seed)
        self._agenda: list[tuple[float, int, Link, bool, bytes]] = []
        self._count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        for link in self.links:
            os.close(link.inside)
            os.close(link.outside)

    def _run(self) -> None:
        ends = {link.inside: (link, True) for link in self.links} | {link.outside: (link, False) for link in self.links}
        while not self._stop.is_set():
            now = time.monotonic()
            wait = max(0.0, min(0.2, self._agenda[0][0] - now)) if self._agenda else 0.2
            for end in select.select(list(ends), [], [], wait)[0]:
                try:
                    packet = os.read(end, 65536)
                except OSError:
                    continue
                self._take(*ends[end], packet)
            now = time.monotonic()
            while self._agenda and self._agenda[0][0] <= now:
                _, _, link, up, packet = heapq.heappop(self._agenda)
                self._give(link, up, packet)

    def _take(self, link: Link, up: bool, packet: bytes) -> None:
        now, way = time.monotonic(), link.conditions
        count_again(link, up, packet)
        if packet[0] >> 4 != 4 or link.is_down(now) or self._rng.random() < way.loss:
            return
        out = now + max(0.0, way.delay + self._rng.uniform(-way.jitter, way.jitter))
        # Packets of one line keep their order, as in a queue: jitter is not reordering.
        out = max(out, link.last_out[up])
        link.last_out[up] = out
        heapq.heappush(self._agenda, (out, self._count, link, up, packet))
        self._count += 1

    def _give(self, link: Link, up: bool, packet: bytes) -> None:
        if link.is_down(time.monotonic()) or (translated := translate(link, up, packet)) is None:
            return
        try:
            os.write(link.outside if up else link.inside, translated)
        except OSError:
            return
        if up:
            link.bytes_up += len(packet)
        else:
            link.bytes_down += len(packet)
            link.answered = time.monotonic()


def count_again(link: Link, up: bool, packet: bytes) -> None:
    """Bytes of a TCP connection that its sender sends once more."""
    if packet[0] >> 4 != 4 or packet[9] != 6:
        return
    header = (packet[0] & 15) * 4
    source, destination, begin = struct.unpack_from("!HHI", packet, header)
    size = len(packet) - header - (packet[header + 12] >> 4) * 4
    flow = (up, source, destination)
    if packet[header + 13] & 2:  # SYN: a new connection
        link.ends[flow] = begin + 1 & 0xFFFFFFFF
        return
    before = link.ends.get(flow, begin) - begin
    before = before - 2**32 if before > 2**31 else before + 2**32 if before < -(2**31) else before
    link.repeated += max(0, min(size, before))
    if size > before:
        link.ends[flow] = begin + size & 0xFFFFFFFF


def translate(link: Link, up: bool, packet: bytes) -> bytes | None:
    """The packet with the device's public address, or private one, in it; None: nobody inside asked for it."""
    header = (packet[0] & 15) * 4
    protocol = packet[9]
    if protocol not in (6, 17):
        return None
    source, destination = struct.unpack_from("!HH", packet, header)
    key = (protocol, source if up else destination)
    now = time.monotonic()
    if now - link.mappings.get(key, -1e9) > link.mapping_seconds:
        link.mappings.pop(key, None)
    begins = protocol == 17 or (packet[header + 13] & 0x12) == 0x02  # SYN without ACK
    if key not in link.mappings and not (up and begins):
        return None
    link.mappings[key] = now
    old, new = (link.private, link.public) if up else (link.public, link.private)
    where = 12 if up else 16
    if packet[where : where + 4] != old.packed:
        return None
    changed = bytearray(packet)
    changed[where : where + 4] = new.packed
    _mend(changed, 10, old, new)
    _mend(changed, header + (16 if protocol == 6 else 6), old, new)
    return bytes(changed)


def _mend(packet: bytearray, where: int, old: IPv4Address, new: IPv4Address) -> None:
    """A checksum after a change of address (RFC 1624)."""
    total = ~int.from_bytes(packet[where : where + 2], "big") & 0xFFFF
    for part in (0, 2):
        total += ~int.from_bytes(old.packed[part : part + 2], "big") & 0xFFFF
        total += int.from_bytes(new.packed[part : part + 2], "big")
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    packet[where : where + 2] = (~total & 0xFFFF).to_bytes(2, "big")


def open_tun(name: str) -> int:
    """A TUN device of this name in the namespace of the calling thread."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return tun

"""Bytes and rates as people write them: `600MB` is 600 * 10^6 bytes, `2GiB` is 2 * 2^30, `100Mbit/s` is 12.5 MB/s."""

from __future__ import annotations

import re
from fractions import Fraction

from cos2p.errors import ConfigError

_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_PREFIXES = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_BYTE_UNITS = {f"{p}b": n for p, n in (_PREFIXES | _BINARY_PREFIXES).items()} | {"": 1}
_BIT_UNITS = {f"{p}bit": n for p, n in _PREFIXES.items()}
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: str | int | float) -> int:
    """Bytes as an integer. Units: B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024).

    >>> parse_bytes("600MB"), parse_bytes("2 GiB"), parse_bytes(4096)
    (600000000, 2147483648, 4096)
    """
    amount = _parse(value, _BYTE_UNITS, "a number of bytes", "600MB, 2GiB or 4096")
    if amount.denominator != 1:
        amount = Fraction(round(amount))
    return int(amount)


def parse_rate(value: str | int | float) -> float:
    """Bytes per second. Takes the units of `parse_bytes` and kbit, Mbit, Gbit, with or without `/s`.

    >>> parse_rate("100Mbit/s"), parse_rate("5 MB/s"), parse_rate(2500)
    (12500000.0, 5000000.0, 2500.0)
    """
    text = value
    if isinstance(value, str):
        text = re.sub(r"\s*/\s*s(ec(ond)?)?\s*$", "", value)
        if text.lower().rstrip().endswith("bit"):
            return float(_parse(text, _BIT_UNITS, "a rate", "100Mbit/s") / 8)
    return float(_parse(text, _BYTE_UNITS, "a rate in bytes per second", "5MB/s, 100Mbit/s or 2500"))


def format_bytes(count: int | float) -> str:
    """Three digits and a decimal unit: `612 MB`, `1.50 GB`, `0 B`.

    >>> format_bytes(612_345_678), format_bytes(1_500_000_000), format_bytes(999)
    ('612 MB', '1.50 GB', '999 B')
    """
    sign = "-" if count < 0 else ""
    size = float(abs(count))
    if size < 1000:
        return f"{sign}{size:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
        # 999.6 kB would be written 1000 kB; the next unit says it better.
        if size < 999.5 or unit == "TB":
            return f"{sign}{size:.{digits}f} {unit}"
    raise AssertionError("unreachable: TB always returns")


def _parse(value: str | int | float, units: dict[str, int], what: str, example: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{value!r} is not {what}; write it like {example}")
    match = _NUMBER_AND_UNIT.fullmatch(value if isinstance(value, str) else repr(value))
    if match is None:
        raise ConfigError(f"{value!r} is not {what}; write it like {example}")
    number, unit = match.groups()
    if unit.lower() not in units:
        raise ConfigError(f"{value!r} has the unit {unit!r}, which is not known here; write it like {example}")
    return Fraction(number.replace("_", "")) * units[unit.lower()]

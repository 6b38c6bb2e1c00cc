from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.errors import ConfigError
from cos2p.units import format_bytes, parse_bytes, parse_rate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("600MB", 600_000_000),
        ("600 MB", 600_000_000),
        ("2GiB", 2 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("512MiB", 512 * 2**20),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1TB", 10**12),
        ("17 b", 17),
        ("4096", 4096),
        ("1_000_000", 1_000_000),
        ("1e9", 10**9),
        (4096, 4096),
        (2.5e9, 2_500_000_000),
        (0, 0),
        ("0.0001kB", 0),
    ],
)
def test_bytes_as_people_write_them(text: str | int | float, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "MB", "-1MB", "1 MBit", "1.2.3GB", "lots", "1 GB free", "nan", "inf", float("nan"), -1, True, None]
)
def test_what_is_not_a_number_of_bytes_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ConfigError, match="600MB"):
        parse_bytes(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100Mbit/s", 12_500_000.0),
        ("100 Mbit / s", 12_500_000.0),
        ("8bit/s", 1.0),
        ("1Gbit", 125_000_000.0),
        ("5MB/s", 5_000_000.0),
        ("1MiB/sec", float(2**20)),
        (2500, 2500.0),
        ("2500", 2500.0),
    ],
)
def test_rates_in_bytes_or_bits(text: str | int, expected: float) -> None:
    assert parse_rate(text) == expected


@pytest.mark.parametrize("text", ["fast", "1Mbps", "5 MB/h", "-3MB/s", "1Mibit/s"])
def test_what_is_not_a_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Mbit/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345, "12.3 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (9_996, "10.0 kB"),
        (99_960, "100 kB"),
        (612_345_678, "612 MB"),
        (2**31, "2.15 GB"),
        (5 * 10**15, "5000 TB"),
        (-1500, "-1.50 kB"),
    ],
)
def test_three_digits_and_a_unit(count: int, expected: str) -> None:
    assert format_bytes(count) == expected


@given(st.integers(0, 10**15))
def test_what_is_written_can_be_read_back_to_three_digits(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.0051)

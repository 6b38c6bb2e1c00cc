"""A kit's certificate: from when to when it holds, checked before TLS says "handshake failure"."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from cos2p.errors import ConfigError
from cos2p.fleet.kit import Kit

RENEW_DAYS = 30
"""A certificate that ends sooner is worth a warning."""


def validity(path: Path) -> tuple[datetime, datetime]:
    """First and last moment of the certificate in a file."""
    from cryptography import x509

    found = x509.load_pem_x509_certificates(path.read_bytes())[0]
    return found.not_valid_before_utc, found.not_valid_after_utc


def kit_validity(kit: Kit) -> tuple[datetime, datetime]:
    name = "server.crt" if kit.role == "server" else "client.crt"
    try:
        return validity(kit.startup / name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{kit.startup / name} cannot be read ({error}); the kit is damaged") from None


def check_clock(kit: Kit, now: datetime | None = None) -> str:
    """A warning if the certificate ends soon, else nothing. ConfigError if it does not hold now, by this clock: TLS
    would fail on both sides without saying why."""
    now = now or datetime.now(timezone.utc)
    first, last = kit_validity(kit)
    if not first <= now <= last:
        raise ConfigError(
            f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and the certificate of {kit.folder} holds from "
            f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}: set the clock, or, if it is right, make a new kit with: "
            f"cos2p fleet provision fleet.toml -o kits/ --renew {kit.name}"
        )
    if last - now < timedelta(days=RENEW_DAYS):
        return (
            f"the certificate of {kit.folder} ends on {last:%Y-%m-%d}, in {(last - now).days} days; make a new kit "
            f"with: cos2p fleet provision fleet.toml -o kits/ --renew {kit.name}"
        )
    return ""


def check_keys(kit: Kit) -> None:
    """ConfigError if others can read the kit's key: whoever reads it can act in its name."""
    for key in kit.startup.glob("*.key"):
        if key.stat().st_mode & 0o077:
            raise ConfigError(f"{key} can be read by others; close the kit first: chmod -R go= {kit.folder}")

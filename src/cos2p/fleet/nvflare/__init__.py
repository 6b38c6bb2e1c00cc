"""A real fleet on NVFlare: the second driver of the server, next to the simulator.

    cos2p run ──► session (admin kit) ──► server kit ─┬─► rejoin: hands a running job to clients that come back
                                                      └─► controller: callbacks → Server → tasks
                                              chunks ▲ │
                                                     │ ▼
    cos2p fleet join ──► client kit ──► executor ──► training process with a hard memory cap

No decision is taken here. The coordinator says who trains what and when to aggregate; this package carries it out.
Before every process stands `message_filter`, which takes from others what a run needs (`channels`) and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from cos2p.errors import MissingExtra


def require_nvflare() -> None:
    """Raise MissingExtra, with what to install, unless NVFlare is there."""
    if find_spec("nvflare") is None:
        raise MissingExtra("a real fleet needs NVFlare; install it with: pip install nvflare==2.9.0")


def sent_at_registration(settings: Mapping[str, Any]) -> list[str]:
    """Names of a device's settings that NVFlare's client sends the server when it registers."""
    from nvflare.private.fed.utils.site_config import project_site_config

    return sorted(project_site_config(dict(settings)))

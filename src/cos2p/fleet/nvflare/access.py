"""A component of NVFlare's server process that decides which kits are still let in.

    revoked       `cos2p fleet revoke`: no certificate of that name that was issued until then
    replaced      once a newer kit of a device has joined, its older ones are refused
    a twin        a second machine with a kit whose first one is here and alive

A refusal goes to the one who asked (it stands in its log), to the server's log and to whoever follows a run
(`notices`). Certificates are compared by the moment from which they hold; which token belongs to which is kept, so that
a restart of the server lets nobody back in. NVFlare 2.9.0 has no hook that sees the certificate, so two methods of its
client manager are wrapped; tests/fleet/test_private.py guards them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import IdentityChallengeKey
from nvflare.private.defs import CellMessageHeaderKeys, ClientRegMsgKey

from cos2p.fleet.notices import REVOKED, Notices
from cos2p.fleet.nvflare.start import HEARTBEAT_SECONDS
from cos2p.tracking.files import read_json, write_json

STATE = "access.json"
TWIN_SECONDS = 5 * HEARTBEAT_SECONDS
"""A machine that was heard so recently is alive."""


class Register:
    """Access to the server: decisions and their memory, without NVFlare."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STATE
        self._lock = threading.Lock()  # devices register in threads of their own
        known = read_json(self._path) if self._path.exists() else {}
        self.revoked: dict[str, float] = known.get("revoked", {})
        """By name: the moment until which certificates are refused."""
        self.newest: dict[str, float] = known.get("newest", {})
        """By name: from when the newest certificate holds that has joined."""
        self.issued: dict[str, list[Any]] = known.get("issued", {})
        """By the hash of a token: its device's name, and from when its certificate holds."""

    def objection(self, name: str, issued: float) -> str:
        """Why a certificate of this name that holds from this moment is refused; empty: it is not."""
        if issued <= self.revoked.get(name, -1.0):
            return f"the kit of {name} was revoked; ask for a new one"
        if issued < self.newest.get(name, -1.0):
            return f"a newer kit of {name} has joined; this one is not valid any more"
        return ""

    def note(self, name: str, issued: float, token: str) -> None:
        with self._lock:
            self.newest[name] = max(issued, self.newest.get(name, issued))
            others = {key: value for key, value in self.issued.items() if value[0] != name}
            self.issued = {**others, _hash(token): [name, issued]}
            self._save()

    def revoke(self, name: str) -> None:
        with self._lock:
            # A clock that is behind must not leave out the very kit that is here.
            self.revoked[name] = max(time.time(), self.newest.get(name, 0.0))
            self._save()

    def objection_to_token(self, name: str, token: str) -> str:
        """As above, by a token from before. One that is not known here was replaced by a later one of its device."""
        known = self.issued.get(_hash(token))
        if known is None:
            return self.objection(name, self.revoked.get(name, float("inf")))
        return self.objection(*known)

    def _save(self) -> None:
        write_json(self._path, {"revoked": self.revoked, "newest": self.newest, "issued": self.issued})


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Access(FLComponent):  # type: ignore[misc]  # NVFlare is not typed
    def __init__(self) -> None:
        super().__init__()
        self._register: Register
        self._notices: Notices
        self._machines: dict[str, str] = {}
        """By token: the machine it was given to."""
        self._heard: dict[str, float] = {}
        """By name: when it was heard last, by a clock that does not jump."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            engine = fl_ctx.get_engine()
            root = Path(engine.args.workspace)
            try:
                self._register, self._notices = Register(root), Notices(root)
                self._wrap(engine.client_manager)
            except Exception as error:  # NVFlare would log it, go on, and let in whoever was revoked
                self.logger.error(f"the server ends, since it cannot tell who may come in: {error}")
                os._exit(1)

    def _wrap(self, manager: Any) -> None:
        authenticate, heartbeat, disable = manager.authenticate, manager.heartbeat, manager.disable_client

        def let_in(request: Any, fl_ctx: FLContext) -> Any:
            name, issued, machine = _who(request)
            reason = (
                "" if issued is None else self._register.objection(name, issued) or self._twin(manager, name, machine)
            )
            if reason:
                self._refuse(name, reason, fl_ctx)
                return None
            client = authenticate(request, fl_ctx)
            if client is not None and issued is not None:
                self._register.note(name, issued, client.token)
                self._machines[client.token] = machine
                self._heard[name] = time.monotonic()
            return client

        def checked_heartbeat(token: str, client_name: str, client_fqcn: str, fl_ctx: FLContext) -> Any:
            reason = self._register.objection_to_token(client_name, token)
            if reason:
                self._refuse(client_name, reason, fl_ctx)
                return False
            self._heard[client_name] = time.monotonic()
            return heartbeat(token, client_name, client_fqcn, fl_ctx)

        def revoke(client_name: str) -> Any:
            """NVFlare forgets the device's tokens; its name stays free for a new kit."""
            self._register.revoke(client_name)
            self._notices.add(client_name, REVOKED)
            removed = disable(client_name)
            manager.enable_client(client_name)
            return removed

        manager.authenticate, manager.heartbeat, manager.disable_client = let_in, checked_heartbeat, revoke
        manager.max_num_clients = sys.maxsize  # whoever has a kit, and not the first hundred

    def _twin(self, manager: Any, name: str, machine: str) -> str:
        """The one who came first stays: a copy of a kit, stolen or by mistake, does not push it out."""
        first = manager.name_to_clients.get(name)
        if first is None or time.monotonic() - self._heard.get(name, -TWIN_SECONDS) > TWIN_SECONDS:
            return ""
        known = self._machines.get(first.token)
        if not machine or known in (None, machine):
            return ""
        return (
            f"another machine is here with the kit of {name}; two machines with one kit disturb each other. End one of "
            f"them and give it a kit of its own, or revoke the kit if the other is not yours"
        )

    def _refuse(self, name: str, reason: str, fl_ctx: FLContext) -> None:
        fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, reason, sticky=False)
        self.logger.error(f"refused {name}: {reason}")
        self._notices.add(name, reason)


def _who(request: Any) -> tuple[str, float | None, str]:
    """Name, moment from which the certificate holds, machine. Nothing is trusted yet: NVFlare checks the signature
    afterwards, and only a refusal can follow from what is read here."""
    from cryptography import x509

    name, payload = str(request.get_header(CellMessageHeaderKeys.CLIENT_NAME)), request.payload
    data = payload.get(IdentityChallengeKey.CERT) if isinstance(payload, Mapping) else None
    if not isinstance(data, bytes):
        return name, None, ""
    with suppress(ValueError):
        issued = x509.load_pem_x509_certificates(data)[0].not_valid_before_utc
        site = payload.get(ClientRegMsgKey.SITE_CONFIG)
        machine = str(site.get("machine", ""))[:64] if isinstance(site, Mapping) else ""
        return name, issued.timestamp(), machine
    return name, None, ""

"""Which messages NVFlare's processes take from each other: those that a run needs, and no others.

NVFlare 2.9.0's server passes messages on from one client to another, and its handlers ask whether a message is
authentic, not whether its sender may command (advisories/nvflare-2.9.0-client-relay.md). So every process of a fleet
looks at a message before NVFlare does (`message_filter`):

    a device            takes from the server what is listed here, from its own parent or job process anything, and does
                        of commands what a run needs, whoever gives them
    the server          takes from a device what is listed here, for itself and its job alone, and passes nothing on
    the server's job    the same list, once more

The lists say what is allowed: a topic that a new version brings is refused until somebody adds it. Who sent a message
is what the connection's certificate says. NVFlare lets a cell connect under its certificate's name alone, but it
believes what a message says of its origin, and who receives a message can use the signature in it for messages of its
own.
"""

from __future__ import annotations

from dataclasses import dataclass

from cos2p.fleet.nvflare.link import CHANNEL
from cos2p.fleet.nvflare.provisioning import ADMIN

SERVER = "server"
"""The server's cell; that of its job is `server.JOB`, a device's are `NAME` and `NAME.JOB`."""

LOCAL = "localhost"
"""Whom to name where no certificate does: somebody on this very machine."""

Pair = tuple[str, str]
"""Channel and topic; `*`: any topic."""

STREAM, ACK, ERROR, DATA = "sm__STREAM", "sm__ACK", "sm__ERROR", "sm__DATA"
"""The channel and topics in whose messages others are carried."""
_BYE = ("cellnet.channel", "bye")
_ANSWERS: frozenset[Pair] = frozenset({(STREAM, ACK), (STREAM, ERROR), ("return_only", "*")})
"""To what the receiver has sent itself."""

DEVICE_TO_SERVER = _ANSWERS | {
    ("task", "challenge"),
    ("task", "register regular"),
    ("task", "heart_beat"),
    ("task", "report_job_failure"),
    ("task", "quit"),
    _BYE,
}
DEVICE_TO_JOB = _ANSWERS | {
    (CHANNEL, "*"),  # our own frames, which `link` checks
    ("server_command", "get_task"),
    ("server_command", "submit_update"),
    ("aux_communication", "__sync_runner__"),
    ("aux_communication", "__job_heartbeat__"),
    ("aux_communication", "__task_check__"),
}
ADMIN_TO_SERVER = _ANSWERS | {
    ("task", "challenge"),
    ("task", "register admin"),
    ("hci_channel", "command"),
    ("aux_communication", "ObjectStreamer.Request"),
    ("aux_communication", "ObjectStreamer.Abort"),
    _BYE,
}
SERVER_TO_DEVICE = _ANSWERS | {("admin", "admin"), ("aux_communication", "__end_run__"), _BYE}
COMMANDS = frozenset(
    {
        "scheduler.check_resource",
        "scheduler.cancel_resource",
        "train.deploy",
        "train.start_job",
        "train.notify_job_status",  # by the job's own process
        "train.abort",
        "train.delete_run",
    }
)
"""Commands that a device obeys, out of all that `admin:admin` may ask. Not: run shell commands, shut down."""


@dataclass(frozen=True)
class Envelope:
    """A message before anybody acts on it: first what the connection says, then its sender's word."""

    me: str
    """The cell that got it."""
    peer: str
    """The cell at the other end of the connection."""
    inside: bool
    """The connection is the one between a parent and its job process."""
    certificate: str
    """The name in the certificate of the other end; empty: it showed none."""
    origin: str
    destination: str
    name: str
    """The client's, as the signature has it."""
    channel: str
    topic: str
    request: bool = True
    """Not an answer."""
    offers_line: bool = False
    """It asks the receiver to connect to an address that it names."""

    @property
    def sender(self) -> str:
        """Whose doing it is: by the certificate where devices connect, by what a checked message says elsewhere."""
        if self.certificate and machine(self.me) == SERVER:
            return self.certificate
        passed_on = machine(self.me) != SERVER or self.me.startswith(f"{self.peer}.")
        return (passed_on and machine(self.origin)[:64]) or LOCAL


def objection(message: Envelope) -> str:
    """Why a message is refused; empty: it is not."""
    if message.offers_line:
        return "it names an address to connect to"
    if not machine(message.origin):
        return "it does not say where it comes from"
    if (message.channel, message.topic) == _BYE and message.origin != message.peer:
        return "a farewell in the name of another"
    own = machine(message.me)
    if message.inside:
        return _objection_inside(message, own)
    if not message.certificate:
        return f"{message.peer} shows no certificate"
    return _objection_at_server(message) if own == SERVER else _objection_at_device(message, own, through=SERVER)


def _objection_inside(message: Envelope, own: str) -> str:
    """A message that a parent passes on is checked as if it had come directly."""
    if machine(message.peer) != own:
        return f"{message.peer} connects where only job processes do"
    if machine(message.origin) == own:
        return ""
    if message.me == own:
        return f"{message.peer} speaks for {message.origin}"
    if own != SERVER:
        return _objection_at_device(message, own, through=own)
    if message.destination != message.me:
        return "only the job itself is spoken to"
    return _unlisted(message, DEVICE_TO_JOB)


def _objection_at_server(message: Envelope) -> str:
    sender, is_admin = message.certificate, message.certificate == ADMIN
    if not is_admin and machine(message.peer) != sender:
        return f"it connects as {message.peer}"
    for claimed in (machine(message.origin), message.name or sender):
        if claimed not in (sender, machine(message.peer)):
            return f"it calls itself {claimed}"
    if message.destination == SERVER:
        return _unlisted(message, ADMIN_TO_SERVER if is_admin else DEVICE_TO_SERVER)
    if is_admin or machine(message.destination) != SERVER:
        return "only the server and its job are spoken to"
    return _unlisted(message, DEVICE_TO_JOB)


def _objection_at_device(message: Envelope, own: str, through: str) -> str:
    if message.peer != through or machine(message.origin) != SERVER:
        return "a device is commanded by its server alone"
    if machine(message.destination) != own:
        return "it is for another device"
    return _unlisted(message, SERVER_TO_DEVICE)


def _unlisted(message: Envelope, allowed: frozenset[Pair]) -> str:
    listed = {(message.channel, message.topic), (message.channel, "*")} & allowed
    return "" if listed or not message.request else "not needed in a run"


def machine(cell: str) -> str:
    return cell.partition(".")[0]

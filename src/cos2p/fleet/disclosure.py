"""Everything that leaves a device: every field of every message, how large, why, and how to switch it off.

The fields are those of the types the messages are made of; what is written here are only the words next to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cos2p.fleet.device.owner import DeviceFile, OwnerFile
from cos2p.fleet.kit import Kit, read_json
from cos2p.fleet.messages import Answer, CannotTakePart, Heartbeat, Hello, JoinRequest
from cos2p.fleet.spool import Notice
from cos2p.messages import Update

NEEDED = "cannot be: nothing works without it"


@dataclass(frozen=True)
class Disclosed:
    message: str
    when: str
    field: str
    size: str
    why: str
    off: str
    """How to switch it off."""


@dataclass(frozen=True)
class Message:
    name: str
    when: str
    kind: type
    words: Mapping[str, tuple[str, str, str]]
    """By field: size, why, how to switch it off."""


_SESSION = ("32 bytes", "a random number of this process, so that a restart is noticed", NEEDED)

MESSAGES: tuple[Message, ...] = (
    Message("hello", "when a run begins on the device", Hello, {
        "session": _SESSION,
        "clock": ("8 bytes", "the machine's time: a clock that is off makes certificates invalid", NEEDED),
    }),
    Message("ready", "when its data are loaded", JoinRequest, {
        "samples": ("a number", "training samples: bounds the batch, and weighs updates in some methods", NEEDED),
        "test_samples": ("a number", "local test samples", "partition.local_test = 0 in the recipe"),
        "memory": ("a number", "bytes for training: decides the share of the model", "join without --memory"),
        "flops": ("a number", "measured speed: decides the share of the model", "join without --device"),
        "rows": ("a bit for each token of the vocabulary", "which tokens occur in its texts, to get their rows alone; "
                 "empty for images", "training.embeddings = 'whole' in the recipe"),
        "base": ("32 bytes for each block", "hashes of the checkpoint in its own files, so that it is not sent",
                 "join without --base"),
        "texts": ("two numbers", "tokens of its longest text and of all: how much memory tasks take; 0 of images",
                  "is off in private runs"),
    }),
    Message("unfit", "when it cannot take part", CannotTakePart, {
        "session": _SESSION,
        "reason": ("up to 1,000 bytes", "a code and counts, never contents, paths or names", NEEDED),
    }),
    Message("heartbeat", "every few seconds", Heartbeat, {"session": _SESSION}),
    Message("update", "once for each task", Update, {
        "client": ("its name", "compared with the certificate's", NEEDED),
        "task": ("its name", "which task is answered", NEEDED),
        "version": ("a number", "the model it started from", NEEDED),
        "spec": ("a number for each kept head and unit", "which segments were trained; chosen by its data where "
                 "masks are trained", "method.masks.heads = method.masks.units = 'fixed' or 'random'"),
        "delta": ("4 bytes for each trained scalar, 2 or 1 with training.wire.up", "what it learned: the point of it "
                  "all. A curious server can infer something of the data from it",
                  "privacy.noise = 'local' covers it with noise"),
        "samples": ("a number", "as in `ready`", NEEDED),
        "report": ("a few numbers", "losses, and scores of its own submodel on its own test samples",
                   "is off: only with fleet.reports = 'full', never with send.report = 'none' in owner.toml; whether "
                   "features were recomputed is always reported, and with training.lr = 'auto' the losses of a few "
                   "rates, once, unless send.report = 'none' or the run is private"),
        "extras": ("by method", "what some methods send next to: statistics of segments, of features, of quantisers",
                   "accept.methods in owner.toml; [privacy] sends none"),
    }),
    Message("announcement", "before and with each chunk of an update", Notice, {
        "task": ("its name", "whose bytes these are", NEEDED),
        "size": ("a number", "refused beforehand if too large", NEEDED),
        "digest": ("64 bytes", "SHA-256 of the update: whether it came whole", NEEDED),
    }),
    Message("answer", "when a task ended", Answer, {
        "sent": ("as the announcement", "the update is complete", NEEDED),
        "failure": ("up to 1,000 bytes", "a code and counts: why there is no update", NEEDED),
        "out_of_memory": ("1 bit", "the next task is made smaller", NEEDED),
        "cache_miss": ("1 bit", "its cache lacks frozen parts that it should have: they are sent again", NEEDED),
        "numbers": ("up to ten numbers", "seconds of download, training and upload, processor seconds, peak memory",
                    NEEDED),
    }),
)  # fmt: skip

TRANSPORT = (
    Disclosed("registration", "when the kit's process starts", "name, certificate, signature", "about 2 kB",
              "who it is; checked against the fleet's authority", NEEDED),
    Disclosed("registration", "when the kit's process starts", "address", "16 bytes",
              "the machine's own IP address, as NVFlare sends it", NEEDED),
    Disclosed("heartbeat", "every two seconds", "token, names of running jobs", "about 1 kB",
              "that it is alive, and what runs on it", NEEDED),
)  # fmt: skip
"""Messages that NVFlare itself sends."""

_SITE = {
    "machine": "a hash of machine and place, of this fleet alone: two machines with one kit are noticed by it",
}


def disclosed() -> list[Disclosed]:
    """All fields of all messages. KeyError, for the test, if a field has no words or words have no field."""
    found = list(TRANSPORT)
    for message in MESSAGES:
        names = [field.name for field in fields(message.kind)]
        if stray := set(message.words) - set(names):
            raise KeyError(f"{message.name} has no field {sorted(stray)[0]!r} any more")
        found += [Disclosed(message.name, message.when, name, *message.words[name]) for name in names]
    return found


def of_kit(kit: Kit) -> list[Disclosed]:
    """The same for this device: what its own files already switch off is said so."""
    owner, device = OwnerFile.read(kit.folder), DeviceFile.read(kit.folder)
    done = {
        ("update", "report"): "off: owner.toml says so" if owner.send.report == "none" else "",
        ("ready", "memory"): "" if owner.smaller_memory(device.memory) else "off: 0 is sent",
        ("ready", "flops"): "" if device.flops else "off: 0 is sent",
    }
    own = [
        Disclosed(d.message, d.when, d.field, d.size, d.why, done.get((d.message, d.field)) or d.off)
        for d in disclosed()
    ]
    when = "when the kit's process starts"
    site = [
        Disclosed(
            "registration", when, name, "a few bytes", _SITE.get(name, "a setting of NVFlare's in this kit"), NEEDED
        )
        for name in site_settings(kit)
    ]
    return [*own[: len(TRANSPORT)], *site, *own[len(TRANSPORT) :]]


def site_settings(kit: Kit) -> list[str]:
    """Settings of the kit that NVFlare sends the server: all but those that describe the device itself."""
    from cos2p.fleet.nvflare import sent_at_registration

    files = (kit.startup / "fed_client.json", kit.local / "resources.json")
    merged: dict[str, Any] = {}
    for path in files:
        merged |= read_json(path)
    return sorted({*sent_at_registration(merged), "machine"})

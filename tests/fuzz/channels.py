"""Made-up messages against the lists of what a fleet's processes take from each other. Needs NVFlare, but no fleet."""

from __future__ import annotations

import random

from cos2p.fleet.nvflare import channels
from cos2p.fleet.nvflare.channels import Envelope, Pair, machine, objection
from cos2p.fleet.nvflare.provisioning import ADMIN

JOB = "0d3e4c1c-8f6b-4b53-9c5e-6d3d54f1a001"
HOSTILE, VICTIM = "dev-2", "dev-1"
CELLS = ("server", f"server.{JOB}", VICTIM, f"{VICTIM}.{JOB}", HOSTILE, f"{HOSTILE}.{JOB}", "_admin_1", "", "x", ".")
LISTED = sorted(
    channels.DEVICE_TO_SERVER | channels.DEVICE_TO_JOB | channels.ADMIN_TO_SERVER | channels.SERVER_TO_DEVICE
)
OTHERS: tuple[Pair, ...] = (
    ("client_command", "abort"), ("server_command", "abort"), ("_net_manager", "cells"), ("admin", "train.shutdown"),
    ("server_parent_listener", "get_clients"), ("cellnet.channel", "bulk"), ("task", "register relay"),
)  # fmt: skip


def message(rng: random.Random) -> Envelope:
    """To the server or its job from a hostile device, or to another device from anywhere."""
    me = rng.choice((*CELLS[:2], *CELLS[2:4]))
    inside = rng.random() < 0.3
    at_server = machine(me) == channels.SERVER
    own = rng.choice(CELLS[4:6])
    likely = own if at_server and not inside else machine(me) if inside else "server"
    channel, topic = _pair(rng)
    return Envelope(
        me=me,
        peer=_or_any(likely, rng),
        inside=inside,
        certificate="" if inside else HOSTILE if at_server else "host",
        origin=_or_any(own if at_server else "server", rng),
        destination=_or_any(me, rng),
        name=rng.choice((HOSTILE, HOSTILE, "", "server", VICTIM, ADMIN)),
        channel=channel,
        topic=topic,
        request=rng.random() < 0.8,
        offers_line=rng.random() < 0.05,
    )


def _or_any(likely: str, rng: random.Random) -> str:
    return likely if rng.random() < 0.6 else rng.choice(CELLS)


def _pair(rng: random.Random) -> Pair:
    pair = list(rng.choice((*LISTED, *OTHERS)))
    if rng.random() < 0.3:
        place = rng.randrange(2)
        word = pair[place]
        pair[place] = rng.choice((word.upper(), f"{word} ", f" {word}", f"{word}\0", word[:-1], "*", "", f"{word}.x"))
    return pair[0], pair[1]


def harm(taken: Envelope) -> str:
    """What a message that is let through must not do; empty: it does not."""
    own, origin = machine(taken.me), machine(taken.origin)
    pair = (taken.channel, taken.topic)
    if taken.offers_line:
        return "a line to an address that the sender chose"
    if taken.inside:
        if machine(taken.peer) != own:
            return "a stranger in the place of a parent or its job"
        if origin == own:
            return ""
        if taken.me == own:
            return "a job speaks for another"
        if own == channels.SERVER:
            spoken_to = taken.destination == taken.me and origin != ""
            return "" if spoken_to and _listed(taken, channels.DEVICE_TO_JOB) else f"{pair} reaches the job"
    elif own == channels.SERVER:
        if machine(taken.peer) != HOSTILE or origin != HOSTILE or taken.name not in ("", HOSTILE):
            return "it speaks in another's name"
        if machine(taken.destination) != channels.SERVER:
            return "it is passed on to another device"
        to_parent = taken.destination == channels.SERVER
        allowed = channels.DEVICE_TO_SERVER if to_parent else channels.DEVICE_TO_JOB
        return "" if _listed(taken, allowed) else f"{pair} reaches the server"
    elif taken.peer != channels.SERVER:
        return "a device listens to another than its server"
    if origin != channels.SERVER or machine(taken.destination) != own:
        return "a device is commanded by another than its server"
    return "" if _listed(taken, channels.SERVER_TO_DEVICE) else f"{pair} reaches a device"


def _listed(taken: Envelope, allowed: frozenset[Pair]) -> bool:
    """Answers are to what the receiver asked itself."""
    return not taken.request or (taken.channel, taken.topic) in allowed or (taken.channel, "*") in allowed


def attempt(seed: int) -> tuple[str, str]:
    """The fate of one message, and the harm it does."""
    made = message(random.Random(seed))
    if objection(made):
        return "refused", ""
    found = harm(made)
    return "taken", f"{found}: {made}" if found else ""

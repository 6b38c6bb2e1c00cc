"""Clients of the server: who each one is, its rate, which process speaks for it now, and when it was last heard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from cos2p.devices.settings import DeviceGroup
from cos2p.errors import UpdateRefused
from cos2p.fleet.messages import JoinRequest
from cos2p.memory.planning import by_rate, least_of, rate_limit, with_parts
from cos2p.memory.tasks import Member
from cos2p.methods import build_method
from cos2p.models.config import ModelConfig
from cos2p.models.spec import from_bits, to_bits
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import fleet_devices, run_context


def member_of(recipe: Recipe, config: ModelConfig, name: str, facts: JoinRequest) -> Member:
    """The member a joining client becomes.

    A device the recipe names keeps the recipe's figures where it measured none of its own; any other is taken as one
    of the recipe's first kind, its rate chosen by its memory.
    """
    group = _group(recipe, name)
    device = group.device(name)
    changes = {"memory": facts.memory or device.memory, "flops": facts.flops or device.flops}
    device = device.model_copy(update=changes)
    member = Member(
        name,
        device,
        1.0 if group.rate == "auto" else group.rate,
        min(group.batch, facts.samples),
        facts.samples,
        facts.test_samples,
        known_rows(config, facts.rows),
        known_texts(config, facts.texts),
        auto=group.rate == "auto",
    )
    return planned(config, member, recipe)


def known_rows(config: ModelConfig, rows: str) -> str:
    """The tokens that a client says its texts have; UpdateRefused if the model does not know them all."""
    if not rows:
        return ""
    held = from_bits(rows)
    if not held or held[-1] >= config.vocab:
        last = f"the token {held[-1]}" if held else "no token"
        raise UpdateRefused(f"its texts have {last}; the model knows 0 to {config.vocab - 1}")
    return to_bits(held)


def known_texts(config: ModelConfig, texts: tuple[int, int]) -> tuple[int, int]:
    """How long a client says its texts are; UpdateRefused if the model takes none so long."""
    if texts[0] > config.max_tokens or (texts[0] and config.family == "vit"):
        raise UpdateRefused(f"its longest text has {texts[0]} tokens; the model takes at most {config.max_tokens}")
    return texts


def _group(recipe: Recipe, name: str) -> DeviceGroup:
    own = next((group for device, group in fleet_devices(recipe) if device.name == name), None)
    return own or recipe.fleet.devices[0].model_copy(update={"rate": "auto"})


def planned(config: ModelConfig, member: Member, recipe: Recipe) -> Member:
    """The member with what it trains; one whose rate does not fit its memory trains what does."""
    context = run_context(recipe, config, {member.name: member})
    method = build_method(recipe.method, context)
    if not (member.auto or method.by_memory or method.over_budget) and context.enforce_memory:
        limit = member.device.memory
        if by_rate(method):
            fits = member.rate <= rate_limit(method, member, limit, exact=False)
        else:
            fits = least_of(method, member) <= limit
        if not fits:
            member = replace(member, auto=True)
            method = build_method(recipe.method, replace(context, members={member.name: member}))
    return with_parts(method).members[member.name]


# ---------------------------------------------------------------- presence


@dataclass
class _Entry:
    heard: float
    session: str = ""
    gone: bool = False
    """Reported to the coordinator as having left."""
    from_before: bool = False
    """Known from a checkpoint: the server process that gave it its task is no more."""


class Presence:
    """Written by the network's threads, read by the run's."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def restore(self, clients: Iterable[str]) -> None:
        """Clients of a checkpoint. They have the usual time to be heard; then they have left."""
        with self._lock:
            for client in clients:
                self._entries[client] = _Entry(self._clock(), from_before=True)

    def hello(self, client: str, session: str) -> None:
        with self._lock:
            entry = self._entries.setdefault(client, _Entry(self._clock()))
            entry.session, entry.heard = session, self._clock()

    def is_current(self, client: str, session: str) -> bool:
        """A process that was replaced by a newer one of the same client has nothing to say any more."""
        with self._lock:
            return client in self._entries and self._entries[client].session == session

    def heard(self, client: str, session: str | None = None) -> None:
        with self._lock:
            entry = self._entries.get(client)
            if entry is not None and session in (None, entry.session):
                entry.heard = self._clock()

    def session(self, client: str) -> str:
        with self._lock:
            return self._entries[client].session if client in self._entries else ""

    def mark_joined(self, client: str) -> bool:
        """It is here from now on. Returns whether it was known from a checkpoint, and not heard since."""
        with self._lock:
            entry = self._entries.setdefault(client, _Entry(self._clock()))
            before, entry.from_before = entry.from_before, False
            entry.gone, entry.heard = False, self._clock()
            return before

    def mark_silent(self) -> list[str]:
        """Those who have left without a word are gone from now on; each is named once."""
        return self._turn(lambda entry, age: not entry.gone and age > self._patience, gone=True)

    def mark_returned(self) -> list[str]:
        """Those who were gone and are heard again, the same process as before, are here again; each is named once."""
        return self._turn(lambda entry, age: entry.gone and not entry.from_before and age <= self._patience, gone=False)

    def ages(self) -> dict[str, float]:
        """Seconds since each client was heard."""
        with self._lock:
            return {client: self._clock() - entry.heard for client, entry in self._entries.items()}

    def _turn(self, which: Callable[[_Entry, float], bool], gone: bool) -> list[str]:
        now = self._clock()
        with self._lock:
            turned = [client for client, entry in self._entries.items() if which(entry, now - entry.heard)]
            for client in turned:
                self._entries[client].gone = gone
            return turned

"""Fleets whose devices have so many bytes, and methods asked for what they would give out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cos2p.memory.parts import Part
from cos2p.memory.ways import needed_bytes
from cos2p.methods import build_method
from cos2p.methods.base import Assignment, Call, Method, RunContext


def with_memory(house: RunContext, *memories: int) -> RunContext:
    """The members of a context with so much memory each."""
    members = {
        name: replace(member, device=member.device.model_copy(update={"memory": memory}))
        for (name, member), memory in zip(house.members.items(), memories, strict=True)
    }
    return replace(house, members=members)


def training(house: RunContext, *parts: Part) -> RunContext:
    """The members of a context with what each of them trains."""
    members = zip(house.members.values(), parts, strict=True)
    return replace(house, members={member.name: member.training(part) for member, part in members})


def asked(method: Method, client: str, turn: int = 0, version: int | None = None) -> Assignment:
    member = method.context.members[client]
    return method.assign(Call(member, turn if version is None else version, turn, turn, {}))


def fitted(
    settings: Mapping[str, Any], house: RunContext, task: Callable[[Method, str], Assignment], slack: int = 0
) -> RunContext:
    """The house with exactly the bytes that `task` needs on each device."""
    method = build_method(settings, house)
    needed = [needed_bytes(method, member, task(method, name)) for name, member in house.members.items()]
    return with_memory(house, *(size + slack for size in needed))

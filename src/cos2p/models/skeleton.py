"""Modules without values, made once and copied: a device that trains for a second should not build for long."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)

Slot = tuple[str, nn.Module, str]
"""A parameter's full name, the module that has it, and its name there."""


def twin(module: M) -> M:
    """A module of the same structure, whose parameters, hooks and settings can be changed without touching the other.

    Parameters themselves are shared until they are replaced; of anything else that is mutable the reference is copied.
    """
    copies: dict[int, nn.Module] = {}
    copy = _copied(module, copies)
    for own in copies.values():  # modules that are used here and belong to another part
        for name, value in own.__dict__.items():
            if isinstance(value, nn.Module) and id(value) in copies:
                own.__dict__[name] = copies[id(value)]
    return copy


def _copied(module: M, copies: dict[int, nn.Module]) -> M:
    copy = type(module).__new__(type(module))
    state = {k: v.copy() if type(v) in (dict, OrderedDict) else v for k, v in module.__dict__.items()}
    children = state["_modules"]
    for name, child in children.items():
        if child is not None:
            children[name] = copies[id(child)] if id(child) in copies else _copied(child, copies)
    copy.__dict__ = state
    copies[id(module)] = copy
    return copy


def slots(module: nn.Module, prefix: str = "") -> Iterator[Slot]:
    """Every parameter, in the order of `named_parameters`."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + name, module, name
    for name, child in module._modules.items():
        if child is not None:
            yield from slots(child, f"{prefix}{name}.")

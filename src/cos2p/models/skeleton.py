"""Modules without values, made once and copied: a device that trains for a second should not build for long."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)

Slot = tuple[str, nn.Module, str]
"""A parameter's full name, the module that has it, and its name there."""

_TABLES = tuple(name for name, value in nn.Module().__dict__.items() if isinstance(value, dict))
"""The tables that every module keeps of parameters, buffers, children and hooks."""


class Skeleton(Generic[M]):
    """A module of which copies are made, each of which can be loaded, hooked and changed without touching the others.

    Parameters themselves are shared until they are replaced; of anything else that is mutable the reference is copied.
    """

    def __init__(self, module: M) -> None:
        self._module = module
        within = {id(child) for child in module.modules()}
        self._used_elsewhere = [
            (id(user), name, id(value))
            for user in module.modules()
            for name, value in user.__dict__.items()
            if isinstance(value, nn.Module) and id(value) in within
        ]
        """Modules that belong to one part and are used by another: who uses them, by which name, which."""

    def twin(self) -> M:
        copies: dict[int, nn.Module] = {}
        copy = _copied(self._module, copies)
        for user, name, used in self._used_elsewhere:
            copies[user].__dict__[name] = copies[used]
        return copy


def _copied(module: M, copies: dict[int, nn.Module]) -> M:
    copy = type(module).__new__(type(module))
    state = module.__dict__.copy()
    for name in _TABLES:
        state[name] = state[name].copy()
    children = state["_modules"]
    for name, child in children.items():
        if child is not None:
            children[name] = copies[id(child)] if id(child) in copies else _copied(child, copies)
    copy.__dict__ = state
    copies[id(module)] = copy
    return copy


def slots(module: nn.Module, prefix: str = "") -> list[Slot]:
    """Every parameter, in the order of `named_parameters`; one that two modules share comes twice."""
    found: list[Slot] = []
    _collect(module, prefix, found)
    return found


def _collect(module: nn.Module, prefix: str, found: list[Slot]) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found.append((prefix + name, module, name))
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{prefix}{name}.", found)


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that train, by name, as `named_parameters` gives them: one that is shared comes once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, owner, own in slots(module):
        parameter = owner._parameters[own]
        if parameter is not None and parameter.requires_grad:
            found.setdefault(id(parameter), (name, parameter))
    return dict(found.values())

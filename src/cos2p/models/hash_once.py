"""Values that are keys of many tables: their hash is worked out once."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")

_KEPT = "_hash"


def hash_once(cls: type[T]) -> type[T]:
    """For a frozen dataclass. A model's description has dozens of fields, a submodel's thousands of numbers, and every
    look at a table that is kept by them would hash all again.

    The hash of a text differs between processes, so it does not travel with a pickled value.
    """
    plain = cls.__hash__

    def hashed(self: T) -> int:
        known: int | None = self.__dict__.get(_KEPT)
        if known is None:
            known = self.__dict__[_KEPT] = plain(self)
        return known

    def state(self: T) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _KEPT}

    cls.__hash__ = hashed  # type: ignore[method-assign, assignment]
    cls.__getstate__ = state  # type: ignore[method-assign, assignment]
    return cls

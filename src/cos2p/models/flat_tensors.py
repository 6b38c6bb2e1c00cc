"""Tensors that lie in one piece of memory, each where a tensor of its own would begin.

A small model has a hundred tensors of a few thousand numbers. To visit each in turn takes longer than to copy, subtract
or add all of them, which in one piece is a single pass. Large ones are better off in memory of their own, which is
given back with each of them.

What is done to the piece is done to every number in it by itself, so the results are those of tensor by tensor, bit for
bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch import Tensor

from cos2p.models.layout import Weights

MOST_BYTES = 2**24
"""Of more than this no piece is made."""

ALIGNED = 16
"""Scalars: 64 bytes, where torch lets a tensor begin. Kernels may round otherwise at another address."""

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


class FlatLayout:
    """Where each of a set of float32 tensors lies. Made once for each set: two pieces of a kind have the same one."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = dict(shapes)
        self._compared: Mapping[str, tuple[int, ...]] | None = None
        self.begins: dict[str, int] = {}
        self.runs: list[tuple[int, int, int]] = []
        """Tensors with no gap between them: where the first begins, where it would if there were no gaps at all, and
        how many scalars all of them have."""
        self.scalars = self.values = 0
        """With gaps and without."""
        for name, shape in shapes:
            begin, length = self.scalars, math.prod(shape)
            self.begins[name] = begin
            if self.runs and begin == sum(self.runs[-1][::2]):
                self.runs[-1] = (*self.runs[-1][:2], self.runs[-1][2] + length)
            else:
                self.runs.append((begin, self.values, length))
            self.values += length
            self.scalars += -(-length // ALIGNED) * ALIGNED

    def is_of(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether it is of tensors with just these names and shapes. What cannot change is compared once."""
        if shapes is self._compared:
            return True
        same = self.shapes == shapes
        if same and isinstance(shapes, MappingProxyType):
            self._compared = shapes
        return same

    @cached_property
    def families(self) -> list[Family]:
        return _families(self)

    def empty(self) -> Tensor:
        """A piece whose gaps are zero; its values are not set."""
        memory = torch.empty(self.scalars)
        room = memory.numpy()
        ends = [begin for begin, _, _ in self.runs[1:]]
        for (begin, _, length), end in zip(self.runs, [*ends, self.scalars], strict=True):
            room[begin + length : end] = 0.0
        return memory

    def spread(self, dense: Any) -> Tensor:
        """A piece with the values (an array) of tensors that lie one behind the other without gaps."""
        memory = self.empty()
        room = memory.numpy()
        for begin, source, length in self.runs:
            room[begin : begin + length] = dense[source : source + length]
        return memory

    def dense(self, memory: Tensor) -> list[memoryview]:
        """The bytes of the values, one behind the other, without the gaps."""
        room = memory.numpy()
        return [room[begin : begin + length].data.cast("B") for begin, _, length in self.runs]


class Family:
    """Tensors of the same name but for the number of their block, at equal distances from each other."""

    def __init__(self, names: list[str], shape: tuple[int, ...], begin: int, step: int) -> None:
        self.names, self.shape, self._begin, self._step = names, shape, begin, step
        self._strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.length = math.prod(shape)

    @property
    def place(self) -> tuple[int, int, int]:
        """Where the first begins, how far apart they are, and how many."""
        return self._begin, self._step, len(self.names)

    def rows(self, memory: Tensor) -> Tensor:
        """All of them as a matrix, each a row."""
        return memory.as_strided((len(self.names), self.length), (self._step, 1), self._begin)

    def of(self, memory: Tensor) -> Tensor:
        """All of them as one tensor, with one axis more in front."""
        return memory.as_strided((len(self.names), *self.shape), (self._step, *self._strides), self._begin)


def _families(arranged: FlatLayout) -> list[Family]:
    """In the order of their first members. Where a block is cut otherwise than the one before, a new one begins."""
    found: dict[tuple[str, ...], list[list[str]]] = {}
    for name, shape in arranged.shapes.items():
        first, _, rest = name.partition(".")
        number, _, rest = rest.partition(".")
        if not (first == "blocks" and number.isdigit()):
            rest = name
        groups = found.setdefault((first, rest), [])
        if groups and _continues(arranged, groups[-1], name, shape):
            groups[-1].append(name)
        else:
            groups.append([name])
    made = []
    for names in (names for groups in found.values() for names in groups):
        begins = [arranged.begins[name] for name in names[:2]]
        made.append(Family(names, arranged.shapes[names[0]], begins[0], begins[-1] - begins[0]))
    return made


def _continues(arranged: FlatLayout, names: list[str], name: str, shape: tuple[int, ...]) -> bool:
    begins = arranged.begins
    if shape != arranged.shapes[names[0]]:
        return False
    return len(names) == 1 or begins[name] - begins[names[-1]] == begins[names[1]] - begins[names[0]]


@lru_cache(maxsize=256)
def flat_layout(shapes: Shapes) -> FlatLayout:
    """Of tensors by name and shape, sorted: sums over them must not depend on the order in which they came."""
    return FlatLayout(shapes)


class FlatTensors(dict[str, Tensor]):
    """Tensors by name, like any others, with the memory that they share.

    They are made when the first of them is asked for: who wants all of them asks for the memory. Which they are is
    fixed; to exchange one, make a dict of them.
    """

    def __init__(self, arranged: FlatLayout, memory: Tensor) -> None:
        super().__init__()
        self.arranged, self.memory = arranged, memory
        self._made = False

    @classmethod
    def zeros(cls, arranged: FlatLayout) -> FlatTensors:
        return cls(arranged, torch.zeros(arranged.scalars))

    @property
    def changes(self) -> int:
        """How often the memory or a tensor in it was changed in place."""
        return self.memory._version + (sum(t._version for t in super().values()) if self._made else 0)

    def copy(self) -> FlatTensors:
        """The same values in other memory."""
        return FlatTensors(self.arranged, self.memory.clone())

    def minus(self, other: FlatTensors) -> FlatTensors:
        """Of another of the same kind."""
        return FlatTensors(self.arranged, self.memory - other.memory)

    def _make(self) -> None:
        if self._made:
            return
        self._made = True
        for name, shape in self.arranged.shapes.items():
            strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            view = self.memory.as_strided(shape, strides, self.arranged.begins[name])
            dict.__setitem__(self, name, view.data)  # so that each counts its changes by itself

    def _fixed(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("tensors in one piece of memory cannot be exchanged; make a dict of them first")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _fixed

    # Whatever looks at a tensor makes them; a copy by `dict(...)` or `{**...}` goes through `keys`, because there is an
    # `__iter__` here.

    def __len__(self) -> int:
        return len(self.arranged.shapes)

    def __iter__(self) -> Any:
        return iter(self.arranged.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.arranged.shapes

    def __getitem__(self, name: str) -> Tensor:
        self._make()
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._make()
        return super().get(name, default)

    def keys(self) -> Any:
        return self.arranged.shapes.keys()

    def values(self) -> Any:
        self._make()
        return super().values()

    def items(self) -> Any:
        self._make()
        return super().items()

    def __or__(self, other: Any) -> Any:
        return {**self, **other}

    def __ror__(self, other: Any) -> Any:
        return {**other, **self}

    def __reversed__(self) -> Any:
        return reversed(self.arranged.shapes)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (list(self.items()),)


def copied(weights: Weights) -> Weights:
    """The same values in memory of their own; in one piece, if they were."""
    if isinstance(weights, FlatTensors):
        return weights.copy()
    return {name: tensor.clone() for name, tensor in weights.items()}


def same_kind(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Whether both are in one piece, arranged alike."""
    return isinstance(a, FlatTensors) and isinstance(b, FlatTensors) and a.arranged is b.arranged

"""Texts at their real lengths: token ids one behind the other, padded when a batch asks for them.

Shapes: N texts, n of them in a batch, T tokens of its longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cos2p.data.select import IntArray

IGNORE = -100
"""A label that counts for nothing: torch's cross entropy skips it by default."""

STEP = 8
"""Batches are padded to a multiple of this: few different shapes for the kernels, at most seven idle tokens a text."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Reads like a padded tensor (N, T) of int64, `ids[rows]`, as wide as the longest of its rows needs."""

    values: Tensor
    """All ids in a row, int32."""
    starts: Tensor
    """(N,): where each text begins."""
    lengths: Tensor
    """(N,): how long it is."""
    fill: int
    """The id that fills up short texts."""
    longest: int
    """No text is longer, and no batch wider."""
    answers: Tensor | None = None
    """(N,): where in each text its (last) answer begins, if only answers are to be predicted; None: all of it."""
    learned: Tensor | None = None
    """Which ids are to be predicted, next to `values`, of texts with several answers."""

    dtype = torch.int64
    ndim = 2

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), self.longest))

    @property
    def nbytes(self) -> int:
        return int(self.lengths.sum()) * self.values.itemsize

    @property
    def widths(self) -> Tensor:
        """(N,): tokens that a batch needs at least to hold each text."""
        return ((self.lengths + STEP - 1) // STEP * STEP).clamp_max(self.longest)

    def subset(self, rows: Tensor) -> Ragged:
        """These texts; the ids are shared."""
        answers = None if self.answers is None else self.answers[rows]
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows], answers=answers)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return self._padded(rows, shift=0, fill=self.fill)

    def next_tokens(self, rows: Tensor | slice) -> Tensor:
        """(n, T) for `ids[rows]`: at t the id at t + 1; ignored from the last real token on, and before answers."""
        next_nT = self._padded(rows, shift=1, fill=IGNORE)
        if self.learned is not None:
            marks = replace(self, values=self.learned.int(), answers=None, learned=None)
            next_nT[marks._padded(rows, shift=1, fill=0) == 0] = IGNORE
        elif self.answers is not None:
            next_nT[torch.arange(next_nT.shape[1]) + 1 < self.answers[rows][:, None]] = IGNORE
        return next_nT

    def prompts(self, rows: Tensor) -> tuple[list[list[int]], list[list[int]]]:
        """The parts of these texts before their answers, and the answers."""
        assert self.answers is not None
        found = []
        for row in rows.tolist():
            start, length, answer = int(self.starts[row]), int(self.lengths[row]), int(self.answers[row])
            own = self.values[start : start + length].tolist()
            found.append((own[:answer], own[answer:]))
        return [before for before, _ in found], [after for _, after in found]

    def different(self) -> Tensor:
        """The ids that occur, ascending."""
        before = self.lengths.cumsum(0) - self.lengths
        inside = torch.arange(int(self.lengths.sum())) - before.repeat_interleave(self.lengths)
        ids: Tensor = self.values[self.starts.repeat_interleave(self.lengths) + inside].unique()
        return ids.long()

    def dense(self) -> Tensor:
        """(N, longest), padded as far as the model reaches."""
        whole = torch.full(self.shape, self.fill, dtype=torch.int64)
        some = self[:]
        whole[:, : some.shape[1]] = some
        return whole

    def _padded(self, rows: Tensor | slice, shift: int, fill: int) -> Tensor:
        widths = self.widths[rows]
        at_nT, inside_nT = places(self.starts[rows] + shift, self.lengths[rows] - shift, widest(widths))
        padded = torch.full(at_nT.shape, fill, dtype=torch.int64)
        padded[inside_nT] = self.values[at_nT[inside_nT]].long()
        return padded


def from_flat(values: Tensor, lengths: Tensor, fill: int, longest: int) -> Ragged:
    return Ragged(values, lengths.cumsum(0) - lengths, lengths, fill, longest)


def places(starts: Tensor, lengths: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(n, width) twice: where each element of a padded batch lies in the flat values, and whether there is one."""
    positions = torch.arange(width)
    return starts[:, None] + positions, positions < lengths[:, None]


def length_batches(widths: Tensor, batch: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Rows of the batches of one pass, in random order: every text once, texts of one width together.

    Which texts of a width meet, and in which place the one batch that is not full comes, is drawn; so short texts
    cost what they are, and yet no two passes are alike.
    """
    drawn = torch.randperm(len(widths), generator=rng)
    by_width = drawn[widths[drawn].argsort(stable=True)]
    full, rest = divmod(len(widths), batch)
    sizes = [batch] * full
    if rest:
        sizes.insert(int(torch.randint(full + 1, (), generator=rng)), rest)
    batches = by_width.split(sizes)
    for i in torch.randperm(len(batches), generator=rng).tolist():
        yield batches[i]


def widest(widths: Tensor) -> int:
    return int(widths.max()) if len(widths) else 0


@dataclass(frozen=True, eq=False)
class Tokens:
    ids: Ragged
    vocabulary: int
    """How many different ids there are."""

    def subset(self, rows: IntArray) -> Tokens:
        return Tokens(self.ids.subset(torch.from_numpy(rows)), self.vocabulary)

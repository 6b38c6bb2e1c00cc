"""Who a sample belongs to (a writer, a speaker): a number for each sample, and a name for each number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cos2p.data.select import IntArray


@dataclass(frozen=True, eq=False)
class Groups:
    """Reads like a sequence of names, one for each sample, but is cheap to cut up for thousands of owners."""

    codes: IntArray
    names: tuple[str, ...]
    """In the order of the alphabet, so that equal names have equal places however the samples came."""

    @classmethod
    def of(cls, names: Sequence[str] | Groups) -> Groups:
        if isinstance(names, Groups):
            return names
        known, codes = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)
        return cls(codes.astype(np.int64), tuple(known.tolist()))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, sample: int) -> str:
        return self.names[int(self.codes[sample])]

    def __iter__(self) -> Iterator[str]:
        return (self.names[code] for code in self.codes.tolist())

    def subset(self, rows: IntArray) -> Groups:
        """Those of these samples; names are kept, also of groups that are not among them."""
        return Groups(self.codes[rows], self.names)

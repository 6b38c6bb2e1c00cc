"""Model versions still in flight. Tensors that did not change are shared between versions, so one costs little."""

from __future__ import annotations

from collections.abc import Iterable

from cos2p.models.layout import Weights


class Versions:
    """The current version, and every older one that an unanswered task was cut from."""

    def __init__(self, weights: Weights, version: int = 0) -> None:
        self.current = version
        self._held: dict[int, Weights] = {version: weights}

    def __getitem__(self, version: int) -> Weights:
        return self._held[version]

    @property
    def weights(self) -> Weights:
        return self._held[self.current]

    @property
    def held(self) -> tuple[int, ...]:
        return tuple(sorted(self._held))

    def advance(self, weights: Weights) -> None:
        self.current += 1
        self._held[self.current] = weights

    def restore(self, version: int, weights: Weights) -> None:
        """Put back an older version (from a checkpoint)."""
        self._held[version] = weights

    def keep_only(self, needed: Iterable[int]) -> None:
        """Forget every version but the current and those needed."""
        wanted = {self.current, *needed}
        self._held = {version: weights for version, weights in self._held.items() if version in wanted}

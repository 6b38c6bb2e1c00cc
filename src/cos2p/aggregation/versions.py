"""Model versions still in flight. Tensors that did not change are shared between versions, so one costs little."""

from __future__ import annotations

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

    def forget(self, version: int) -> None:
        """Nobody will ask for this one any more, unless it is the current."""
        if version != self.current:
            self._held.pop(version, None)

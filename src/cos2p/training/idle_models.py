"""Models of tasks that are over, for the next ones of the same kind.

A process that does hundreds of short tasks makes each model once: to take one of a hundred tensors apart and put it
together again takes as long as a good part of a step.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor

from cos2p.models.config import ModelConfig
from cos2p.models.one_piece import OnePiece
from cos2p.models.skeleton import trainable
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer

MOST = 4
"""Models that are kept; none is larger than `one_piece.MOST_BYTES`."""


@dataclass(frozen=True, eq=False)
class Ready:
    """A model in training mode, all of whose parameters train and lie in one piece."""

    model: ElasticTransformer
    weights: OnePiece
    parameters: list[Tensor]

    @classmethod
    def of(cls, model: ElasticTransformer, weights: OnePiece) -> Ready:
        return cls(model, weights, list(trainable(model).values()))


class IdleModels:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[ModelConfig, SubmodelSpec], Ready] = OrderedDict()

    def take(self, config: ModelConfig, spec: SubmodelSpec, weights: OnePiece) -> Ready | None:
        """One of this kind with these values, which are copied; None if there is none."""
        ready = self._kept.pop((config, spec), None)
        if ready is None or ready.weights.arranged is not weights.arranged:
            return None
        ready.weights.memory.copy_(weights.memory)
        if not ready.model.training:
            ready.model.train()
        return ready

    def put(self, ready: Ready) -> None:
        """Nobody needs this one any more."""
        for parameter in ready.parameters:
            parameter.grad = None
        self._kept[ready.model.config, ready.model.spec] = ready
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

"""Models of tasks that are over, for the next ones of the same kind.

A process that does hundreds of short tasks makes each model once: to take one of a hundred tensors apart and put it
together again takes as long as a good part of a step.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from cos2p.models.config import ModelConfig
from cos2p.models.flat_tensors import FlatTensors
from cos2p.models.skeleton import trainable
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.optimizers import make_optimizer

MOST = 4
"""Models that are kept; none is larger than `flat_tensors.MOST_BYTES`."""


@dataclass(frozen=True, eq=False)
class Ready:
    """A model in training mode, all of whose parameters train and lie in one piece."""

    model: ElasticTransformer
    weights: FlatTensors
    parameters: list[Tensor]
    _optimizers: dict[tuple[str, float], Optimizer] = field(default_factory=dict)
    """By name and weight decay."""

    @classmethod
    def of(cls, model: ElasticTransformer, weights: FlatTensors) -> Ready:
        return cls(model, weights, list(trainable(model).values()))

    def optimizer(self, name: str, lr: float, weight_decay: float) -> Optimizer:
        """Over all parameters, reset."""
        known = self._optimizers.get((name, weight_decay))
        if known is None:
            known = self._optimizers[name, weight_decay] = make_optimizer(name, self.parameters, lr, weight_decay)
        for group in known.param_groups:
            group["lr"] = lr
        return known

    def forget(self) -> None:
        """What the task left next to the weights; its gradients went when its training ended."""
        for optimizer in self._optimizers.values():
            optimizer.state.clear()


class IdleModels:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[ModelConfig, SubmodelSpec], Ready] = OrderedDict()

    def take(self, config: ModelConfig, spec: SubmodelSpec, weights: FlatTensors) -> Ready | None:
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
        ready.forget()
        self._kept[ready.model.config, ready.model.spec] = ready
        while len(self._kept) > MOST:
            self._kept.popitem(last=False)

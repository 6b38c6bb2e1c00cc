"""Local training with a proximal term, as FedAsync's clients have it: f(x) + ρ/2·‖x − x_τ‖².

The term is added to the gradient, so that the optimiser sees it as a part of the loss (weight decay here is decoupled
and would not be). The model as it came has to stay in memory: 4 bytes a parameter.
"""

from __future__ import annotations

from pydantic import Field

from cos2p.costs.ledger import Ledger
from cos2p.costs.shape import trainable_scalars
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.settings import Settings
from cos2p.training.costs import TaskFlops, trained_shape
from cos2p.training.masks import Remembered
from cos2p.training.observed import observed_memory, observed_work, train_observed
from cos2p.training.observers import Proximal
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import Shard
from cos2p.training.trainers import register


class ProximalTask(Settings):
    local: LocalSettings
    rho: float = Field(ge=0, description="ρ: pull towards the model as it came, 0.001 to 0.1.")


def _work(config: ModelConfig, order: Order, samples: int, test_samples: int) -> TaskFlops:
    return observed_work(config, order, samples, test_samples, per_scalar=4)


def _memory(config: ModelConfig, order: Order, samples: int) -> Ledger:
    return observed_memory(config, order, samples, extra=4 * trainable_scalars(config, trained_shape(config, order)))


@register("proximal", work=_work, memory=_memory)
def train_proximal(config: ModelConfig, task: Task, shard: Shard, memory: Remembered) -> tuple[Update, Remembered]:
    settings = ProximalTask.model_validate(task.order.settings)
    return train_observed(config, task, shard, Proximal(task.weights, settings.rho)), memory

"""Methods whose devices always hold the leading heads and units: tensors next to the model then keep their meaning.

As in HeteroFL (Diao et al. 2021) a small device's submodel is the beginning of a larger one's, and does not move. What
the largest device does not hold nobody ever trains; so the server's model is evaluated without it, and with the
rescaling it was trained with: the largest device's submodel, in the full model's shapes.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from cos2p import ModelConfig, SubmodelSpec, extract, scatter
from cos2p.methods import AveragingSettings, ConfigError, Settings, SubmodelSize, Weights, WidthMethod, width_spec
from cos2p_rivals.segments import by_block, even_order


class LeadingMethod(WidthMethod):
    settings_type: ClassVar[type[Settings]] = AveragingSettings
    settings: AveragingSettings

    def spec(self, client: str) -> SubmodelSpec:
        return leading_spec(self.context.config, self.budgets[client])

    def largest(self) -> SubmodelSpec:
        """The segments that any device holds: leading submodels lie inside each other."""
        budgets = self.budgets.values()
        heads, units = max(b.heads for b in budgets), max(b.units for b in budgets)
        return leading_spec(self.context.config, SubmodelSize(self.context.config.depth, 1.0, heads, units))

    def evaluated_weights(self, weights: Weights) -> Weights:
        return without_untrained(weights, self.context.config, self.largest(), self.settings.rescale)


def leading_spec(config: ModelConfig, budget: SubmodelSize) -> SubmodelSpec:
    """The first segments of every block, as many as the budget has.

    >>> from cos2p import model_config
    >>> spec = leading_spec(model_config("vit-tiny"), SubmodelSize(8, 1.0, heads=12, units=8))
    >>> [len(keep.heads) for keep in spec.window], spec.window[0].units
    ([2, 2, 2, 2, 1, 1, 1, 1], (0,))
    """
    heads = by_block(even_order(config.depth, config.groups)[: budget.heads], config.depth, config.groups)
    units = by_block(even_order(config.depth, config.mlp)[: budget.units], config.depth, config.mlp)
    return width_spec(heads, units)


def output_scales(config: ModelConfig, spec: SubmodelSpec) -> dict[str, float]:
    """By what the outputs of a submodel's layers are multiplied in training: `blocks.3.o` → h / kept heads."""
    scales: dict[str, float] = {}
    for block, keep in enumerate(spec.window):
        scales[f"blocks.{block}.o"] = config.groups / len(keep.heads) if keep.heads else 1.0
        scales[f"blocks.{block}.fc2"] = config.mlp / len(keep.units) if keep.units else 1.0
    return scales


def without_untrained(weights: Weights, config: ModelConfig, spec: SubmodelSpec, rescale: bool) -> Weights:
    """The full model with the outputs of all other segments at zero and those of `spec` rescaled."""
    if spec == SubmodelSpec.full(config):
        return weights
    evaluated = dict(weights)
    kept = extract(weights, config, spec)
    for layer, scale in output_scales(config, spec).items():
        name = f"{layer}.weight"
        into = {name: torch.zeros_like(weights[name])}
        evaluated[name] = scatter({name: kept[name] * (scale if rescale else 1.0)}, into, config, spec)[name]
    return evaluated


def require_vit(config: ModelConfig, method: str, why: str) -> None:
    if config.family != "vit":
        raise ConfigError(f"method {method!r} is for vision transformers, the model is a {config.family}: {why}")
    if config.pooling != "cls":
        raise ConfigError(f"method {method!r} reads the cls token; set model.pooling to 'cls', not {config.pooling!r}")

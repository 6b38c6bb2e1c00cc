"""FedAvg+AdaViT: every device trains policies that skip patches, heads and sublayers; all of it is averaged.

AdaViT (Meng et al., CVPR 2022; see `model`) is no federated method and knows no budget: it saves compute at
inference, input by input, while training holds the full model and a dense graph. Here it keeps the
budget: a device holds the leading heads and units of its rate R_n and its policies aim at γ = 0.9.

The policies live next to the model: devices get and return those of their heads, the server averages each entry over
who held it, and evaluates the model with them, as the paper does (gates by σ(logit), no noise).

From the public code: where policies sit and what they see, τ = 5, thresholds 0.5 and 0.6 (patches), the three usage
terms and their weight 2, no diversity, entropy or teacher term. Ours: the two choices of γ; the recipe's optimiser,
rate and epochs (theirs: AdamW, 5e-4, from a pretrained model); training-time rescaling; and the first biases. Theirs
are zero, which drops nine patches of ten until the usage terms have had their way: a pretrained model survives that,
one that starts from nothing learns from noise. Here the gates start at the wanted usage.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from cos2p import ElasticTransformer, ModelConfig, SubmodelSpec
from cos2p.methods import (
    Assignment,
    AveragingSettings,
    Call,
    Member,
    Merge,
    RunContext,
    Settings,
    Trainer,
    Weights,
    shared,
)
from cos2p_rivals.adavit.device import AdaptiveSettings, AdaptiveTrainer, GateSettings
from cos2p_rivals.adavit.model import AdaptiveTransformer, first_policies, policy_table
from cos2p_rivals.leading import LeadingMethod, require_vit
from cos2p_rivals.side_tensors import SideMerge


class PolicySettings(AveragingSettings, GateSettings):
    """Gates on the devices, averaging on the server."""


class PolicyMethod(LeadingMethod):
    """Local training with policies, which are averaged like the model; who holds what is left to its kinds."""

    settings_type: ClassVar[type[Settings]] = PolicySettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (AdaptiveTrainer,)
    embeddings = ("whole",)
    settings: PolicySettings

    def __init__(self, settings: Settings, context: RunContext) -> None:
        require_vit(context.config, self.name, "its policies gate image patches")
        super().__init__(settings, context)

    def assign(self, call: Call) -> Assignment:
        local = AdaptiveSettings.model_validate(
            {
                **self.local(call.member).model_dump(),
                **dict.fromkeys(("heads", "layers", "tokens"), self.usage(call.member)),
                **shared(self.settings, GateSettings),
            }
        )
        return Assignment(self.spec(call.member.name), local, AdaptiveTrainer)

    def usage(self, member: Member) -> float:
        """γ: which share of heads, sublayers and patches a device's policies aim at."""
        raise NotImplementedError

    def initial_weights(self, weights: Weights) -> Weights:
        usages = [self.usage(member) for member in self.context.members.values()]
        mean = sum(usages) / len(usages)
        return {**weights, **first_policies(self.context.config, self.context.seed, mean, self.settings.tau)}

    @staticmethod
    def own_model(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> ElasticTransformer:
        return AdaptiveTransformer(config, spec).load(weights)

    def merge(self) -> Merge:
        return SideMerge(self.context.config, policy_table(self.context.config), self.settings.weights)


class AdaViTSettings(PolicySettings):
    usage: float = Field(default=0.9, gt=0, le=1, description="γ: wanted share of heads, sublayers and patches in use.")


class FedAvgAdaViT(PolicyMethod):
    name: ClassVar[str] = "fedavg-adavit"
    title: ClassVar[str] = "FedAvg+AdaViT"
    settings_type: ClassVar[type[Settings]] = AdaViTSettings
    settings: AdaViTSettings

    def usage(self, member: Member) -> float:
        return self.settings.usage

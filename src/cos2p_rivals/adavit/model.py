"""AdaViT (Meng et al., CVPR 2022): every input decides which patches, heads and sublayers it uses.

Section 3 of the paper. In front of every block but the first, three linear policies give logits: from the class token
one for each head and for the two sublayers, from each normed patch one for itself. In training a gate is a hard
Gumbel-sigmoid draw with a straight-through gradient,

    y = σ((logit + G₁ − G₂) / τ),  gate = [y > threshold]

and at inference [σ(logit) > threshold], without noise. A dropped patch is seen by nobody but itself and its sublayers'
outputs are zero; a dropped head has no output; a dropped sublayer leaves the residual as it is. The class token is
always kept. The loss is that of the task plus, weight 2 each (public code),

    |mean head gate − γ_h| + |mean sublayer gate − γ_l| + (mean token gate − γ_t)²

where head gates count only in blocks of which a sublayer runs. In training every gate multiplies what was computed all
the same: it is inference that gets cheaper, not the graph of training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cos2p import ElasticTransformer, ModelConfig, SubmodelSpec
from cos2p.methods import Block, Context, Linear, Weights, place, torch_rng
from cos2p_rivals.side_tensors import SideTensor

THRESHOLD, TOKEN_THRESHOLD = 0.5, 0.6
"""From which value on a gate is open (public code)."""


@dataclass(frozen=True)
class Used:
    """The gates of one block in one pass: (B, heads), (B, 2), (B, T)."""

    heads: Tensor
    layers: Tensor
    tokens: Tensor


class Policy(nn.Module):
    """The three linear layers in front of a block, for the heads that are held."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.layers, self.tokens = Linear(dim, heads, True), Linear(dim, 2, True), Linear(dim, 1, True)


def gate(logits: Tensor, threshold: float, tau: float, rng: torch.Generator | None) -> Tensor:
    """0 or 1 forward; backward the slope of the soft gate. Without a generator there is no noise."""
    if rng is None:
        soft = logits.sigmoid()
    else:
        # The difference of two Gumbel variables is a logistic one.
        noise = place(torch.logit(torch.rand(logits.shape, generator=rng), eps=1e-6), logits.device)
        soft = ((logits + noise) / tau).sigmoid()
    return (soft > threshold).to(soft.dtype) + soft - soft.detach()


class AdaptiveTransformer(ElasticTransformer):
    """A vision transformer with policies. `used` holds the gates of the last pass, block by block."""

    def __init__(self, config: ModelConfig, spec: SubmodelSpec, *, rescale: bool = False, tau: float = 5.0) -> None:
        super().__init__(config, spec, rescale=rescale)
        self.adavit = nn.ModuleDict({str(i): Policy(config.dim, len(spec.keep(i).heads)) for i in range(1, spec.top)})
        self.tau = tau
        self.rng: torch.Generator | None = None
        """Source of the gates' noise in training."""
        self.used: list[Used] = []

    def run_embedding(self, inputs: Tensor) -> Tensor:
        self.used = []
        return super().run_embedding(inputs)

    def run_block(
        self,
        i: int,
        x_BTD: Tensor,
        context: Context,
        head_gate: Tensor | None = None,
        unit_gate: Tensor | None = None,
    ) -> Tensor:
        if i == 0:
            return super().run_block(i, x_BTD, context)
        block, policy = self.blocks[str(i)], self.adavit[str(i)]
        assert isinstance(block, Block)
        assert isinstance(policy, Policy)
        rng = self.rng if self.training else None
        normed_BTD = block.norm1(x_BTD)
        heads_BN = gate(policy.heads(x_BTD[:, 0]), THRESHOLD, self.tau, rng)
        layers_B2 = gate(policy.layers(x_BTD[:, 0]), THRESHOLD, self.tau, rng)
        patches_BT = gate(policy.tokens(normed_BTD[:, 1:])[..., 0], TOKEN_THRESHOLD, self.tau, rng)
        tokens_BT = torch.cat((torch.ones_like(patches_BT[:, :1]), patches_BT), 1)
        self.used.append(Used(heads_BN, layers_B2, tokens_BT))
        attended = attend(block, normed_BTD, context, heads_BN, tokens_BT)
        x_BTD = x_BTD + attended * (tokens_BT * layers_B2[:, :1])[..., None]
        mixed = block.feed_forward(block.norm2(x_BTD), None)
        return x_BTD + mixed * (tokens_BT * layers_B2[:, 1:])[..., None]


def attend(block: Block, x_BTD: Tensor, context: Context, heads_BN: Tensor, tokens_BT: Tensor) -> Tensor:
    """Attention among the kept tokens; a dropped one sees itself alone. Gates of tokens get no gradient from here."""
    if block.groups == 0:
        return block.attention(x_BTD, context, None)
    B, T, _ = x_BTD.shape
    q, k, v = (
        layer(x_BTD).view(B, T, -1, block.config.head_dim).transpose(1, 2) for layer in (block.q, block.k, block.v)
    )
    kept_BT = tokens_BT.detach() > 0.5
    itself_TT = torch.eye(T, dtype=torch.bool, device=x_BTD.device)
    seen_B1TT = (kept_BT[:, None, :, None] & kept_BT[:, None, None, :]) | itself_TT
    y_BNTH = F.scaled_dot_product_attention(q, k, v, attn_mask=seen_B1TT) * heads_BN[:, :, None, None]
    y_BTD = y_BNTH.transpose(1, 2).reshape(B, T, -1)
    return block.o(y_BTD * block.head_scale if block.training and block.head_scale != 1.0 else y_BTD)  # type: ignore[no-any-return]


def usage_loss(used: Sequence[Used], heads: float, layers: float, tokens: float) -> Tensor:
    """How far the shares in use are from the wanted ones; 0 for a model of one block, which has no gates."""
    if not used:
        return torch.zeros(())
    runs = [(u.layers.sum(1, keepdim=True) > 0).to(u.heads.dtype).expand_as(u.heads) for u in used]
    counted = torch.stack([r.sum() for r in runs]).sum()
    open_heads = torch.stack([(u.heads * r).sum() for u, r in zip(used, runs, strict=True)]).sum()
    total = torch.where(counted > 0, (open_heads / counted.clamp_min(1) - heads).abs(), 0.0)
    total = total + (torch.stack([u.layers for u in used]).mean() - layers).abs()
    return total + (torch.stack([u.tokens for u in used]).mean() - tokens) ** 2


def shares(used: Sequence[Used]) -> dict[str, float]:
    """Mean gates of a pass, for the log."""
    if not used:
        return {}
    with torch.no_grad():
        parts = {kind: torch.cat([getattr(u, kind).flatten() for u in used]) for kind in ("heads", "layers", "tokens")}
        return {f"used_{kind}": float(values.mean()) if len(values) else 1.0 for kind, values in parts.items()}


# ---------------------------------------------------------------- the policies next to the model


def policy_table(config: ModelConfig) -> dict[str, SideTensor]:
    table: dict[str, SideTensor] = {}
    for block in range(1, config.depth):
        for name, rows, per in (("heads", config.groups, "head"), ("layers", 2, "whole"), ("tokens", 1, "whole")):
            table[f"adavit.{block}.{name}.weight"] = SideTensor((rows, config.dim), per, block)  # type: ignore[arg-type]
            table[f"adavit.{block}.{name}.bias"] = SideTensor((rows,), per, block)  # type: ignore[arg-type]
    return table


def first_policies(config: ModelConfig, seed: int, usage: float, tau: float) -> Weights:
    """Weights of 0.02 (public code), and biases with which a share `usage` of the gates is open in training."""
    usage = min(max(usage, 0.01), 0.99)
    open_ = math.log(usage / (1 - usage))
    shift = tau * math.log(TOKEN_THRESHOLD / (1 - TOKEN_THRESHOLD))
    policies: Weights = {}
    for name, entry in policy_table(config).items():
        if name.endswith(".bias"):
            policies[name] = torch.full(entry.shape, open_ + (shift if ".tokens." in name else 0.0))
        else:
            policies[name] = 0.02 * torch.randn(entry.shape, generator=torch_rng(seed, "init", name))
    return policies

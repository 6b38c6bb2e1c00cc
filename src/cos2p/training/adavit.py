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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cos2p.errors import TrainingError
from cos2p.messages import Order, Task, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, exit_key
from cos2p.models.transformer import Block, Context, ElasticTransformer, Gates, Linear, make_context
from cos2p.seeding import torch_rng
from cos2p.submodel.beside import Beside, beside_shapes, take_beside
from cos2p.submodel.budget import Ledger
from cos2p.submodel.shape import Shape
from cos2p.submodel.slicing import compact_shapes, extract
from cos2p.submodel.spec import SubmodelSpec
from cos2p.submodel.tape import FLOAT
from cos2p.training.costs import Work, plain, submodel_memory, submodel_work, update_bytes, workload
from cos2p.training.distillation import exits_loss
from cos2p.training.evaluation import FORWARDS
from cos2p.training.masks import Memory
from cos2p.training.optimizers import STATE_BYTES, make_optimizer
from cos2p.training.settings import LocalSettings
from cos2p.training.shard import Shard, shuffled
from cos2p.training.trainers import local_scores, register

THRESHOLD, TOKEN_THRESHOLD = 0.5, 0.6
"""From which value on a gate is open (public code)."""


class AdaptiveSettings(LocalSettings):
    heads: float = Field(default=0.9, gt=0, le=1, description="γ_h: wanted share of heads in use.")
    layers: float = Field(default=0.9, gt=0, le=1, description="γ_l: wanted share of sublayers in use.")
    tokens: float = Field(default=0.9, gt=0, le=1, description="γ_t: wanted share of tokens in use.")
    usage_weight: float = Field(default=2.0, ge=0, description="Weight of each of the three usage terms.")
    tau: float = Field(default=5.0, gt=0, description="τ: softness of the gates' gradient.")


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
        noise = torch.logit(torch.rand(logits.shape, generator=rng), eps=1e-6)
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

    def forward(self, inputs: Tensor, features: Tensor | None = None, gates: Gates | None = None) -> list[Tensor]:
        assert self.embed is not None
        context = make_context(self.config, inputs)
        x_BTD = self.embed(inputs)
        self.used = []
        outputs = []
        for i in range(self.spec.top):
            block = self.blocks[str(i)]
            assert isinstance(block, Block)
            x_BTD = block(x_BTD, context) if i == 0 else self._adaptive(block, self.adavit[str(i)], x_BTD)
            if i + 1 in self.spec.exits:
                outputs.append(self.exit_at(i + 1)(x_BTD, context, None))
        return outputs

    def exit_at(self, depth: int) -> nn.Module:
        return self.exits[exit_key(self.config, depth).removeprefix("exits.")]

    def _adaptive(self, block: Block, policy: nn.Module, x_BTD: Tensor) -> Tensor:
        assert isinstance(policy, Policy)
        rng = self.rng if self.training else None
        normed_BTD = block.norm1(x_BTD)
        heads_BN = gate(policy.heads(x_BTD[:, 0]), THRESHOLD, self.tau, rng)
        layers_B2 = gate(policy.layers(x_BTD[:, 0]), THRESHOLD, self.tau, rng)
        patches_BT = gate(policy.tokens(normed_BTD[:, 1:])[..., 0], TOKEN_THRESHOLD, self.tau, rng)
        tokens_BT = torch.cat((torch.ones_like(patches_BT[:, :1]), patches_BT), 1)
        self.used.append(Used(heads_BN, layers_B2, tokens_BT))
        attended = attend(block, normed_BTD, heads_BN, tokens_BT)
        x_BTD = x_BTD + attended * (tokens_BT * layers_B2[:, :1])[..., None]
        mixed = block.feed_forward(block.norm2(x_BTD), None)
        return x_BTD + mixed * (tokens_BT * layers_B2[:, 1:])[..., None]


def attend(block: Block, x_BTD: Tensor, heads_BN: Tensor, tokens_BT: Tensor) -> Tensor:
    """Attention among the kept tokens; a dropped one sees itself alone. Gates of tokens get no gradient from here."""
    if block.groups == 0:
        return block.attention(x_BTD, Context(), None)
    B, T, _ = x_BTD.shape
    q, k, v = (
        layer(x_BTD).view(B, T, -1, block.config.head_dim).transpose(1, 2) for layer in (block.q, block.k, block.v)
    )
    kept_BT = tokens_BT.detach() > 0.5
    seen_B1TT = (kept_BT[:, None, :, None] & kept_BT[:, None, None, :]) | torch.eye(T, dtype=torch.bool)
    y_BNTH = F.scaled_dot_product_attention(q, k, v, attn_mask=seen_B1TT) * heads_BN[:, :, None, None]
    y_BTD = y_BNTH.transpose(1, 2).reshape(B, T, -1)
    return block.o(y_BTD * block.head_scale if block.training and block.head_scale != 1.0 else y_BTD)  # type: ignore[no-any-return]


def usage_loss(used: Sequence[Used], heads: float, layers: float, tokens: float) -> Tensor:
    """How far the shares in use are from the wanted ones; 0 for a model of one block, which has no gates."""
    if not used:
        return torch.zeros(())
    runs = [(u.layers.sum(1, keepdim=True) > 0).to(u.heads.dtype).expand_as(u.heads) for u in used]
    counted = sum(float(r.sum()) for r in runs)
    total = torch.zeros(())
    if counted:
        open_heads = torch.stack([(u.heads * r).sum() for u, r in zip(used, runs, strict=True)]).sum()
        total = total + (open_heads / counted - heads).abs()
    total = total + (torch.stack([u.layers for u in used]).mean() - layers).abs()
    return total + (torch.stack([u.tokens for u in used]).mean() - tokens) ** 2


# ---------------------------------------------------------------- the policies beside the model


def policy_table(config: ModelConfig) -> dict[str, Beside]:
    table: dict[str, Beside] = {}
    for block in range(1, config.depth):
        for name, rows, per in (("heads", config.groups, "head"), ("layers", 2, "whole"), ("tokens", 1, "whole")):
            table[f"adavit.{block}.{name}.weight"] = Beside((rows, config.dim), per, block)  # type: ignore[arg-type]
            table[f"adavit.{block}.{name}.bias"] = Beside((rows,), per, block)  # type: ignore[arg-type]
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


def sent_adaptive(weights: Weights, config: ModelConfig, order: Order) -> Weights:
    return {
        **extract(weights, config, order.spec),
        **take_beside(weights, policy_table(config), config, order.spec),
    }


def adaptive_answer(config: ModelConfig, order: Order, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
    return {**compact_shapes(config, spec), **beside_shapes(policy_table(config), config, spec)}


def policy_scalars(config: ModelConfig, spec: SubmodelSpec) -> int:
    return sum(map(math.prod, beside_shapes(policy_table(config), config, spec).values()))


def adaptive_upload(config: ModelConfig, order: Order) -> int:
    return update_bytes(config, order) + FLOAT * policy_scalars(config, order.spec)


def adaptive_work(config: ModelConfig, order: Order, samples: int, test_samples: int) -> Work:
    """Training is as dense as without gates; the policies come on top."""
    base = submodel_work(config, plain(order), samples, test_samples)
    per_sample = 2.0 * config.tokens * config.dim * (order.spec.top - 1)
    per_sample += sum(2.0 * config.dim * (len(keep.heads) + 2) for keep in order.spec.window[1:])
    epochs = int(order.settings["epochs"])
    return replace(base, training=base.training + (3 * epochs * samples + test_samples) * per_sample)


def adaptive_memory(config: ModelConfig, order: Order, samples: int) -> Ledger:
    """Plain training, the policies, and for every block the masks and what the gates' products keep."""
    settings = AdaptiveSettings.model_validate(order.settings)
    base = submodel_memory(config, plain(order), samples)
    load, policies = workload(settings, samples), policy_scalars(config, order.spec)
    rows, tokens = load.batch * config.tokens, config.tokens
    kept = 0
    for size in Shape.of(config, order.spec).window[1:]:
        if size.heads:
            kept += FLOAT * rows * size.heads * config.head_dim  # the heads' outputs before their gates
            kept += FLOAT * rows * tokens  # which token sees which, as numbers
        kept += FLOAT * rows * (2 * config.dim + 8)  # both sublayers' outputs before their gates; the gates
    passing = 3 * FLOAT * rows * max(tokens, config.dim)
    return replace(
        base,
        weights=base.weights + FLOAT * policies,
        gradients=base.gradients + FLOAT * policies,
        optimizer=base.optimizer + STATE_BYTES[settings.optimizer] * policies,
        activations=base.activations + kept + passing,
    )


@register(
    "adavit", work=adaptive_work, memory=adaptive_memory, sent=sent_adaptive, answer=adaptive_answer,
    upload=adaptive_upload,
)  # fmt: skip
def train_adaptive(config: ModelConfig, task: Task, shard: Shard, memory: Memory) -> tuple[Update, Memory]:
    settings, order = AdaptiveSettings.model_validate(task.order.settings), task.order
    rng = torch_rng(order.seed, "device", order.client, order.attempt)
    model = AdaptiveTransformer(config, order.spec, rescale=settings.rescale, tau=settings.tau)
    model.load({name: tensor.clone() for name, tensor in task.weights.items()})
    model.train()
    model.rng = rng
    losses = _train(model, shard, settings, order, rng)
    report = {"loss": sum(losses) / len(losses), **shares(model.used)}
    model.used = []
    delta = {name: task.weights[name] - tensor for name, tensor in model.weights().items()}
    report |= local_scores(config, task, model, shard, settings)
    return Update(order.client, order.task, order.version, order.spec, delta, len(shard.train), report), memory


def _train(
    model: AdaptiveTransformer, shard: Shard, settings: AdaptiveSettings, order: Order, rng: torch.Generator
) -> list[float]:
    """E epochs in place; the losses of the last one, without the usage terms."""
    stepper = make_optimizer(settings.optimizer, list(model.parameters()), order.lr, settings.weight_decay)
    losses: list[float] = []
    for rows in shuffled(len(shard.train), settings.batch, settings.epochs, rng, shard.train.widths):
        inputs, labels = shard.train.batch(rows, shard.normalize)
        stepper.zero_grad(set_to_none=True)
        loss = exits_loss(model(inputs), labels, lambda2=0.0)
        losses.append(loss.item())
        loss = loss + settings.usage_weight * usage_loss(model.used, settings.heads, settings.layers, settings.tokens)
        if not math.isfinite(loss.item()):
            raise TrainingError(f"the loss became {loss.item()}; lower training.lr (now {order.lr:g})")
        loss.backward()
        stepper.step()
    return losses[-max(1, len(losses) // settings.epochs) :]


def shares(used: Sequence[Used]) -> dict[str, float]:
    """Mean gates of a pass, for the log."""
    if not used:
        return {}
    with torch.no_grad():
        parts = {kind: torch.cat([getattr(u, kind).flatten() for u in used]) for kind in ("heads", "layers", "tokens")}
        return {f"used_{kind}": float(values.mean()) if len(values) else 1.0 for kind, values in parts.items()}


def build_adaptive(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> ElasticTransformer:
    return AdaptiveTransformer(config, spec).load(weights)


FORWARDS["adavit"] = build_adaptive

"""Q-ViT's forward (Li et al., NeurIPS 2022): a vision transformer whose weights and activations are quantised.

In every block the inputs of all matrices, the queries, keys, values and the attention itself go through quantisers of
`bits` bits; patch embedding and classifier have 8. Information rectification (the paper's IRM): queries and keys are
normed before they are quantised, so that their codes carry as much as they can; as in the public code that is a
LayerNorm over each head, one for all heads of a block. GELU's output is cut to ±10.

`quantized = False` gives the same network in full precision, the teacher. After a pass `seen` holds every block's
queries and keys, for the distribution guided distillation.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cos2p import ElasticTransformer, ModelConfig, SubmodelSpec
from cos2p.methods import Block, Context, Linear, Weights, exit_key
from cos2p_rivals.qvit.quantizers import UNSET, ActStep, WeightStep
from cos2p_rivals.side_tensors import SideTensor

ENDS = 8
"""Bits of the patch embedding and the classifier."""

EPSILON = 1e-5


class HeadNorm(nn.Module):
    """LayerNorm over the entries of a head."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device="meta"))
        self.bias = nn.Parameter(torch.empty(size, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, EPSILON)


class QueryKeyNorms(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.q, self.k = HeadNorm(size), HeadNorm(size)


class BlockSteps(nn.Module):
    """The step sizes of one block, for the segments that are held."""

    def __init__(self, config: ModelConfig, heads: int, units: int) -> None:
        super().__init__()
        inner = heads * config.head_dim
        self.q, self.k, self.v = WeightStep(inner), WeightStep(inner), WeightStep(inner)
        self.o, self.fc1, self.fc2 = WeightStep(config.dim), WeightStep(units), WeightStep(config.dim)
        self.to_heads, self.to_o = ActStep(config.dim), ActStep(inner)
        self.queries, self.keys, self.values, self.attention = (ActStep(heads) for _ in range(4))
        self.to_fc1, self.to_fc2 = ActStep(config.dim), ActStep(units)


class EndSteps(nn.Module):
    """Those of the patch embedding or of a classifier."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.input = WeightStep(outputs), ActStep(inputs)


class QuantTransformer(ElasticTransformer):
    def __init__(self, config: ModelConfig, spec: SubmodelSpec, bits: int, *, rescale: bool = False) -> None:
        super().__init__(config, spec, rescale=rescale)
        steps: dict[str, nn.Module] = {"embed": EndSteps(config.channels, config.dim)}
        for i in range(spec.top):
            steps[str(i)] = BlockSteps(config, len(spec.keep(i).heads), len(spec.keep(i).units))
        for key in self.exits:
            steps[f"exit-{key}"] = EndSteps(config.dim, config.classes)
        norms = {str(i): QueryKeyNorms(config.head_dim) for i in range(spec.top)}
        self.qvit = nn.ModuleDict({"norms": nn.ModuleDict(norms), f"b{bits}": nn.ModuleDict(steps)})
        self.bits = bits
        self.quantized = True
        self.rescales_always = False
        self.seen: list[tuple[Tensor, Tensor]] = []

    def fold_rescale(self) -> None:
        """Rescale at inference too; scaled weights would no longer fit their steps."""
        self.rescales_always = True

    @property
    def norms(self) -> nn.ModuleDict:
        norms = self.qvit["norms"]
        assert isinstance(norms, nn.ModuleDict)
        return norms

    @property
    def steps(self) -> nn.ModuleDict:
        steps = self.qvit[f"b{self.bits}"]
        assert isinstance(steps, nn.ModuleDict)
        return steps

    def weight_steps(self) -> dict[str, tuple[WeightStep, int]]:
        """The step and the bits of every quantised tensor."""
        found: dict[str, tuple[WeightStep, int]] = {}
        for place, module in self.steps.items():
            if isinstance(module, BlockSteps):
                for layer in ("q", "k", "v", "o", "fc1", "fc2"):
                    found[f"blocks.{place}.{layer}.weight"] = (getattr(module, layer), self.bits)
            elif isinstance(module, EndSteps):
                name = "embed.patch" if place == "embed" else f"exits.{place.removeprefix('exit-')}.linear"
                found[f"{name}.weight"] = (module.weight, ENDS)
        return found

    def see_weights(self) -> None:
        """Set the steps of weights that have none yet."""
        for name, (step, bits) in self.weight_steps().items():
            step.see(self.get_parameter(name), bits)

    # ------------------------------------------------------------ forward

    def run_embedding(self, inputs: Tensor) -> Tensor:
        self.seen = []
        if not self.quantized:
            return super().run_embedding(inputs)
        embed, steps = self.embed, self.steps["embed"]
        assert embed is not None
        assert isinstance(steps, EndSteps)
        kernel = steps.weight(embed.patch.weight, ENDS)
        patches = F.conv2d(steps.input(inputs, ENDS, axis=1), kernel, embed.patch.bias, self.config.patch)
        x_BTD = patches.flatten(2).transpose(1, 2)
        return torch.cat((embed.cls.expand(len(x_BTD), -1, -1), x_BTD), 1) + embed.positions

    def run_block(
        self,
        i: int,
        x_BTD: Tensor,
        context: Context,
        head_gate: Tensor | None = None,
        unit_gate: Tensor | None = None,
    ) -> Tensor:
        block, steps, norms = self.blocks[str(i)], self.steps[str(i)], self.norms[str(i)]
        assert isinstance(block, Block)
        assert isinstance(steps, BlockSteps)
        assert isinstance(norms, QueryKeyNorms)
        x_BTD = x_BTD + self._attention(block, steps, norms, block.norm1(x_BTD), context)
        return x_BTD + self._feed_forward(block, steps, block.norm2(x_BTD))

    def run_exit(self, depth: int, x_BTD: Tensor, context: Context) -> Tensor:
        if not self.quantized:
            return super().run_exit(depth, x_BTD, context)
        module, steps = self.exit_at(depth), self.steps[_steps_of(self.config, depth)]
        assert isinstance(steps, EndSteps)
        x_BD = steps.input(module.norm(x_BTD[:, 0]), ENDS, axis=1)
        return F.linear(x_BD, steps.weight(module.linear.weight, ENDS), module.linear.bias)

    def _linear(self, layer: Linear, step: WeightStep, x: Tensor) -> Tensor:
        weight = step(layer.weight, self.bits) if self.quantized else layer.weight
        return F.linear(x, weight, layer.bias)

    def _act(self, step: ActStep, x: Tensor, axis: int, signed: bool = True) -> Tensor:
        return step(x, self.bits, axis, signed) if self.quantized else x

    def _attention(
        self, block: Block, steps: BlockSteps, norms: QueryKeyNorms, x_BTD: Tensor, context: Context
    ) -> Tensor:
        if block.groups == 0:
            return block.attention(x_BTD, context, None)
        B, T, _ = x_BTD.shape
        x_BTD = self._act(steps.to_heads, x_BTD, axis=2)
        q, k, v = (
            self._linear(layer, step, x_BTD).view(B, T, -1, self.config.head_dim).transpose(1, 2)
            for layer, step in ((block.q, steps.q), (block.k, steps.k), (block.v, steps.v))
        )
        q = self._act(steps.queries, norms.q(q), axis=1)
        k = self._act(steps.keys, norms.k(k), axis=1)
        v = self._act(steps.values, v, axis=1)
        self.seen.append((q, k))
        a_BNTT = (q @ k.transpose(-2, -1) / math.sqrt(self.config.head_dim)).softmax(-1)
        a_BNTT = self._act(steps.attention, a_BNTT, axis=1, signed=False)
        y_BTD = self._act(steps.to_o, (a_BNTT @ v).transpose(1, 2).reshape(B, T, -1), axis=2)
        return self._linear(block.o, steps.o, self._scaled(y_BTD, block.head_scale))

    def _feed_forward(self, block: Block, steps: BlockSteps, x_BTD: Tensor) -> Tensor:
        if block.units == 0:
            return block.feed_forward(x_BTD, None)
        h_BTF = self._linear(block.fc1, steps.fc1, self._act(steps.to_fc1, x_BTD, axis=2))
        h_BTF = self._act(steps.to_fc2, F.gelu(h_BTF).clamp(-10.0, 10.0), axis=2)
        return self._linear(block.fc2, steps.fc2, self._scaled(h_BTF, block.unit_scale))

    def _scaled(self, x: Tensor, scale: float) -> Tensor:
        return x * scale if scale != 1.0 and (self.training or self.rescales_always) else x


def _steps_of(config: ModelConfig, depth: int) -> str:
    """Where the steps of the exit behind so many blocks are kept."""
    return "exit-" + exit_key(config, depth).removeprefix("exits.")


# ---------------------------------------------------------------- tensors next to the model


def norm_table(config: ModelConfig) -> dict[str, SideTensor]:
    return {
        f"qvit.norms.{block}.{which}.{part}": SideTensor((config.head_dim,))
        for block in range(config.depth)
        for which in ("q", "k")
        for part in ("weight", "bias")
    }


def step_table(config: ModelConfig, bits: int, exits: tuple[int, ...] | None = None) -> dict[str, SideTensor]:
    """Steps and zero-points of one bit-width; of the exits named, or of all."""
    table: dict[str, SideTensor] = {}

    def add(name: str, entry: SideTensor, zero: bool) -> None:
        table[f"qvit.b{bits}.{name}.step"] = entry
        if zero:
            table[f"qvit.b{bits}.{name}.zero"] = entry

    def ends(name: str, inputs: int, outputs: int) -> None:
        add(f"{name}.weight", SideTensor((outputs,)), zero=False)
        add(f"{name}.input", SideTensor((inputs,)), zero=True)

    ends("embed", config.channels, config.dim)
    inner = config.groups * config.head_dim
    for i in range(config.depth):
        rows, unit, whole = (
            SideTensor((inner,), "query", i),
            SideTensor((config.mlp,), "unit", i),
            SideTensor((config.dim,)),
        )
        head = SideTensor((config.groups,), "head", i)
        for name, entry in {"q": rows, "k": rows, "v": rows, "o": whole, "fc1": unit, "fc2": whole}.items():
            add(f"{i}.{name}", entry, zero=False)
        for name in ("queries", "keys", "values", "attention"):
            add(f"{i}.{name}", head, zero=True)
        for name, entry in {"to_heads": whole, "to_o": rows, "to_fc1": whole, "to_fc2": unit}.items():
            add(f"{i}.{name}", entry, zero=True)
    depths = range(1, config.depth + 1) if exits is None else exits
    for key in dict.fromkeys(_steps_of(config, depth) for depth in depths):
        ends(key, config.dim, config.classes)
    return table


def first_tensors(config: ModelConfig, widths: tuple[int, ...]) -> Weights:
    """Norms that do nothing yet, steps that are unset, zero-points at zero."""
    first = {n: torch.full(e.shape, float(n.endswith(".weight"))) for n, e in norm_table(config).items()}
    for bits in widths:
        for name, entry in step_table(config, bits).items():
            first[name] = torch.full(entry.shape, UNSET if name.endswith(".step") else 0.0)
    return first


def build_quant(config: ModelConfig, spec: SubmodelSpec, weights: Weights) -> ElasticTransformer:
    """The model at the one bit-width whose steps are among the weights."""
    (bits,) = {int(name.split(".")[1][1:]) for name in weights if name.startswith("qvit.b")}
    return QuantTransformer(config, spec, bits).load(weights)

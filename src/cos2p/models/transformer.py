"""One elastic transformer for three families. Every block has its own number of heads and MLP units.

    ViT     pre-norm, cls token, learned positions
    BERT    post-norm, pooler, padding mask
    LLaMA   pre-norm with RMSNorm, rotary positions, SwiGLU, grouped queries, causal

Shape legend: B batch, T tokens, D residual width, N heads, H head size, F kept MLP units, C outputs.

Modules are built from a `SubmodelSpec` at their compact size, without values (on torch's meta device); `load` puts
the tensors in by reference, so a submodel is never held twice. Names equal those of `models.layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cos2p.models.config import ModelConfig
from cos2p.models.context import Context as Context
from cos2p.models.context import make_context as make_context
from cos2p.models.context import rotate
from cos2p.models.layout import Weights, exit_key
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.numerics.output_table import Table, project

_SHARES_KEYS = torch.torch_version.TorchVersion(torch.__version__) >= "2.5"
"""Older ones have no attention in which several queries share a key."""

Slot = tuple[str, nn.Module, str]
"""A parameter's full name, the module that has it, and its name there."""

Gates = Mapping[int, tuple[Tensor | None, Tensor | None]]
"""Block index to (gate per attention segment, gate per unit); 1 keeps, 0 removes, gradients pass."""


class Linear(nn.Module):
    """F.linear over parameters without values; zero rows or columns are legal."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device="meta"))
        self.bias = nn.Parameter(torch.empty(outputs, device="meta")) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Norm(nn.Module):
    """LayerNorm, or RMSNorm for LLaMA."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.empty(config.dim, device="meta"))
        self.bias = nn.Parameter(torch.empty(config.dim, device="meta")) if config.biased else None

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class HeadNorm(nn.Module):
    """RMSNorm of each head by itself; all heads share its weight."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.empty(config.head_dim, device="meta"))

    def forward(self, x_BTNH: Tensor) -> Tensor:
        return F.rms_norm(x_BTNH, self.weight.shape, self.weight, self.eps)


class Block(nn.Module):
    """Attention and MLP with the kept segments only.

    `rescale` multiplies both outputs, before their bias and in training only, by 1/(kept fraction): a thin submodel
    then adds as much to the residual as the full model will (FedRolex's Scaler).
    """

    def __init__(self, config: ModelConfig, keep: BlockKeep, rescale: bool = False, rest: bool = False) -> None:
        super().__init__()
        d, bias = config.dim, config.biased
        self.config = config
        self.groups, self.units = len(keep.heads), len(keep.units)
        query = self.groups * config.queries_per_group * config.head_dim
        key = self.groups * config.head_dim
        self.norm1, self.norm2 = Norm(config), Norm(config)
        self.q, self.k, self.v = (Linear(d, width, config.attention_bias != "none") for width in (query, key, key))
        if config.qk_norm:
            self.q_norm, self.k_norm = HeadNorm(config), HeadNorm(config)
        self.o = Linear(query, d, config.attention_bias == "all")
        self.fc1 = Linear(d, self.units, bias)
        if config.gated:
            self.gate = Linear(d, self.units, bias)
        self.fc2 = Linear(self.units, d, bias)
        self.head_scale = config.groups / self.groups if rescale and self.groups else 1.0
        self.unit_scale = config.mlp / self.units if rescale and self.units else 1.0
        self.rest = Rest(config, keep.others(config), self) if rest else None

    @torch.no_grad()
    def fold_rescale(self) -> None:
        """Make the training-time factors part of the weights, in place."""
        self.o.weight.mul_(self.head_scale)
        self.fc2.weight.mul_(self.unit_scale)
        self.head_scale = self.unit_scale = 1.0

    def attention(self, x_BTD: Tensor, context: Context, gate: Tensor | None) -> Tensor:
        if self.groups == 0:  # what the masked full model computes: Wo's bias alone
            return _bias_only(self.o, x_BTD)
        B, T, _ = x_BTD.shape
        size = self.config.head_dim
        q, k, v = (layer(x_BTD).view(B, T, -1, size) for layer in (self.q, self.k, self.v))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if context.rotary is not None:
            q, k = rotate(q, context.rotary), rotate(k, context.rotary)
        causal = self.config.family == "llama" and context.past is None  # then the mask says it
        if context.past is not None:
            k, v = context.past.extend(self, k, v)
        y_BNTH = _attend(q, k, v, context.mask, causal, self.config.queries_per_group)
        if gate is not None:
            gate_N = gate.repeat_interleave(self.config.queries_per_group, dim=-1)  # of all samples, or (B, N)
            y_BNTH = y_BNTH * gate_N.view(-1, y_BNTH.shape[1], 1, 1)
        y_BTD = y_BNTH.transpose(1, 2).reshape(B, T, -1)
        return self.o(y_BTD * self.head_scale if self.training and self.head_scale != 1.0 else y_BTD)  # type: ignore[no-any-return]

    def feed_forward(self, x_BTD: Tensor, gate: Tensor | None) -> Tensor:
        if self.units == 0:
            return _bias_only(self.fc2, x_BTD)
        if self.config.gated:
            h_BTF = F.silu(self.gate(x_BTD)) * self.fc1(x_BTD)
        else:
            approximate = "tanh" if self.config.activation == "gelu_tanh" else "none"
            h_BTF = F.gelu(self.fc1(x_BTD), approximate=approximate)
        if gate is not None:
            h_BTF = h_BTF * gate
        return self.fc2(h_BTF * self.unit_scale if self.training and self.unit_scale != 1.0 else h_BTF)  # type: ignore[no-any-return]

    def forward(
        self, x: Tensor, context: Context, head_gate: Tensor | None = None, unit_gate: Tensor | None = None
    ) -> Tensor:
        if self.config.pre_norm:
            x = x + self._attended(self.norm1(x), context, head_gate)
            return x + self._fed_forward(self.norm2(x), unit_gate)
        x = self.norm1(x + self._attended(x, context, head_gate))
        return self.norm2(x + self._fed_forward(x, unit_gate))  # type: ignore[no-any-return]

    def _attended(self, x: Tensor, context: Context, gate: Tensor | None) -> Tensor:
        own = self.attention(x, context, gate)
        return own if self.rest is None or not self.rest.groups else own + self.rest.attention(x, context, None)

    def _fed_forward(self, x: Tensor, gate: Tensor | None) -> Tensor:
        own = self.feed_forward(x, gate)
        return own if self.rest is None or not self.rest.units else own + self.rest.feed_forward(x, None)


class Rest(Block):
    """The segments of a block that stay frozen next to those that train. Both add to the same sums, so norms and the
    biases behind the sums are the trained block's alone."""

    def __init__(self, config: ModelConfig, keep: BlockKeep, trained: Block) -> None:
        super().__init__(config, keep)
        del self.norm1, self.norm2
        self.o.bias = self.fc2.bias = None
        if config.qk_norm:  # one norm for all heads: used here, owned there
            del self.q_norm, self.k_norm
            self.__dict__ |= {"q_norm": trained.q_norm, "k_norm": trained.k_norm}


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, queries_per_group: int) -> Tensor:
    """(B, N, T, H); keys and values have a head for every group of queries."""
    if queries_per_group == 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    if _SHARES_KEYS:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
    k, v = (x.repeat_interleave(queries_per_group, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def _bias_only(layer: Linear, x_BTD: Tensor) -> Tensor:
    return torch.zeros_like(x_BTD) if layer.bias is None else layer.bias.expand_as(x_BTD)


class Embedding(nn.Module):
    """Patches or tokens to features. With `rows` the token table has these rows only; other ids must not come."""

    def __init__(self, config: ModelConfig, rows: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.config = config
        self.rows = None if rows is None else torch.tensor(rows, dtype=torch.int64)
        d = config.dim
        if config.family == "vit":
            self.patch = nn.Conv2d(config.channels, d, config.patch, config.patch, device="meta")
            self.cls = nn.Parameter(torch.empty(1, 1, d, device="meta"))
            self.positions = nn.Parameter(torch.empty(1, config.tokens, d, device="meta"))
        else:
            self.tokens = nn.Parameter(torch.empty(config.vocab if rows is None else len(rows), d, device="meta"))
        if config.family == "bert":
            self.positions = nn.Parameter(torch.empty(config.max_tokens, d, device="meta"))
            if config.token_types:
                self.types = nn.Parameter(torch.empty(config.token_types, d, device="meta"))
            self.norm = Norm(config)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.config.family == "vit":
            x_BTD = self.patch(inputs).flatten(2).transpose(1, 2)
            return torch.cat((self.cls.expand(x_BTD.shape[0], -1, -1), x_BTD), 1) + self.positions
        return self.placed(F.embedding(places(inputs, self.rows), self.tokens))

    def placed(self, x_BTD: Tensor) -> Tensor:
        """From the tokens' own rows to features: BERT adds positions and types."""
        if self.config.family == "bert":
            x_BTD = x_BTD + self.positions[: x_BTD.shape[1]]
            return self.norm(x_BTD + self.types[0] if self.config.token_types else x_BTD)  # type: ignore[no-any-return]
        return x_BTD


def places(ids: Tensor, rows: Tensor | None) -> Tensor:
    """Where token ids stand in a table of these rows; ids below 0 (labels that do not count) stay as they are.

    >>> places(torch.tensor([7, 2, -100]), torch.tensor([2, 5, 7])).tolist()
    [2, 0, -100]
    """
    return ids if rows is None else torch.where(ids < 0, ids, torch.searchsorted(rows, ids))


class Exit(nn.Module):
    """From features to outputs: norm (ViT, LLaMA), pooling, pooler (BERT's own kind), linear."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        if config.family != "bert":
            self.norm = Norm(config)
        if config.pooler != "none":
            self.pooler = Linear(config.dim, config.dim, bias=True)
        if config.task == "classification":
            self.linear = Linear(config.dim, config.classes, config.biased)

    def forward(self, x_BTD: Tensor, context: Context, table_VD: Tensor | Table | None) -> Tensor:
        if self.config.task == "language-modeling":
            assert table_VD is not None
            return project(self.norm(x_BTD), table_VD)
        return self.linear(self.features(x_BTD, context))  # type: ignore[no-any-return]

    def features(self, x_BTD: Tensor, context: Context) -> Tensor:
        """(B, D): what the classifier reads."""
        x_BD = self.pooled(x_BTD, context)
        if self.config.pooler == "none":
            return x_BD
        x_BD = self.pooler(x_BD)
        return torch.tanh(x_BD) if self.config.pooler == "tanh" else torch.relu(x_BD)

    def pooled(self, x_BTD: Tensor, context: Context) -> Tensor:
        """(B, D). A mean is taken over normed tokens; of one token the others need no norm."""
        if self.config.pooling == "mean":
            x_BTD = x_BTD if self.config.family == "bert" else self.norm(x_BTD)
            return (
                x_BTD[:, 1:].mean(1)
                if context.shares is None
                else torch.bmm(context.shares.to(x_BTD.dtype), x_BTD).squeeze(1)
            )
        if context.last is None:
            x_BD = x_BTD[:, 0]
        else:  # `shape`, since `len` would make the batch of an exported model a constant
            x_BD = x_BTD[torch.arange(x_BTD.shape[0], device=x_BTD.device), context.last]
        return x_BD if self.config.family == "bert" else self.norm(x_BD)


class ElasticTransformer(nn.Module):
    """The part of the model a spec describes. Without `hold_prefix` it starts at the window and takes features.

    forward(inputs) runs embeddings and every held block; forward(inputs, features) starts from the features that
    the frozen prefix gave. Both return the outputs of the exits, shallowest first.

    Blocks that stay above the window are held too with `hold_prefix`; otherwise `above` has to be set to what brings
    features from the window's top to the model's (`training.prefix.StreamedSuffix`).
    """

    above: Callable[[Tensor, Context], Tensor] | None = None
    frozen_table: Table | None = None
    """The output table of a language model where it does not train, to be read in parts; None: it is held."""

    def __init__(
        self, config: ModelConfig, spec: SubmodelSpec, *, rescale: bool = False, hold_prefix: bool = False
    ) -> None:
        super().__init__()
        spec.check(config)
        self.config, self.spec = config, spec
        self.holds_prefix = hold_prefix or not spec.has_prefix
        self.rows = None if spec.rows is None else torch.tensor(spec.rows, dtype=torch.int64)
        self.embed = Embedding(config, spec.rows) if self.holds_prefix else None
        self.blocks = nn.ModuleDict()
        if hold_prefix:
            for i in range(spec.frozen):
                self.blocks[str(i)] = Block(config, BlockKeep.full(config))
        for i in range(spec.frozen, spec.top):
            self.blocks[str(i)] = Block(config, spec.keep(i), rescale, spec.rest)
        if hold_prefix:
            for i in spec.above(config):
                self.blocks[str(i)] = Block(config, BlockKeep.full(config))
        keys = dict.fromkeys(exit_key(config, depth).removeprefix("exits.") for depth in spec.exits)
        self.exits = nn.ModuleDict({key: Exit(config) for key in keys})
        if config.task == "language-modeling" and not config.tied:
            self.lm_head = Linear(config.dim, config.vocab if spec.rows is None else len(spec.rows), bias=False)
        elif config.task == "language-modeling" and self.embed is None:
            # The tied table as output projection, held frozen: it is trained where the embeddings are.
            rows = config.vocab if spec.rows is None else len(spec.rows)
            self.output_table = nn.Parameter(torch.empty(rows, config.dim, device="meta"), requires_grad=False)

    def load(self, weights: Weights) -> ElasticTransformer:
        """Take the tensors by reference (they will be trained in place) and freeze what the spec freezes."""
        for name, module, own in slots(self):
            given, place = weights["embed.tokens" if name == "output_table" else name], module._parameters[own]
            assert place is not None
            if given.shape != place.shape:
                raise ValueError(f"{name} has shape {tuple(given.shape)}, this submodel's has {tuple(place.shape)}")
            if not isinstance(given, nn.Parameter):
                given = nn.Parameter(given, requires_grad=place.requires_grad)
            module._parameters[own] = given
        self.rows_to(self.device)
        if self.holds_prefix and self.spec.has_prefix:
            assert self.embed is not None
            self.embed.requires_grad_(False)
        for name, block in self.blocks.items():
            assert isinstance(block, Block)
            if not self.spec.frozen <= int(name) < self.spec.top:
                block.requires_grad_(False)
            elif block.rest is not None:
                block.rest.requires_grad_(False)
        return self

    def read_table(self, table: Table) -> None:
        """Before the weights come: the output table does not train, and is read in parts."""
        self.frozen_table = table
        self._parameters.pop("output_table", None)
        self._modules.pop("lm_head", None)

    @property
    def device(self) -> torch.device:
        """Where it computes: its inputs have to be there."""
        return next(self.parameters()).device

    def rows_to(self, device: torch.device) -> None:
        """Which rows a cut table has is no parameter, and is needed next to it."""
        self.rows = None if self.rows is None else self.rows.to(device)
        if self.embed is not None and self.embed.rows is not None:
            self.embed.rows = self.embed.rows.to(device)

    def weights(self) -> Weights:
        """The trainable tensors by name, detached, sharing memory."""
        return {name: parameter.detach() for name, parameter in trainable(self).items()}

    def fold_rescale(self) -> None:
        """From here on the submodel infers as it was trained; its weights are no longer parts of the full model's."""
        for block in self.blocks.values():
            assert isinstance(block, Block)
            block.fold_rescale()

    @property
    def table(self) -> Tensor | Table | None:
        """The output table of a language model."""
        if self.config.task != "language-modeling":
            return None
        if self.frozen_table is not None:
            return self.frozen_table
        if not self.config.tied:
            return self.lm_head.weight
        return self.embed.tokens if self.embed is not None else self.output_table

    def forward(self, inputs: Tensor, features: Tensor | None = None, gates: Gates | None = None) -> list[Tensor]:
        context = make_context(self.config, inputs)
        tops = self._tops(inputs, context, features, gates)
        return [self.run_exit(depth, x_BTD, context) for depth, x_BTD in tops]

    def rows_at(self, places: Tensor, inputs: Tensor, features: Tensor | None = None) -> list[Tensor]:
        """The rows that each exit of a language model multiplies with the output table, (n, D), for these tokens alone:
        `places` count the tokens of the batch, text behind text."""
        tops = self._tops(inputs, make_context(self.config, inputs), features, None)
        return [self.exit_at(depth).norm(x_BTD.flatten(0, 1)[places].float()) for depth, x_BTD in tops]

    def logits(self, rows_nD: Tensor) -> Tensor:
        """(n, V) of what `rows_at` gives."""
        table = self.table
        assert table is not None
        return project(rows_nD, table)

    def _tops(
        self, inputs: Tensor, context: Context, features: Tensor | None, gates: Gates | None
    ) -> Iterator[tuple[int, Tensor]]:
        """The depth of every exit and the features that reach it, as soon as they are there."""
        x_BTD, first = self._start(inputs, features, context)
        for i in range(first, self.spec.top):
            head_gate, unit_gate = gates.get(i, (None, None)) if gates is not None else (None, None)
            x_BTD = self.run_block(i, x_BTD, context, head_gate, unit_gate)
            if i + 1 in self.spec.exits:
                yield i + 1, x_BTD
        if self.spec.exits[-1] > self.spec.top:
            yield self.spec.exits[-1], self._to_the_top(x_BTD, context)

    # A model with a forward pass of its own overrides these.

    def run_embedding(self, inputs: Tensor) -> Tensor:
        """Images or token ids to the features that enter the first block."""
        assert self.embed is not None
        return self.embed(inputs)  # type: ignore[no-any-return]

    def run_block(
        self,
        i: int,
        x_BTD: Tensor,
        context: Context,
        head_gate: Tensor | None = None,
        unit_gate: Tensor | None = None,
    ) -> Tensor:
        return self.blocks[str(i)](x_BTD, context, head_gate, unit_gate)  # type: ignore[no-any-return]

    def run_exit(self, depth: int, x_BTD: Tensor, context: Context) -> Tensor:
        return self.exit_at(depth)(x_BTD, context, self.table)  # type: ignore[no-any-return]

    def exit_at(self, depth: int) -> Exit:
        """The exit behind so many blocks."""
        module = self.exits[exit_key(self.config, depth).removeprefix("exits.")]
        assert isinstance(module, Exit)
        return module

    def _to_the_top(self, x_BTD: Tensor, context: Context) -> Tensor:
        if self.above is not None:
            return self.above(x_BTD, context)
        if str(self.spec.top) not in self.blocks:
            raise ValueError("this submodel does not hold the blocks above its window: set `above`")
        for i in self.spec.above(self.config):
            x_BTD = self.run_block(i, x_BTD, context)
        return x_BTD

    @property
    def outputs(self) -> int:
        """How many numbers an exit gives: a language model with a cut table has one for each of its rows."""
        cut = self.config.task == "language-modeling" and self.spec.rows is not None
        return len(self.spec.rows or ()) if cut else self.config.outputs

    def targets(self, labels: Tensor) -> Tensor:
        """Labels as the outputs number them: a language model with a cut table has a class for each of its rows."""
        return places(labels, self.rows) if self.config.task == "language-modeling" else labels

    def _start(self, inputs: Tensor, features: Tensor | None, context: Context) -> tuple[Tensor, int]:
        if features is not None:
            return features, self.spec.frozen
        if self.embed is None:
            raise ValueError("this submodel does not hold its frozen prefix: give the features behind it")
        if not self.spec.has_prefix:
            return self.run_embedding(inputs), 0
        with torch.no_grad():
            x_BTD = self.run_embedding(inputs)
            for i in range(self.spec.frozen):
                x_BTD = self.run_block(i, x_BTD, context)
        return x_BTD, self.spec.frozen


def slots(module: nn.Module, prefix: str = "") -> list[Slot]:
    """Every parameter, in the order of `named_parameters`; one that two modules share comes twice."""
    found: list[Slot] = []
    _collect(module, prefix, found)
    return found


def _collect(module: nn.Module, prefix: str, found: list[Slot]) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found.append((prefix + name, module, name))
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{prefix}{name}.", found)


def trainable(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that train, by name, as `named_parameters` gives them: one that is shared comes once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, owner, own in slots(module):
        parameter = owner._parameters[own]
        if parameter is not None and parameter.requires_grad:
            found.setdefault(id(parameter), (name, parameter))
    return dict(found.values())

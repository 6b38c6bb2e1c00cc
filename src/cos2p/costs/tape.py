"""The memory of one forward and backward of the elastic transformer, op by op.

Autograd keeps a tensor from the forward of the op that needs it until that op's backward is done; the gradients of
parameters appear meanwhile. So memory rises through the forward, and in the backward it falls with what is released
and rises with the gradients. `Op` says for every differentiable step what it keeps, what it leaves behind and what it
needs for a moment; `walk` plays the tape and finds the worst moment. The tests compare both with torch's allocator.

All figures are bytes for one micro-batch. D, Q, K, F are the bytes of a tensor as wide as the residual, the queries
of the kept heads, their keys, and the kept units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from cos2p.costs.shape import Shape, Workload, block_scalars, embedding_scalars, exit_scalars, table_scalars
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockSize
from cos2p.numerics.output_table import PART, SMALL

FLOAT = 4


@dataclass(frozen=True)
class Op:
    """One differentiable step."""

    kept: int = 0
    """Held from its forward until its backward is done."""
    grown: int = 0
    """Gradients of parameters that its backward leaves behind."""
    forward: int = 0
    """Temporaries at the worst moment of its forward, next to what it keeps."""
    backward: int = 0
    """Temporaries at the worst moment of its backward, next to what it keeps: gradients that come in and go out."""


@dataclass(frozen=True)
class Recomputed:
    """Steps whose forward keeps nothing but its input, and which run again when the backward comes to them."""

    inside: tuple[Op, ...]
    """Without the input they share."""
    kept: int
    """The input."""
    forward: int
    """Temporaries at the worst moment of the first forward."""
    arriving: int
    """The gradient of the output, which waits while they run again."""

    @property
    def grown(self) -> int:
        return sum(op.grown for op in self.inside)


Step = Op | Recomputed


@dataclass(frozen=True)
class Moment:
    """Bytes that a pass holds at one moment."""

    activations: int = 0
    gradients: int = 0

    @property
    def total(self) -> int:
        return self.activations + self.gradients


def worst(moments: Iterable[Moment]) -> Moment:
    return max(moments, key=lambda moment: moment.total)


Gradients = Literal["kept", "accumulated", "stepped"]
"""Their fate in a pass.

`kept`: they appear one after the other and stay. `accumulated`: a step has several micro-batches, so all are there from
the first one on, and each new one is a temporary until it has been added. `stepped`: each goes with its op.
"""


def walk(tape: Sequence[Step], gradients: Gradients = "kept") -> Moment:
    """The worst moment of forward and backward."""
    pass_ = _Pass(gradients, sum(step.grown for step in tape))
    pass_.forward(tape)
    pass_.backward(tape)
    return worst(pass_.moments)


class _Pass:
    def __init__(self, gradients: Gradients, everything: int) -> None:
        self.gradients, self.everything = gradients, everything
        self.kept = self.grown = 0
        self.moments: list[Moment] = []

    def forward(self, tape: Sequence[Step], waiting: int = 0) -> None:
        grown = {"kept": self.grown, "accumulated": self.everything, "stepped": 0}[self.gradients]
        for step in tape:
            self.kept += step.kept
            self.moments.append(Moment(self.kept + waiting + step.forward, grown))

    def backward(self, tape: Sequence[Step]) -> None:
        for step in reversed(tape):
            if isinstance(step, Recomputed):
                self.forward(step.inside, step.arriving)
                self.backward(step.inside)
            else:
                self._backward_of(step)
            self.kept -= step.kept

    def _backward_of(self, op: Op) -> None:
        self.grown += op.grown
        used = self.kept + op.backward
        if self.gradients == "accumulated":
            self.moments.append(Moment(used + op.grown, self.everything))
        else:
            self.moments.append(Moment(used, self.grown if self.gradients == "kept" else op.grown))


class BlockTape:
    """The ops of one block, and what it needs when it only infers.

    `train`: its weights get gradients (weight phase); otherwise its heads and units have gates that do (mask phase).
    """

    def __init__(
        self,
        config: ModelConfig,
        size: BlockSize,
        rows: int,
        *,
        train: bool = True,
        rescale: bool = False,
    ) -> None:
        self.config, self.size, self.train, self.rescale = config, size, train, rescale
        key = size.heads * config.head_dim
        query = key * config.queries_per_group
        self.row = rows * FLOAT  # one scalar a token
        self.D, self.Q, self.K, self.F = (self.row * width for width in (config.dim, query, key, size.units))
        # The attention kernel keeps q, k, v, its output and a scalar for each query; BERT's padding mask as numbers.
        self.sums = self.row * size.heads * config.queries_per_group
        self.attended = 2 * self.Q + 2 * self.K + self.sums
        self.attended += self.row if config.family == "bert" else 0
        bias, into, out = config.biased, config.attention_bias != "none", config.attention_bias == "all"
        self.into_heads = self._gradient((query + 2 * key) * (config.dim + into))
        self.out_of_heads = self._gradient(config.dim * (query + out))
        self.into_units = self._gradient((2 if config.gated else 1) * size.units * (config.dim + bias))
        self.out_of_units = self._gradient(config.dim * (size.units + bias))

    def _gradient(self, scalars: int) -> int:
        return FLOAT * scalars if self.train else 0

    def scales(self, kept: int, whole: int) -> bool:
        return self.rescale and self.train and kept < whole

    def norm(self) -> Op:
        """Keeps its input and statistics; RMSNorm, made of several ops, the normalised input too, for its weight."""
        D = self.D
        if self.config.biased:
            return Op(D + 2 * self.row, self._gradient(2 * self.config.dim), forward=D, backward=3 * D)
        weight = D if self.train else 0
        return Op(D + self.row + weight, self._gradient(self.config.dim), forward=2 * D, backward=5 * D - weight)

    def head_norms(self, borrowed: bool = False) -> Op:
        """As RMSNorm of the residual, once as wide as the queries and once as the keys; v waits.

        `borrowed`: the norms of a trained block that these frozen heads stand next to, trained through them too.
        """
        Q, K = self.Q, self.K
        weight = Q + K if self.train or borrowed else 0
        sums = self.sums + self.sums // self.config.queries_per_group
        grown = self._gradient(2 * self.config.head_dim)
        return Op(Q + K + sums + weight, grown, forward=2 * Q + 2 * K, backward=self.D + 5 * Q + 2 * K - weight)

    def bias_only(self, live: int) -> Op:
        """No segment is kept: `live` tensors, the zeros of a model without biases, and the sum, for a moment."""
        tensors = live + (1 if self.config.biased else 2)
        return Op(grown=self._gradient(self.config.dim), forward=tensors * self.D, backward=2 * self.D)

    def attention(self, first: bool = False) -> list[Op]:
        """q, k, v; rotation; attention; gate or scale; o; the sum with the residual."""
        D, Q, K = self.D, self.Q, self.K
        if self.size.heads == 0:
            return [self.bias_only(live=1)]
        if not self.train:
            return self._gated_attention(first)
        # The three gradients of the common input are summed one after the other.
        summing = max(Q + 2 * K + D, Q + K + 2 * D, Q + 3 * D)
        ops = [Op(D, self.into_heads, Q + 2 * K, D + summing)]
        if self.config.qk_norm:
            ops.append(self.head_norms())
        if self.config.family == "llama":
            ops.append(Op(forward=4 * Q + 2 * K, backward=D + 3 * Q + 2 * K + Q // 2))
        ops.append(Op(self.attended, backward=D + 2 * Q + 2 * K + self.sums))
        scaled = Q if self.scales(self.size.heads, self.config.groups) else 0
        ops.append(Op(scaled, self.out_of_heads, 2 * D, D + Q))
        return ops

    def _gated_attention(self, first: bool) -> list[Op]:
        """With frozen weights no linear layer keeps its input; below the first gate there is no backward at all."""
        D, Q, K = self.D, self.Q, self.K
        rotated = 3 * Q if self.config.family == "llama" else 0
        core, live = Op(Q, forward=D + Q + 2 * K + rotated), Q + 2 * K
        if not first:
            core, live = Op(self.attended, forward=D + rotated, backward=5 * D + 2 * Q + 2 * K + rotated), 0
        out = max(2 * D + Q + live, 3 * D + Q)
        norms = [self.head_norms()] if self.config.qk_norm and not first else []
        return [*norms, core, Op(forward=D + Q + live, backward=D + 3 * Q), Op(forward=out, backward=D + Q)]

    def feed_forward(self) -> list[Op]:
        """fc1 (and gate); activation; gate or scale; fc2; the sum with the residual."""
        D, F = self.D, self.F
        if self.size.units == 0:
            return [self.bias_only(live=2)]  # the norm and its input
        loose = 0 if self.train else D  # the norm's output, which only a trained layer keeps
        kept = D - loose
        if self.config.gated:
            ops = [
                Op(kept, self.into_units, loose + 2 * F, 4 * D + F),
                Op(F, forward=loose + F, backward=2 * D + 2 * F),
                Op(2 * F, forward=loose, backward=D + 3 * F),
            ]
        else:
            ops = [
                Op(kept, self.into_units, loose + F, 2 * D + F),
                Op(F, forward=loose + F, backward=D + 2 * F),
            ]
        if self.train:
            scaled = F if self.scales(self.size.units, self.config.mlp) else 0
            return [*ops, Op(F, self.out_of_units, 2 * D + scaled, D + F)]
        return [*ops, Op(F, forward=loose + F, backward=D + 3 * F), Op(forward=loose + F + 2 * D, backward=D + F)]

    def frozen_ops(self, borrowed: bool = True) -> tuple[list[Op], list[Op]]:
        """Attention and MLP of frozen segments that stand next to those which train; gradients pass through them.

        A linear layer that does not train keeps nothing; attention and the activation keep what they need.
        """
        D, Q, K, F = self.D, self.Q, self.K, self.F
        attention: list[Op] = []
        if self.size.heads:
            rotated = 3 * Q if self.config.family == "llama" else 0
            norms = [self.head_norms(borrowed)] if self.config.qk_norm else []
            attention = [
                *norms,
                Op(self.attended, forward=2 * D + Q + 2 * K + rotated, backward=4 * D + 2 * Q + 2 * K + rotated),
                Op(forward=3 * D + Q, backward=2 * D + Q),
            ]
        mlp: list[Op] = []
        if self.size.units:
            wide, kept = (2 * F, 3 * F) if self.config.gated else (F, F)
            mlp = [
                Op(forward=2 * D + wide, backward=4 * D + wide),
                Op(kept, forward=2 * D + F, backward=2 * D + 3 * F),
                Op(forward=3 * D + F, backward=2 * D + F),
            ]
        return attention, mlp

    def through(self) -> list[Op]:
        """The whole block, frozen, with the gradient of its input: two norms and what they feed."""
        attention, mlp = self.frozen_ops(borrowed=False)
        return [self.norm(), *attention, self.norm(), *mlp]

    def ops(self, first: bool = False, held: bool = True) -> list[Op]:
        """In the order of the forward. The input of the `first` block may be `held` by whoever runs it."""
        ops = self._pre_norm(first) if self.config.pre_norm else self._post_norm(first)
        keeps_input = self.size.heads > 0 and (self.train or (self.config.pre_norm and not first))
        if keeps_input:
            return ops
        if first and held:
            return [Op(self.D), *ops]
        # Nobody keeps the block's input for the backward, but it lives as long as the block runs.
        return [replace(op, forward=op.forward + self.D) for op in ops]

    def recomputed(self, other: BlockTape | None = None) -> Recomputed:
        """The block when it keeps its input alone. `other`: the frozen segments next to those that train."""
        below, *above = self.ops()
        below = replace(below, kept=below.kept - (self.D if self.size.heads else 0))
        frozen_ops = [] if other is None else [op for ops in other.frozen_ops() for op in ops]
        passing = self.inference() + (0 if other is None else other.inference())
        return Recomputed((below, *above, *frozen_ops), self.D, passing, arriving=self.D)

    def _pre_norm(self, first: bool) -> list[Op]:
        passing = Op(forward=2 * self.D)  # a norm whose input nobody needs again
        norms = self.size.heads > 0 and (self.train or not first)
        below = self.norm() if norms else passing
        between = self.norm() if self.size.units else replace(passing, forward=3 * self.D)
        return [below, *self.attention(first), between, *self.feed_forward()]

    def _post_norm(self, first: bool) -> list[Op]:
        return [*self.attention(first), self.norm(), *self.feed_forward(), self.norm()]

    def inference(self) -> int:
        """Temporaries at the worst moment of a forward without gradients, next to the block's input."""
        D, Q, K, F = self.D, self.Q, self.K, self.F
        normed = D if self.config.pre_norm else 0
        rotated = 3 * Q if self.config.family == "llama" else 0
        attention = normed + Q + 2 * K + max(rotated, Q + 2 * D)
        wide = 3 * F if self.config.gated else 2 * F
        if self.scales(self.size.units, self.config.mlp):
            wide, attention = wide + F, attention + Q
        return max(attention, D + normed + max(wide, F + 2 * D))


def embedding_ops(config: ModelConfig, samples: int, tokens: int, threads: int, rows: int | None = None) -> list[Op]:
    """The embeddings below an unfrozen window. Their input is counted with the inputs."""
    D = samples * tokens * config.dim * FLOAT
    tables = FLOAT * embedding_scalars(config, rows)
    if config.family == "vit":
        # Convolution, cls token and positions each make a new tensor; backward reorders the gradient for its kernel.
        return [Op(grown=tables, forward=3 * D, backward=2 * D + patch_scratch(config, threads))]
    if config.family == "bert":
        norm = BlockTape(config, BlockSize(0, 0), samples * tokens).norm()
        return [Op(grown=tables - norm.grown, forward=3 * D, backward=2 * D), norm]
    if config.task == "language-modeling" and config.tied:
        # The table's gradient from the exits is there already: counted with them, this one and their sum come on top.
        return [Op(forward=D, backward=2 * D + 2 * tables)]
    return [Op(grown=tables, forward=D, backward=2 * D)]


def patch_scratch(config: ModelConfig, threads: int) -> int:
    """The patch kernel's backward: a gradient of the weights and an image for each thread, summed at the end."""
    return FLOAT * threads * config.channels * (config.patch**2 * config.dim + config.image**2)


def exit_ops(
    config: ModelConfig,
    samples: int,
    tokens: int,
    *,
    train: bool,
    table_trains: bool,
    deepest: bool,
    alone: bool,
    student: bool,
    rows: int | None = None,
    exits: int = 1,
) -> list[Op]:
    """One exit and what the loss keeps for it.

    Its logits make way for their log-probabilities and these for their gradient: one tensor of that size all the time.
    `alone`: no block above keeps the exit's input. `student`: it also learns from the deepest exit, which keeps three
    tensors more.
    """
    token = samples * config.dim * FLOAT
    D = samples * config.dim * tokens * FLOAT
    norm = BlockTape(config, BlockSize(0, 0), samples * tokens, train=train).norm()
    shared = replace(norm, kept=norm.kept if alone else norm.kept - D)
    if config.task == "classification":
        logits = samples * config.classes * FLOAT
        kept = 3 * token + (4 if student else 1) * logits
        grown = FLOAT * exit_scalars(config) if train else 0
        if config.pooling == "mean":
            # Every token has a gradient of its own; what is normed first (not BERT's) is kept by its norm.
            below = Op(backward=D if deepest else 2 * D) if config.family == "bert" else shared
            return [below, Op(kept - 2 * token, grown - below.grown, forward=D + token, backward=2 * D + token)]
        if alone and config.family != "llama":
            kept += D  # one token is picked by a view, which keeps them all
        return [Op(backward=D if deepest else 2 * D), Op(kept, grown, forward=D + token, backward=2 * token)]
    if deepest and in_parts(config, exits, train, rows):
        chunk = 4 * FLOAT * PART  # of the table, as it is stored and as numbers, and of its logits
        grown = FLOAT * table_scalars(config, rows) if table_trains else 0
        labels = 10 * FLOAT * samples * tokens
        return [shared, Op(2 * D + labels, grown, forward=D + chunk, backward=3 * D + chunk)]
    logits = samples * tokens * (config.vocab if rows is None else rows) * FLOAT
    # The deepest exit leaves the gradient of a table that trains; each other one adds its own to it.
    table = FLOAT * table_scalars(config, rows) if table_trains else 0
    labels = 6 * FLOAT * samples * tokens  # which tokens are real, and where
    kept = (D if table_trains else 0) + (4 if student else 1) * logits + labels
    arriving = 2 * D + (0 if deepest else 2 * table)
    return [shared, Op(kept, table if deepest else 0, forward=D, backward=arriving)]


def in_parts(config: ModelConfig, exits: int, train: bool, rows: int | None) -> bool:
    """Whether the loss of a language model is computed without whole logits (`losses.reads_in_parts`)."""
    wide = (config.vocab if rows is None else rows) > SMALL
    return config.task == "language-modeling" and train and exits == 1 and wide


def suffix_op(config: ModelConfig, shape: Shape, samples: int, tokens: int) -> Op:
    """The blocks above the window: what went into each is kept, and one of them is in memory, decoded from 16 bits."""
    full = BlockSize.full(config)
    block = BlockTape(config, full, samples * tokens, train=False)
    weights = FLOAT * block_scalars(config, full)
    inner = walk(block.through()).activations
    passing = max(block.inference() + weights, weights + weights // 2)
    return Op(shape.above * block.D, forward=block.D + passing, backward=2 * block.D + inner + weights)


def loss_op(
    config: ModelConfig,
    samples: int,
    tokens: int,
    exits: int,
    distill: bool,
    rows: int | None = None,
    train: bool = True,
) -> Op:
    """Temporaries of the loss over all exits, next to the tensor of each that `exit_ops` count.

    The outputs live until their log-probabilities are there, and language modelling copies the real tokens out of them.
    """
    if in_parts(config, exits, train, rows):
        return Op()
    counted = samples if config.task == "classification" else samples * tokens
    outputs = rows if config.task == "language-modeling" and rows is not None else config.outputs
    logits = counted * outputs * FLOAT
    teaching = 2 if distill else 0
    return Op(forward=(2 * exits + teaching) * logits, backward=(2 + teaching) * logits)


def pass_tape(config: ModelConfig, shape: Shape, workload: Workload, *, train: bool = True) -> list[Step]:
    """Everything one micro-batch goes through, from the window's input to the loss.

    `train`: the weights (weight phase); otherwise gates of heads and units, with the deepest exit alone (mask phase).
    """
    samples, tokens = workload.micro, workload.length(config)
    distill = train and workload.distill and len(shape.exits) > 1
    language = config.task == "language-modeling"
    table_trains = train and language and (not config.tied or not shape.has_prefix)
    recompute = train and workload.recompute  # masks are trained as they always are
    tape: list[Step] = [Op(2 * tokens * config.head_dim * FLOAT)] if config.family == "llama" else []
    if not shape.has_prefix:
        ops = embedding_ops(config, samples, tokens, workload.threads, shape.rows)
        tape += ops if train else [Op(forward=op.forward) for op in ops]
    exits = partial(
        exit_ops, config, samples, tokens, train=train, table_trains=table_trains, rows=shape.rows,
        exits=len(shape.exits),
    )  # fmt: skip
    for i, (size, other) in enumerate(zip(shape.window, shape.others(config), strict=True)):
        block = BlockTape(config, size, samples * tokens, train=train, rescale=workload.rescale)
        first, depth = i == 0, shape.frozen + i + 1
        rest = BlockTape(config, other, samples * tokens, train=False)
        if recompute:
            tape.append(block.recomputed(rest if shape.rest else None))
        else:
            tape += block.ops(first, held=shape.has_prefix)
            for ops in rest.frozen_ops():
                tape += ops
        if depth in shape.exits:
            deepest = depth == shape.exits[-1]
            alone = deepest or depth == shape.top or (shape.window[i + 1].heads == 0 and not recompute)
            tape += exits(deepest=deepest, alone=alone, student=distill and not deepest)
    if shape.above:
        tape += [suffix_op(config, shape, samples, tokens), *exits(deepest=True, alone=True, student=False)]
    last = loss_op(config, samples, tokens, len(shape.exits) if train else 1, distill, shape.rows, train)
    return [*tape, last]

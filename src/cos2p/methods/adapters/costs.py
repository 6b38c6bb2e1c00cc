"""The costs of training adapters, the blocks held or streamed: bytes of the worst moment, and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cos2p.costs.flops import block_forward, exit_forward, streamed_block
from cos2p.costs.ledger import PAGE_BYTES, SLACK_BYTES, Ledger, last_holding, shape_ledger, with_slack
from cos2p.costs.shape import Shape, Workload, block_scalars, table_scalars
from cos2p.costs.tape import FLOAT, BlockTape, Gradients, Op, Recomputed, Step, exit_ops, loss_op, walk
from cos2p.methods.adapters.factors import Target
from cos2p.models.config import ModelConfig
from cos2p.models.layout import block_parameters, layout
from cos2p.models.spec import BlockSize
from cos2p.numerics.optimizers import state_bytes, state_tensors, step_temporary_bytes
from cos2p.numerics.output_table import SMALL
from cos2p.training.costs import prefix_pass

GAPS = 50
"""One in so many bytes of activations lies between blocks that do not fill each other's place: up to 0.7 % of a task
were measured above what is in use."""


@dataclass(frozen=True)
class AdapterLoad:
    """One task: how many blocks run before the adapters and with them, and what is trained."""

    config: ModelConfig
    work: Workload
    stream: bool
    """Whether a block is in memory only when it runs."""
    frozen: int
    """Blocks whose features are computed once."""
    streamed: int
    """Blocks that run at every step."""
    rank: int
    targets: Sequence[Target]
    trains_down: bool
    trained: Sequence[int]
    """Scalars of every trained tensor, the exit's last."""
    exit_scalars: int
    held: int
    """Scalars of factors that are held and not trained."""
    rows: int | None = None
    """Rows of the token tables that the device has; None: all."""
    known: int = 0
    """Blocks through which the device has features of earlier tasks."""

    @property
    def tokens(self) -> int:
        return self.work.length(self.config)

    @property
    def prefix_shape(self) -> Shape:
        """The frozen part, below a window of next to nothing."""
        full = BlockSize.full(self.config)
        window = (BlockSize(0, 0),)
        prefix = (full,) * self.frozen
        return Shape(self.frozen, window, (self.frozen + 1,), prefix, rows=self.rows, fixed_embeddings=True)

    # ------------------------------------------------------------ bytes

    def peak(self) -> Ledger:
        training = self.training()
        passing = self.prefix(self.prefix_batch())
        return max(training, passing, key=lambda entry: entry.total)

    def prefix_batch(self) -> int:
        """Samples at a time through the frozen part, so that its pass needs no more memory than the training."""
        allowed = self.training().total
        return last_holding(1, self.work.micro, lambda samples: self.prefix(samples).total <= allowed)

    def prefix(self, samples: int) -> Ledger:
        base = shape_ledger(self.config, self.prefix_shape, self.work.with_(prefix_batch=samples), "prefix")
        held = 0 if self.stream else self.streamed * self._block  # its test finds the model in memory
        return replace(base, weights=FLOAT * sum(self.trained), prefix=base.prefix + held)

    def training(self) -> Ledger:
        config, work, count = self.config, self.work, sum(self.trained)
        rows = config.vocab if self.rows is None else self.rows
        table = table_scalars(config, self.rows) if rows <= SMALL else 0  # frozen; a large one is read in parts
        streamed = sum(name.startswith("blocks.0.") for name in layout(config))  # each read, and decoded
        tensors = len(self.trained) * (3 + state_tensors(work.optimizer)) + 2 * streamed
        cached = self.prefix(1).features
        base = Ledger(
            "weight",
            "pass",
            weights=FLOAT * (2 * count + self.held + table),  # as received and as trained
            prefix=0 if self.stream else self.streamed * self._block,
            optimizer=state_bytes(work.optimizer, self.trained),
            features=cached,
            inputs=self.prefix(1).inputs,
            overhead=SLACK_BYTES + PAGE_BYTES * tensors,
        )
        together: Gradients = "accumulated" if work.micro < work.batch else "kept"
        if together == "accumulated":  # small gradients are made anew for every part, and those before leave holes
            base = replace(base, overhead=base.overhead + FLOAT * count)
        worst = walk(self._tape(), "stepped" if work.step_in_backward else together)
        batch = work.micro * self.tokens * config.dim * FLOAT
        chunk = step_temporary_bytes(work.optimizer, work.threads)
        kept = 0 if work.step_in_backward else FLOAT * count
        gaps = worst.activations // GAPS
        passing = replace(base, gradients=worst.gradients, overhead=base.overhead + gaps)
        moments = (
            replace(passing, activations=worst.activations + (chunk if not kept else 0)),
            replace(base, moment="step", activations=batch + chunk, gradients=kept),
        )
        return with_slack(max(moments, key=lambda entry: entry.total))

    def _tape(self) -> list[Step]:
        config, samples = self.config, self.work.micro
        rotary = [Op(2 * self.tokens * config.head_dim * FLOAT)] if config.family == "llama" else []
        exits = exit_ops(
            config, samples, self.tokens, train=True, table_trains=False, deepest=True, alone=True, student=False,
            rows=self.rows,
        )  # fmt: skip
        return [*rotary, *self._blocks(), *exits, loss_op(config, samples, self.tokens, 1, False, self.rows)]

    @property
    def _block(self) -> int:
        """Bytes of a block in 32 bits."""
        return FLOAT * block_scalars(self.config, BlockSize.full(self.config))

    def _blocks(self) -> list[Step]:
        """All blocks that run at every step. One that runs again keeps what went into it; one that is streamed is
        decoded from 16 bits when it runs."""
        config, full = self.config, BlockSize.full(self.config)
        block = BlockTape(config, full, self.work.micro * self.tokens, train=False)
        weights = self._block if self.stream else 0
        forward = block.D + max(block.inference() + weights, weights + weights // 2)
        if not self.rank:  # nothing below the head is trained, so nothing is kept
            return [Op(block.D, forward=forward)]
        grown = FLOAT * (sum(self.trained) - self.exit_scalars) // self.streamed
        below, *above = self._adapted(block)
        inside = (replace(below, grown=grown), *above)
        if self.stream or self.work.recompute:
            return [Recomputed(inside, block.D, forward, arriving=block.D)] * self.streamed
        return [*inside] * self.streamed

    def _adapted(self, block: BlockTape) -> Iterator[Op]:
        """The ops of a frozen block with adapters. A streamed matrix is let go in the backward when it was used;
        an adapter keeps the input of its matrix, and its gradient of it is added to the matrix's own."""
        D, Q, F, gated = block.D, block.Q, block.F, self.config.gated
        attention, _ = block.frozen_ops(borrowed=False)
        *before, attended, out = attention
        yield block.norm()
        yield from before
        into = ("q", "k", "v")
        yield replace(attended, kept=attended.kept + self._kept(block, into, D))
        yield replace(out, kept=out.kept + self._kept(block, ("o",), Q), backward=out.backward + 2 * Q)
        yield block.norm()
        kept, wide = self._kept(block, ("fc1", "gate"), D), 2 * F if gated else F
        yield Op(kept, forward=2 * D + wide, backward=4 * D + wide)
        yield Op(F, forward=2 * D + F, backward=2 * D + 2 * F)
        if gated:
            yield Op(2 * F, forward=2 * D, backward=D + 3 * F)
        yield Op(backward=3 * F)  # two gradients and their sum
        yield Op(self._matrices("fc2"), backward=D + 2 * F)
        yield Op(self._kept(block, ("fc2",), F) - self._matrices("fc2"), forward=3 * D + F, backward=2 * D + F)

    def _kept(self, block: BlockTape, names: tuple[str, ...], width: int) -> int:
        """Held for the gradients of these matrices' adapters, and the matrices themselves if they are streamed.

        `width`: bytes of their common input, which frozen matrices alone need not keep."""
        adapted = sum(name in self.targets for name in names)
        own = 2 * block.row * self.rank * adapted + (width if adapted and self.trains_down else 0)
        return own + self._matrices(*names)

    def _matrices(self, *names: str) -> int:
        """Bytes of these matrices of a block, if it is streamed."""
        shapes = block_parameters(self.config)
        found = [shapes[f"{name}.weight"].shape for name in names if f"{name}.weight" in shapes]
        return FLOAT * sum(map(math.prod, found)) if self.stream else 0

    # ------------------------------------------------------------ FLOPs

    def prefix_flops(self) -> float:
        """One sample through what is computed once."""
        return prefix_pass(self.config, self.prefix_shape, self.tokens, self.known)

    def step_flops(self) -> float:
        """One sample, forward and backward."""
        if self.rank:
            block = streamed_block(self.config, self.tokens)
            if not (self.stream or self.work.recompute):
                block -= block_forward(self.config, BlockSize.full(self.config), self.tokens)
        else:  # nothing below the head is trained
            block = block_forward(self.config, BlockSize.full(self.config), self.tokens)
        return self.streamed * (block + 4 * self._adapters()) + 3 * exit_forward(self.config, self.tokens, self.rows)

    def forward_flops(self) -> float:
        """One sample, tested."""
        block = block_forward(self.config, BlockSize.full(self.config), self.tokens)
        return self.streamed * (block + self._adapters()) + exit_forward(self.config, self.tokens, self.rows)

    def _adapters(self) -> float:
        """One sample through the adapters of one block."""
        matrices = block_parameters(self.config)
        return 2.0 * self.tokens * self.rank * sum(sum(matrices[f"{t}.weight"].shape) for t in self.targets)

"""Statistics of a device's data from one forward pass, without training: per class sums of features.

From the sums of all devices the server computes classifiers in closed form (`aggregation.closed_form`): exits that
start right instead of at random. Every block runs once over the shard, one in memory at a time, as in a prefix.

Features are scaled to length one before they are added. So a class's sum is never longer than its count, which is what
the update reader checks: no device can weigh more than its samples.

What this reveals, and training does not: how many samples of each class a device has, and the mean of their features;
with `moments` also how these features scatter. Never a sample, unless a class has one alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cos2p.accelerator import place
from cos2p.costs.flops import block_forward, embedding_forward
from cos2p.costs.ledger import Ledger, shape_ledger
from cos2p.costs.shape import Shape
from cos2p.errors import UpdateRefused
from cos2p.messages import Order, Update
from cos2p.messages.envelope import Forms, TensorForm
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, exit_key, exit_parameters, layout
from cos2p.models.spec import BlockKeep, BlockSize, SubmodelSpec
from cos2p.models.transformer import Context, Exit
from cos2p.training.contract import FrozenParts, TaskContract
from cos2p.training.costs import TaskFlops, workload
from cos2p.training.prefix import ADAPTERS, AdaptedFile, PrefixFile, loaded, prefix_features
from cos2p.training.settings import LocalSettings
from cos2p.training.trainer import OPTIMIZATIONS, Trainer

FLOAT = 4
TOLERANCE = 1e-3
"""Rounding that the update reader forgives, as a share of a count."""
SCATTER_TOLERANCE = 1e-5
"""The same of a scatter's eigenvalues, which are far smaller."""
SHORTEST = 1e-3
"""Mean length of features below which nothing can be read off them."""


class StatisticsSettings(LocalSettings):
    depths: tuple[int, ...] = Field(min_length=1, description="Behind how many blocks features are summed, ascending.")
    moments: bool = Field(default=False, description="Also the sum of x·xᵀ: dim² / 2 scalars at every depth.")
    final: bool = Field(default=False, description="Reported once more at the end of the run, of the trained features.")
    scale: float = Field(default=0.0, description="Adapters come along and are added to their matrices times this.")
    adapters: int = Field(default=0, description="Scalars of these adapters.")


def is_final_statistics(order: Order) -> bool:
    """Whether the order asks for sums at the end of a run, of the features as they were trained."""
    return order.trainer == StatisticsTrainer.name and bool(order.settings.get("final"))


def statistics_spec(config: ModelConfig) -> SubmodelSpec:
    """All of the model, frozen. A submodel has a window: here the last block, of which nothing trains."""
    return SubmodelSpec(config.depth - 1, (BlockKeep.full(config),), (config.depth,), fixed_embeddings=True)


def statistics_shapes(config: ModelConfig, settings: StatisticsSettings) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a device's statistics: `counts`, and at every depth `6.sums`, `6.length`, `6.moments`."""
    shapes: dict[str, tuple[int, ...]] = {"counts": (config.classes,)}
    for depth in settings.depths:
        shapes |= {f"{depth}.sums": (config.classes, config.dim), f"{depth}.length": ()}
        if settings.moments:
            shapes[f"{depth}.moments"] = (config.dim * (config.dim + 1) // 2,)
    return shapes


def statistics_bytes(config: ModelConfig, settings: StatisticsSettings) -> int:
    return FLOAT * sum(math.prod(shape) for shape in statistics_shapes(config, settings).values())


def statistics_memory(config: ModelConfig, spec: SubmodelSpec, settings: StatisticsSettings, samples: int) -> Ledger:
    """A frozen prefix of all blocks; the sums, and those of one depth once more while a batch is added to them."""
    load = workload(settings, samples).with_(keep_start=False)  # nothing trains, so nothing is tested
    shape = replace(Shape.of(config, spec), prefix=(BlockSize.full(config),) * config.depth)
    base = shape_ledger(config, shape, load.with_(prefix_batch=load.micro), "prefix")
    square = FLOAT * config.dim**2 if settings.moments else 0
    indices = 4 * square  # of the half that is packed: two of eight bytes for each entry, twice
    adapters = FLOAT * (settings.adapters + config.dim * config.mlp) if settings.adapters else 0
    own = statistics_bytes(config, settings) + 2 * square + indices + adapters
    # All blocks are frozen parts: of what trains elsewhere a device holds only what stands before the classifiers.
    exits = (
        FLOAT
        * len(settings.depths)
        * (2 * config.dim + (config.dim * (config.dim + 1) if config.pooler != "none" else 0))
    )
    return replace(base, weights=exits, overhead=base.overhead + own)


class StatisticsContract(TaskContract):
    """Nothing trains: the update is empty, the sums are its extras."""

    trains: ClassVar[bool] = False
    settings: StatisticsSettings

    def sent(self, weights: Weights) -> Weights:
        """The tensors before the classifier at every depth that is asked for."""
        own: Weights = {}
        for depth in self.settings.depths:
            key = exit_key(self.config, depth)
            own |= {f"{key}.{name}": weights[f"{key}.{name}"].clone() for name in exit_parameters(self.config)}
        adapters = {name: weights[name] for name in weights if self.settings.scale and ADAPTERS in name}
        return {name: tensor for name, tensor in own.items() if ".linear." not in name} | adapters

    def frozen(self) -> FrozenParts:
        last = f"blocks.{self.config.depth - 1}."  # a window, of which nothing trains
        return {**super().frozen(), **{name: (name, None) for name in layout(self.config) if name.startswith(last)}}

    def answer(self, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
        return {}

    def upload(self) -> int:
        return statistics_bytes(self.config, self.settings)

    def extra_tensors(self, spec: SubmodelSpec) -> Forms:
        return {name: TensorForm(shape) for name, shape in statistics_shapes(self.config, self.settings).items()}

    def check(self, update: Update, max_rms: float) -> None:
        """Counts that add up to the samples, and sums that unit vectors can have."""
        counts = update.extras["counts"]
        if bool((counts < 0).any()) or bool((counts != counts.round()).any()) or int(counts.sum()) != update.samples:
            raise UpdateRefused(f"its counts add up to {float(counts.sum()):g}, its samples are {update.samples}")
        for depth in self.settings.depths:
            self._check_depth(update.extras, depth, max_rms)

    def _check_depth(self, statistics: Weights, depth: int, max_rms: float) -> None:
        counts, samples = statistics["counts"], float(statistics["counts"].sum())
        norms = torch.linalg.vector_norm(statistics[f"{depth}.sums"].double(), dim=1)
        if bool((norms > counts * (1 + TOLERANCE)).any()):
            raise UpdateRefused(f"depth {depth}: a class's sum is longer than its count, which unit vectors cannot be")
        length = float(statistics[f"{depth}.length"])
        if not samples * SHORTEST <= length <= samples * max_rms * math.sqrt(self.config.dim):
            raise UpdateRefused(f"depth {depth}: features of mean length {length / samples:.3g} are not let in")
        if self.settings.moments:
            self._check_moments(statistics, depth)

    def _check_moments(self, statistics: Weights, depth: int) -> None:
        """The moments without the class means are a scatter: nothing has less than none of it.

        Otherwise a server that divides by it could be led to exits of any size, by one moment of one device.
        """
        counts, samples = statistics["counts"].double(), float(statistics["counts"].sum())
        moments = unpacked(statistics[f"{depth}.moments"], self.config.dim).double()
        total = float(moments.diagonal().sum())
        if abs(total - samples) > samples * TOLERANCE:
            raise UpdateRefused(
                f"depth {depth}: its moments have trace {total:.6g}; {samples:g} is that of unit vectors"
            )
        sums = statistics[f"{depth}.sums"].double()
        inside = moments - (sums / counts.clamp_min(1)[:, None]).T @ sums
        inside.diagonal().add_(samples * SCATTER_TOLERANCE)
        if int(torch.linalg.cholesky_ex(inside).info):
            raise UpdateRefused(f"depth {depth}: its moments and sums are not those of any vectors")

    def flops(self, samples: int, test_samples: int) -> TaskFlops:
        tokens = workload(self.settings, samples).length(self.config)
        each = embedding_forward(self.config)
        each += self.config.depth * block_forward(self.config, BlockSize.full(self.config), tokens)
        if self.settings.moments:
            each += len(self.settings.depths) * 2.0 * self.config.dim**2
        return TaskFlops(prefix=samples * each)

    def memory(self, samples: int) -> Ledger:
        return statistics_memory(self.config, self.order.spec, self.settings, samples)


class StatisticsTrainer(Trainer):
    """Passes over the data, without training."""

    name: ClassVar[str] = "statistics"
    contract_type = StatisticsContract
    settings_type = StatisticsSettings
    supports = OPTIMIZATIONS
    settings: StatisticsSettings

    def train(self) -> Update:
        order, part = self.order, replace(self.shard.train, augmenter=None)
        if part.widths is not None:  # texts of like width together, so that little is padded
            part = part.subset(part.widths.argsort(stable=True))
        shapes = statistics_shapes(self.config, self.settings)
        self.sums = {name: torch.zeros(shape, device=self.device) for name, shape in shapes.items()}
        self.sums["counts"] = torch.bincount(part.labels, minlength=self.config.classes).float()
        labels = place(part.labels, self.device)
        self._exits = {depth: self._exit(depth) for depth in self.settings.depths}

        def watch(depth: int, rows: slice, x_BTD: Tensor, context: Context) -> None:
            if depth in self._exits:
                add_sums(self.sums, depth, self._exits[depth].features(x_BTD, context), labels[rows])

        prefix_features(
            self.config,
            replace(order.spec, frozen=self.config.depth),
            self._adapted(),
            lambda rows: self.shard.inputs(part, rows),
            len(part),
            self.local.memory_optimizations.at_once(min(self.settings.batch, len(part))),
            self.settings.store,
            self.settings.feature_precision,
            part.widths,
            watch=watch,
        )
        report = {"local_samples": 0, "prefix_recomputed": 1}  # no features are kept for later tasks
        return Update(order.client, order.task, order.version, order.spec, {}, len(part), report, self.sums)

    def _adapted(self) -> PrefixFile:
        base, scale = self._frozen(), self.settings.scale
        return AdaptedFile(base, self.given(), scale) if scale else base

    def _exit(self, depth: int) -> Exit:
        """The layers before the classifier at this depth; the classifier itself shall be found."""
        module = Exit(self.config)
        del module.linear
        file = PrefixFile(self.given(), device=self.device)
        return loaded(module, file.part(exit_key(self.config, depth) + "."))


def add_sums(sums: Weights, depth: int, x_BD: Tensor, labels: Tensor) -> None:
    """A batch more of features behind `depth` blocks; moments, if `sums` has them."""
    sums[f"{depth}.length"] += torch.linalg.vector_norm(x_BD, dim=1).sum()
    unit_BD = F.normalize(x_BD, dim=1)
    sums[f"{depth}.sums"].index_add_(0, labels, unit_BD)
    if f"{depth}.moments" in sums:
        sums[f"{depth}.moments"] += packed(unit_BD.T @ unit_BD)


def class_sums(x_ND: Tensor, labels: Tensor, classes: int, depth: int = 1) -> Weights:
    """The sums that a device with these features at one depth would report, moments included."""
    dim = x_ND.shape[1]
    sums = {"counts": torch.bincount(labels, minlength=classes).float(), f"{depth}.length": torch.zeros(())}
    sums |= {f"{depth}.sums": torch.zeros(classes, dim), f"{depth}.moments": torch.zeros(dim * (dim + 1) // 2)}
    add_sums(sums, depth, x_ND, labels)
    return sums


def packed(square: Tensor) -> Tensor:
    """The upper half of a symmetric matrix, row by row.

    >>> packed(torch.tensor([[1.0, 2.0], [2.0, 3.0]])).tolist()
    [1.0, 2.0, 3.0]
    """
    rows, columns = torch.triu_indices(*square.shape, device=square.device)
    return square[rows, columns]


def unpacked(half: Tensor, dim: int) -> Tensor:
    """The counterpart of `packed`."""
    rows, columns = torch.triu_indices(dim, dim, device=half.device)
    square = half.new_zeros(dim, dim)
    square[rows, columns] = half
    square[columns, rows] = half
    return square

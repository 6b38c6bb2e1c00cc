"""The frozen blocks below the window: run once per task, block by block, and remembered.

Nothing below the window changes while a device trains, so its features are computed once: load a block, run the whole
shard through it, drop it, load the next. Never more than one frozen block is in memory, and every epoch of both
phases starts from the cached features. On the wire the prefix only infers, so it can travel in 16 or 8 bits.

The frozen blocks above the window: the loss is at the true top, and only one of them is in memory at a time.

Forward runs block after block and keeps what went into each; backward loads each block once more, from the top down,
runs it again on what went in, and passes the gradient through. So next to the window a device holds one block, and one
tensor as wide as the residual for each block above. The gradients are those of ordinary backpropagation.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from cos2p.accelerator import CPU, place, place_all
from cos2p.data.ragged import places, widest
from cos2p.errors import TrainingError
from cos2p.messages import CachedParts, Precision
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.models.transformer import Block, Context, Embedding, make_context
from cos2p.models.transformer import places as places_of
from cos2p.numerics.output_table import Table
from cos2p.submodel.slicing import Slice, part_key
from cos2p.training.client_cache import CacheMiss, ClientCache, chain
from cos2p.units import format_bytes

FeaturePrecision = Literal["float32", "float16"]
Store = Literal["memory", "disk"]
M = TypeVar("M", bound=torch.nn.Module)
T = TypeVar("T")

SCALE = "::scale"
"""Behind a name: that of the companion tensor which its codes are multiplied with."""


def encode(weights: Mapping[str, Tensor], precision: Precision) -> Weights:
    """The tensors as they travel. 8 bits: matrices row by row with a scale each; vectors in 16 bits."""
    if precision == "float32":
        return dict(weights)
    encoded: Weights = {}
    for name, tensor in weights.items():
        if precision == "float16" or tensor.ndim < 2:
            encoded[name] = tensor.half()
            continue
        rows = tensor.flatten(1)
        scale = rows.abs().amax(1).clamp_min(1e-12) / 127 if rows.numel() else tensor.new_ones(len(tensor))
        encoded[name] = (rows / scale[:, None]).round().to(torch.int8).view(tensor.shape)
        encoded[name + SCALE] = scale
    return encoded


def decode(encoded: Mapping[str, Tensor]) -> Weights:
    """Back to float32."""
    weights: Weights = {}
    for name, tensor in encoded.items():
        if name.endswith(SCALE):
            continue
        weights[name], scale = tensor.float(), encoded.get(name + SCALE)
        if scale is not None:  # one for each row, or one in all
            weights[name] = weights[name] * scale.view(-1, *(1,) * (tensor.ndim - 1))
    return weights


class PrefixFile:
    """Gives the tensors of one part of the prefix (`embed.` or `blocks.3.`) at a time, decoded.

    `held`: parts of which nothing came with the task, by their names in the cache; `frozen`: what of them is asked for,
    where that is not all. `device`: where parts are wanted; they travel there encoded.
    """

    def __init__(
        self,
        encoded: Mapping[str, Tensor],
        held: Mapping[str, str] | None = None,
        client_cache: ClientCache | None = None,
        device: torch.device = CPU,
        frozen: Mapping[str, tuple[str, Slice | None]] | None = None,
    ) -> None:
        self._encoded, self._client_cache, self.device, self._frozen = encoded, client_cache, device, frozen or {}
        came = {part_key(name) for name in encoded}
        self._held = {key: name for key, name in (held or {}).items() if key not in came}

    def encoded(self, start: str) -> Weights:
        """The tensors of a part as they came, by their full names."""
        key = part_key(start)
        if key not in self._held:
            return part_of(self._encoded, start)
        if self._client_cache is None:
            raise CacheMiss("the task counts on frozen parts of earlier ones, and nothing is kept here")
        whole = self._client_cache.get(self._held[key])
        wanted = part_of(self._frozen, start)
        if all(sent in whole for sent in wanted):
            return part_of(whole, start)
        return {
            sent: whole[name] if cut is None else whole[name].index_select(*cut) for sent, (name, cut) in wanted.items()
        }

    def part(self, start: str) -> Weights:
        encoded = place_all(self.encoded(start), self.device)
        if part_key(start) in self._held:  # in a file they lie at any address, where kernels may round differently
            encoded = {name: t.clone() if t.dtype == torch.float32 else t for name, t in encoded.items()}
        return {name.removeprefix(start): tensor for name, tensor in decode(encoded).items()}

    def table(self, name: str) -> Table:
        """A table of rows that is decoded some rows at a time."""
        found = self.encoded(name.partition(".")[0] + ".")
        encoded = {key: found[key] for key in (name, name + SCALE) if key in found}
        rows, dim = encoded[name].shape
        read = lambda chosen: decode({key: place(own[chosen], self.device) for key, own in encoded.items()})[name]  # noqa: E731
        return Table(rows, dim, read)

    def parts(self) -> Iterator[Weights]:
        """All of it as it travelled, some at a time: what came with the task, then what was held, part by part."""
        yield dict(self._encoded)
        starts = {sent[: sent.find(".rest.") + 6] if ".rest." in sent else part_key(sent) for sent in self._frozen}
        for start in sorted(start for start in starts if part_key(start) in self._held):
            yield self.encoded(start)


ADAPTERS = "adapters."
"""In the names of low-rank factors: `blocks.3.adapters.q.up`."""


class AdaptedFile(PrefixFile):
    """A frozen part with products of low-rank factors added to its matrices, times `scale`."""

    def __init__(self, file: PrefixFile, factors: Weights, scale: float = 1.0) -> None:
        self.__dict__ |= file.__dict__
        self._factors, self._scale = factors, scale

    def part(self, start: str) -> Weights:
        tensors = super().part(start)
        for name in (name for name in self._factors if name.startswith(start + ADAPTERS) and name.endswith(".up")):
            if bool(self._factors[name].any()):
                matrix = name.removeprefix(start + ADAPTERS).removesuffix("up") + "weight"
                down = self._factors[name.removesuffix("up") + "down"]
                tensors[matrix] = tensors[matrix] + (self._factors[name] * self._scale).T @ down
        return tensors


def part_of(tensors: Mapping[str, T], start: str) -> dict[str, T]:
    """The tensors of one part, by their full names."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(start)}


class Features:
    """The features of a shard behind the frozen prefix: in the memory of the device that computes, or in an unnamed
    file on disk. Batches come on the device."""

    def __init__(
        self,
        samples: int,
        tokens: int,
        dim: int,
        store: Store,
        precision: Precision = "float32",
        device: torch.device = CPU,
    ) -> None:
        dtype = torch.float16 if precision == "float16" else torch.float32
        shape = (samples, tokens, dim)
        self.device = device
        if store == "memory":
            self.values = torch.empty(shape, dtype=dtype, device=device)
        else:
            self.values = _mapped(samples * tokens * dim, dtype).view(shape)

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        return place(self.values[self._here(rows)], self.device).float()

    def __setitem__(self, rows: slice, features: Tensor) -> None:
        self.values[rows] = features.to(self.values.device, self.values.dtype)

    def _here(self, rows: Tensor | slice) -> Tensor | slice:
        return rows if isinstance(rows, slice) else place(rows, self.values.device)


class TextFeatures(Features):
    """The same for texts of unequal widths (see `Examples.widths`), one behind the other. A batch is as wide as its
    widest text; what lies beyond a narrower one is zero, which nobody attends to."""

    def __init__(
        self, widths: Tensor, dim: int, store: Store, precision: Precision = "float32", device: torch.device = CPU
    ) -> None:
        super().__init__(1, int(widths.sum()), dim, store, precision, device)
        self._flat, self._widths, self._starts = self.values[0], widths, widths.cumsum(0) - widths

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        shape, at, inside = self._places(rows)
        features = torch.zeros((shape.numel(), self._flat.shape[1]), device=self.device)
        features[place(inside, self.device)] = place(self._flat[at], self.device).float()
        return features.view(*shape, -1)

    def __setitem__(self, rows: slice, features: Tensor) -> None:
        _, at, inside = self._places(rows)
        kept = features.flatten(0, 1)[place(inside, features.device)]
        self._flat[at] = kept.to(self._flat.device, self._flat.dtype)

    def in_order(self, rows: Tensor) -> TextFeatures:
        """Numbered anew: text i is the one that was `rows[i]`."""
        other = copy(self)
        other._widths, other._starts = self._widths[rows], self._starts[rows]
        return other

    def _places(self, rows: Tensor | slice) -> tuple[torch.Size, Tensor, Tensor]:
        """Shape (n, T) of a batch; where its tokens lie in the store, and where in the flattened batch. Found out on
        the host: a GPU would have to be asked how many there are."""
        widths = self._widths[rows]
        at_nT, inside_nT = places(self._starts[rows], widths, widest(widths))
        inside = inside_nT.flatten().nonzero().squeeze(1)
        return at_nT.shape, place(at_nT.flatten()[inside], self._flat.device), inside


class FreshFeatures(Features):
    """Nothing is kept: inputs that change from batch to batch pass the frozen prefix every time."""

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self.compute = compute


def features_at(features: Features | None, rows: Tensor, inputs: Tensor) -> Tensor | None:
    """The features of a batch: `rows` of what is kept, or of `inputs` anew; None if there is no frozen prefix."""
    if isinstance(features, FreshFeatures):
        return features.compute(inputs)
    return None if features is None else features[rows]


def _mapped(count: int, dtype: torch.dtype) -> Tensor:
    """A tensor in a file that has no name any more: it is gone with the tensor, even if the process is killed."""
    size = count * dtype.itemsize
    with tempfile.NamedTemporaryFile(prefix="cos2p-features-") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # on a full disk an error here, not a crash at some later write
        except OSError as error:
            raise TrainingError(
                f"no room for {format_bytes(size)} of features in {Path(file.name).parent}: {error.strerror}; "
                f"free some, set TMPDIR to another folder, or keep them in memory (prefix.features = 'memory')"
            ) from None
        return torch.from_file(file.name, shared=True, size=count, dtype=dtype)


Batches = Callable[[slice], Tensor]
"""Rows of the shard to model inputs."""

Watch = Callable[[int, slice, Tensor, Context], None]
"""Called for every batch behind every block: the depth, the rows, their features."""


class KeptFeatures:
    """Features that outlive their task; here none do."""

    def known(self, values: Tensor) -> int:
        """Fill those of an earlier task in and say how many blocks they went through; 0: there are none."""
        return 0

    def passed(self, depth: int, values: Tensor) -> None:
        """The features of all samples behind so many blocks."""


class CachedFeatures(KeptFeatures):
    """On the device's disk, under `owner` (whose samples, and how they pass)."""

    def __init__(self, client_cache: ClientCache, cached: CachedParts, owner: str) -> None:
        self.client_cache, self.cached, self.owner = client_cache, cached, owner

    def known(self, values: Tensor) -> int:
        depth = self.cached.features
        if not depth:
            return 0
        host = values if values.device.type == "cpu" else torch.empty_like(values, device=CPU)
        if not self.client_cache.read_features(self.owner, chain(self.cached.through(depth)), host):
            return 0
        if host is not values:
            values.copy_(host)
        return depth

    def passed(self, depth: int, values: Tensor) -> None:
        if depth == self.cached.keep:
            self.client_cache.put_features(self.owner, chain(self.cached.through(depth)), place(values, CPU))


@torch.no_grad()
def prefix_features(
    config: ModelConfig,
    spec: SubmodelSpec,
    prefix: PrefixFile,
    inputs: Batches,
    samples: int,
    batch: int,
    store: Store = "memory",
    precision: Precision = "float32",
    widths: Tensor | None = None,
    kept: KeptFeatures | None = None,
    watch: Watch | None = None,
) -> Features:
    """Run the shard through embeddings and frozen blocks, one block in memory at a time, where `prefix` has its parts.

    `widths`: for texts whose batches are only as wide as they need to be. `kept`: features of earlier
    tasks. `watch`: called with the features behind every block.
    """
    slices = [slice(i, min(i + batch, samples)) for i in range(0, samples, batch)]
    images = config.family == "vit"
    if widths is None:
        tokens = config.tokens if images else inputs(slices[0]).shape[1]
        features = Features(samples, tokens, config.dim, store, precision, prefix.device)
    else:
        features = TextFeatures(widths, config.dim, store, precision, prefix.device)
    kept = kept or KeptFeatures()
    start = kept.known(features.values)
    if start == 0:
        embed = _embedding(config, spec, prefix)
        for rows in slices:
            features[rows] = embed(inputs(rows))
        del embed
    for i in range(start, spec.frozen):
        block = loaded(Block(config, BlockKeep.full(config)), prefix.part(f"blocks.{i}."))
        for rows in slices:
            context = Context() if images else make_context(config, place(inputs(rows), prefix.device))
            features[rows] = x_BTD = block(features[rows], context)
            if watch is not None:
                watch(i + 1, rows, x_BTD, context)
        del block
        kept.passed(i + 1, features.values)
    return features


def _embedding(config: ModelConfig, spec: SubmodelSpec, prefix: PrefixFile) -> Callable[[Tensor], Tensor]:
    """For texts, only the rows they ask for are decoded: a table of tokens may be larger than all that trains."""
    if config.family == "vit":
        embedding = loaded(Embedding(config), prefix.part("embed."))
        return lambda images: embedding(place(images, prefix.device))
    encoded = dict(prefix.encoded("embed."))
    table = {name: encoded.pop(name) for name in ("embed.tokens", "embed.tokens" + SCALE) if name in encoded}
    rest = {name.removeprefix("embed."): tensor for name, tensor in decode(place_all(encoded, prefix.device)).items()}
    around = loaded(Embedding(config, ()), rest | {"tokens": torch.empty(0, config.dim, device=prefix.device)})
    held = None if spec.rows is None else torch.tensor(spec.rows, dtype=torch.int64)
    return lambda ids: around.placed(place(rows_of(table, places_of(ids, held)), prefix.device))


def rows_of(table: Mapping[str, Tensor], places: Tensor) -> Tensor:
    """These rows of an encoded table (and of its scales, if it has them), decoded; the table itself never is."""
    (rows,) = decode({name: tensor[places.flatten()] for name, tensor in table.items()}).values()
    return rows.view(*places.shape, -1)


def loaded(module: M, weights: Weights) -> M:
    """The module with these weights, frozen, by reference."""
    module.load_state_dict(weights, strict=True, assign=True)
    return module.eval().requires_grad_(False)


class StreamedSuffix:
    """From the window's top to the model's; to be set as `ElasticTransformer.above`."""

    def __init__(self, config: ModelConfig, spec: SubmodelSpec, file: PrefixFile) -> None:
        self.config, self.blocks, self.file = config, tuple(spec.above(config)), file

    def __call__(self, x_BTD: Tensor, context: Context) -> Tensor:
        passed: Tensor = _Through.apply(x_BTD, self, context)  # type: ignore[no-untyped-call]
        return passed

    def block(self, index: int) -> Block:
        return loaded(Block(self.config, BlockKeep.full(self.config)), self.file.part(f"blocks.{index}."))


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, suffix: StreamedSuffix, context: Context) -> Tensor:
        ctx.suffix, ctx.context = suffix, context
        went_in = []
        for index in suffix.blocks:
            went_in.append(x_BTD)
            x_BTD = suffix.block(index)(x_BTD, context)
        ctx.save_for_backward(*went_in)
        return x_BTD

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        for index, x_BTD in zip(reversed(ctx.suffix.blocks), reversed(ctx.saved_tensors), strict=True):
            entry = x_BTD.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(ctx.suffix.block(index)(entry, ctx.context), entry, gradient)
        return gradient, None, None

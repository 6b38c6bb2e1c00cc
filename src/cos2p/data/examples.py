"""Samples. Images stay as bytes (a quarter of the memory of floats) and are normalised batch by batch.

Shapes: N samples, C channels, H height, W width, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from cos2p.data.augment import Augmenter
from cos2p.data.ragged import IGNORE as IGNORE
from cos2p.data.ragged import Ragged
from cos2p.data.select import Groups, stratified
from cos2p.errors import DataError

if TYPE_CHECKING:
    from cos2p.data.lazy import LazyImages


@dataclass(frozen=True)
class Normalize:
    """Per-channel (x - mean) / std, for x in 0..1. One number serves all channels."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __call__(self, images_NCHW: torch.Tensor) -> torch.Tensor:
        """Float32 images; bytes are first divided by 255."""
        channels = images_NCHW.shape[1]
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise DataError(
                    f"data.{name} has {len(values)} numbers, the images {channels} channels; "
                    f"give one number, or one per channel"
                )
        images = images_NCHW.float()
        if images_NCHW.dtype == torch.uint8:
            images = images / 255
        return (images - _by_channel(self.mean)) / _by_channel(self.std)


@lru_cache(maxsize=64)
def _by_channel(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1)


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and labels of one split. A value: nothing in the package writes into its tensors."""

    inputs: torch.Tensor | LazyImages | Ragged
    """Images (N, C, H, W), uint8 or float32 in 0..1, in memory or decoded when they are asked for; or token ids
    (N, T), int64, padded on the right, or at their real lengths."""
    labels: torch.Tensor
    """Classes (N,), int64. For language modelling (N, T): the token *after* each input token, -100 where there
    is none, so that a loss compares `logits[:, t]` with `labels[:, t]` without shifting anything. For token ids at
    their real lengths (N, 0): a batch's labels are made from its ids. Of texts that end in an answer the labels may be
    the answers' classes (N,), to keep them in proportion; a batch's labels are its next tokens all the same."""
    class_names: tuple[str, ...]
    """Name of class i at place i; empty for language modelling."""
    groups: Groups | None = None
    """Natural owner of each sample (a writer, a speaker), for the natural partition."""
    pad_id: int | None = None
    """Text: the id that fills up short sequences."""
    vocabulary: int = 0
    """Text: number of token ids there are."""
    choices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Texts that end in the name of a class: the names, label i's at place i, with their tokens behind a prompt."""
    augmenter: Augmenter | None = None
    """Changes the images of every batch, and counts the batches; for the training part of one task."""

    def __post_init__(self) -> None:
        counts = {"inputs": len(self.inputs), "labels": len(self.labels)}
        if self.groups is not None:
            if not isinstance(self.groups, Groups):
                raise DataError(f"groups are {type(self.groups).__name__}; write Groups.of(names), a name a sample")
            counts["groups"] = len(self.groups)
        if len(set(counts.values())) > 1:
            raise DataError(f"inputs, labels and groups must be equally many, not {counts}")
        if self.labels.dtype != torch.int64:
            raise DataError(f"labels must be int64, not {self.labels.dtype}")

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def is_text(self) -> bool:
        return self.inputs.ndim == 2

    @property
    def widths(self) -> torch.Tensor | None:
        """Texts at their real lengths: tokens that a batch needs at least to hold each one (N,). Else None: every
        sample is as wide as all others."""
        return self.inputs.widths if isinstance(self.inputs, Ragged) else None

    @property
    def answers(self) -> bool:
        """Whether texts end in an answer, which alone is to be predicted: a batch's labels are next tokens then."""
        return isinstance(self.inputs, Ragged) and self.inputs.answers is not None

    def dense(self) -> Examples:
        """The same samples, all of one width."""
        if not isinstance(self.inputs, Ragged):
            return self
        labels = self.labels
        if labels.ndim == 2 or self.answers:
            labels = torch.full(self.inputs.shape, IGNORE)
            some = self.inputs.next_tokens(slice(None))
            labels[:, : some.shape[1]] = some
        return replace(self, inputs=self.inputs.dense(), labels=labels)

    def batches(self, size: int) -> Iterator[torch.Tensor]:
        """Rows of one pass whose order does not matter: texts of like width together."""
        order = torch.arange(len(self)) if self.widths is None else self.widths.argsort(stable=True)
        return iter(order.split(size))

    @property
    def augments(self) -> bool:
        """Whether two batches of the same samples differ, so that nothing computed from them can be kept."""
        return self.augmenter is not None

    @property
    def nbytes(self) -> int:
        """Memory the samples take."""
        return self.inputs.nbytes + self.labels.nbytes

    def strata(self) -> np.ndarray:
        """One integer per sample: what a split or a subset should keep in proportion (classes, else groups)."""
        if self.labels.ndim == 1:
            return self.labels.numpy()
        if self.groups is not None:
            return np.unique(self.groups.codes, return_inverse=True)[1].astype(np.int64)
        return np.zeros(len(self), dtype=np.int64)

    def subset(self, indices: torch.Tensor | np.ndarray) -> Examples:
        """The samples at `indices`, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        groups = None if self.groups is None else self.groups.subset(chosen.numpy())
        inputs = self.inputs[chosen] if isinstance(self.inputs, torch.Tensor) else self.inputs.subset(chosen)
        return replace(self, inputs=inputs, labels=self.labels[chosen], groups=groups)

    def sample(self, count: int, rng: np.random.Generator) -> Examples:
        """`count` of the samples, classes (else groups) in proportion; all of them if there are no more."""
        return self if count >= len(self) else self.subset(stratified(self.strata(), count, rng))

    def batch(
        self, indices: torch.Tensor | np.ndarray, normalize: Normalize | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs ready for the model and their labels.

        Images come as float32, normalised (without `normalize`: only scaled to 0..1); token ids as they are, padded to
        the longest of the batch, rounded up to a multiple of 8. With an `augmenter` the images are changed.
        """
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        inputs, labels = self.inputs[chosen], self.labels[chosen]
        if not self.is_text:
            normalize = normalize or Normalize(mean=(0.0,), std=(1.0,))
            if self.augmenter is not None:
                inputs = self.augmenter.images(inputs, self.augmenter.draw())
            return normalize(inputs), labels
        if isinstance(self.inputs, Ragged) and (self.labels.ndim == 2 or self.answers):
            return inputs, self.inputs.next_tokens(chosen)
        return inputs, labels


@dataclass(frozen=True, eq=False)
class Bundle:
    """A data set: training samples, and the two sets that are never trained on."""

    train: Examples
    validation: Examples
    """For choosing (learning rate, early stop); empty if none was asked for."""
    test: Examples
    """For the final figures only."""
    notes: tuple[str, ...] = ()
    """Notes for the user, such as samples that were left out."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names

    @property
    def classes(self) -> int:
        """Number of classes; 0 for language modelling."""
        return len(self.train.class_names)

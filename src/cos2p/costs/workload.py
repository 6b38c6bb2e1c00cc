"""`Workload`: what a device does with a submodel, as far as bytes and FLOPs depend on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from cos2p.errors import ConfigError
from cos2p.models.config import ModelConfig
from cos2p.numerics.optimizers import STATE_BYTES

Prefix = Literal["streamed", "held"]
Store = Literal["memory", "disk", "none"]


@dataclass(frozen=True)
class Workload:
    """One task on one device. Zero in a derived field means "work it out".

    >>> Workload(batch=8, samples=20).steps
    3
    """

    batch: int = 8
    """Samples of one optimiser step."""
    samples: int = 0
    """Samples of the shard: the length of the feature cache and of an epoch; 0 means one batch."""
    epochs: int = 1
    """Passes over the shard in the weight phase (E)."""
    mask_epochs: int = 0
    """Passes over the shard in the mask phase (Ê); 0 is no mask phase."""
    optimizer: str = "adan"
    """A key of `numerics.optimizers.STATE_BYTES`."""
    micro_batch: int = 0
    """Samples of one forward and backward; 0 means the whole batch. Smaller saves activations, not weights."""
    prefix_batch: int = 0
    """Samples of one forward through a streamed prefix; 0 means as many as stay below the weight phase's memory."""
    prefix: Prefix = "streamed"
    """`streamed`: one frozen block in memory at a time; `held`: all of them, run again at every step."""
    features: Store = "memory"
    """Where the features behind a streamed prefix wait; `none` streams the prefix again at every step."""
    feature_bytes: int = 4
    """Bytes of a cached scalar: 4 or 2."""
    payload_bytes: int = 0
    """Bytes that a frozen scalar takes while it waits for its turn; 0 when it is read from disk."""
    shard_bytes: int = 0
    """Bytes of a scalar of the shard's raw inputs in memory (images 1, token ids 8); 0 when they stay on disk."""
    keep_start: bool = False
    """Whether the weights as they came stay in memory, to be compared with the trained ones."""
    tokens: int = 0
    """Length of a sequence of text; 0 means the model's longest. An image's length is fixed."""
    distill: bool = False
    """Whether shallow exits learn from the deepest one: their logits are held several times."""
    rescale: bool = False
    """Training-time 1/(kept share), which keeps one more tensor a block."""
    step_in_backward: bool = False
    """Whether each gradient is stepped with and dropped as soon as it is there (`numerics.backward_step`)."""
    recompute: bool = False
    """Whether a block keeps its input alone and runs again in the backward (`numerics.activations`)."""
    activation_bytes: int = 4
    """Bytes of a scalar of the features in the weight phase: 4, or 2 for bf16 (`numerics.activations`)."""
    threads: int = 2
    """Threads of the device's kernels; some need scratch memory for each."""

    def __post_init__(self) -> None:
        for name in ("batch", "epochs", "threads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"workload {name} is {getattr(self, name)}; it must be at least 1")
        counts = ("samples", "mask_epochs", "micro_batch", "prefix_batch", "payload_bytes", "shard_bytes", "tokens")
        for name in counts:
            if getattr(self, name) < 0:
                raise ConfigError(f"workload {name} is {getattr(self, name)}; it cannot be negative")
        if self.micro_batch > self.batch:
            raise ConfigError(f"micro_batch {self.micro_batch} is larger than the batch {self.batch}")
        if self.step_in_backward and self.micro < self.batch:
            raise ConfigError(
                f"micro_batch {self.micro_batch} is smaller than the batch {self.batch}, whose gradients then add up; "
                "step_in_backward uses each at once: set one of the two"
            )
        for name, value, known in (
            ("optimizer", self.optimizer, tuple(STATE_BYTES)),
            ("prefix", self.prefix, get_args(Prefix)),
            ("features", self.features, get_args(Store)),
            ("feature_bytes", self.feature_bytes, (2, 4)),
            ("activation_bytes", self.activation_bytes, (2, 4)),
        ):
            if value not in known:
                raise ConfigError(f"workload {name} is {value!r}; known: {', '.join(map(str, known))}")

    @property
    def shard(self) -> int:
        return self.samples or self.batch

    @property
    def micro(self) -> int:
        """Samples that pass the model at once."""
        return self.micro_batch or self.batch

    @property
    def steps(self) -> int:
        """Optimiser steps of one epoch."""
        return -(-self.shard // self.batch)

    def caches(self, has_prefix: bool) -> bool:
        """Whether the features behind a frozen part are computed once and kept."""
        return has_prefix and self.prefix == "streamed" and self.features != "none"

    def length(self, config: ModelConfig) -> int:
        """Tokens of one sample."""
        if config.family == "vit" or self.tokens == 0:
            return config.tokens
        if self.tokens > config.max_tokens:
            raise ConfigError(f"workload tokens is {self.tokens}, but the model takes at most {config.max_tokens}")
        return self.tokens

    def with_(self, **changes: Any) -> Workload:
        return replace(self, **changes)

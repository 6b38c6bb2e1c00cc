"""The shape of a model: one frozen, hashable value for all three families."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from math import isqrt
from typing import Any, Literal, TypeVar, get_args

from cos2p.errors import ConfigError

T = TypeVar("T")

_KEPT = "_hash"


def hash_once(cls: type[T]) -> type[T]:
    """For a frozen dataclass. A model's description has dozens of fields, a submodel's thousands of numbers, and every
    look at a table that is kept by them would hash all again.

    The hash of a text differs between processes, so it does not travel with a pickled value.
    """
    plain = cls.__hash__

    def hashed(self: T) -> int:
        known: int | None = self.__dict__.get(_KEPT)
        if known is None:
            known = self.__dict__[_KEPT] = plain(self)
        return known

    def state(self: T) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != _KEPT}

    cls.__hash__ = hashed  # type: ignore[method-assign, assignment]
    cls.__getstate__ = state  # type: ignore[method-assign, assignment]
    return cls


Family = Literal["vit", "bert", "llama"]
TaskKind = Literal["classification", "language-modeling"]
ExitKind = Literal["bank", "shared"]
Pooling = Literal["cls", "mean", "last"]
Pooler = Literal["none", "tanh", "relu"]
Activation = Literal["gelu", "gelu_tanh", "silu"]
AttentionBias = Literal["all", "qkv", "none"]
RopeScaling = Literal["none", "linear", "llama3"]

# Zero in kv_heads and head_dim means "work it out"; only text models need a vocabulary.
_LEAST = dict.fromkeys(
    ("dim", "depth", "heads", "mlp", "classes", "image", "patch", "channels", "max_tokens", "rope_original"), 1
) | {"token_types": 0, "kv_heads": 0, "head_dim": 0, "vocab": 0}
MOST_BLOCKS = 1000
"""A checkpoint's own word is not believed beyond this: every block is a dozen tensors to list."""
POOLINGS: dict[str, tuple[Pooling, ...]] = {"vit": ("cls", "mean"), "bert": ("cls", "mean"), "llama": ("last", "mean")}
"""The poolings of each family's classification exits; the family's habit first."""
_EPS: dict[str, float] = {"vit": 1e-12, "bert": 1e-12, "llama": 1e-5}
_CHOICES: dict[str, tuple[str, ...]] = {
    "task": get_args(TaskKind),
    "exits": get_args(ExitKind),
    "pooling": ("", *get_args(Pooling)),
    "pooler": ("", *get_args(Pooler)),
    "activation": ("", *get_args(Activation)),
    "attention_bias": ("", *get_args(AttentionBias)),
    "rope_scaling": get_args(RopeScaling),
}


@hash_once
@dataclass(frozen=True)
class ModelConfig:
    """The shape of a transformer at full size. Zero in a derived field means "work it out".

    >>> ModelConfig("vit", dim=64, depth=8, heads=8, mlp=256, classes=10, image=8, patch=2, channels=1).tokens
    17
    """

    family: Family
    dim: int
    """Residual width. Never cut, so that every submodel's blocks fit together."""
    depth: int
    """Number of blocks L."""
    heads: int
    """Query heads per block."""
    mlp: int
    """Units of the MLP per block."""
    classes: int = 10
    """Outputs of a classification exit; ignored for language modelling."""
    kv_heads: int = 0
    """Key/value heads (grouped queries); 0 means as many as `heads`. A segment is one KV head with its queries."""
    head_dim: int = 0
    """Size of a head; 0 means dim / heads."""
    norm_eps: float = 0.0
    """Epsilon of the norms; 0 means the family's habit (1e-12, LLaMA 1e-5)."""
    task: TaskKind = "classification"
    exits: ExitKind = "bank"
    """`bank`: an exit of its own at every depth; `shared`: one exit for all depths."""
    pooling: Pooling | Literal[""] = ""
    """The input of a classification exit: the `cls` token, the `last` real one (LLaMA), or the `mean` of all real
    tokens (of an image's patches). Empty means the family's habit."""
    pooler: Pooler | Literal[""] = ""
    """A layer of dim² between the `cls` token and the classifier: BERT's own (`tanh`) or DistilBERT's (`relu`), unless
    said here. A mean has none."""
    activation: Activation | Literal[""] = ""
    """Between the MLP's matrices; empty means `gelu`, LLaMA `silu`. `gelu_tanh` is its approximation by tanh."""
    attention_bias: AttentionBias | Literal[""] = ""
    """Which of a block's attention matrices have a bias; empty means `all`, LLaMA `none`. `qkv` is Qwen2's way."""
    qk_norm: bool = False
    """Queries and keys are normed head by head (Qwen3)."""
    # Images (vit)
    image: int = 224
    """Edge of the square image in pixels."""
    patch: int = 16
    channels: int = 3
    # Text (bert, llama)
    vocab: int = 0
    max_tokens: int = 512
    """Longest sequence. BERT learns a position for each; LLaMA rotates, so there it is only a promise."""
    token_types: int = 2
    """BERT's kinds of tokens, of which this model uses the first; DistilBERT has none."""
    pad_token: int = 0
    """Padding on the right; hidden from attention (BERT) and skipped by the last-token exit (LLaMA)."""
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling = "none"
    """`linear` divides all rotary frequencies by `rope_factor`; `llama3` the slow ones, in part those between."""
    rope_factor: float = 1.0
    rope_low: float = 1.0
    rope_high: float = 4.0
    rope_original: int = 8192
    """llama3: frequencies with fewer than `rope_low` turns in so many tokens are slow, with `rope_high` not."""
    tied: bool = True
    """Language modelling: the output table is the embedding table."""

    def __post_init__(self) -> None:
        if self.family not in get_args(Family):
            raise ConfigError(f"unknown model family {self.family!r}; known: {', '.join(get_args(Family))}")
        for name, kinds in _CHOICES.items():
            if getattr(self, name) not in kinds:
                raise ConfigError(
                    f"unknown model {name} {getattr(self, name)!r}; known: {', '.join(filter(None, kinds))}"
                )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"model {name} is {value!r}; it must be a whole number, at least {least}")
        if self.depth > MOST_BLOCKS:
            raise ConfigError(f"model depth is {self.depth}; at most {MOST_BLOCKS} blocks are read")
        for name, value in self._derived().items():
            object.__setattr__(self, name, value)
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.heads} heads are not divisible by {self.kv_heads} kv_heads; "
                f"choose kv_heads from {_divisors(self.heads)}"
            )
        self._check_family()

    def _derived(self) -> dict[str, Any]:
        """The values of the fields left at zero or empty."""
        derived: dict[str, Any] = {}
        if self.kv_heads == 0:
            derived["kv_heads"] = self.heads
        if self.head_dim == 0:
            if self.dim % self.heads:
                raise ConfigError(
                    f"dim {self.dim} is not divisible by {self.heads} heads; "
                    f"choose heads from {_divisors(self.dim)} or give head_dim"
                )
            derived["head_dim"] = self.dim // self.heads
        if self.norm_eps == 0.0:
            derived["norm_eps"] = _EPS[self.family]
        pooling = self.pooling or POOLINGS[self.family][0]
        derived["activation"] = self.activation or ("silu" if self.family == "llama" else "gelu")
        derived["attention_bias"] = self.attention_bias or ("none" if self.family == "llama" else "all")
        return derived | {
            "pooling": pooling,
            "pooler": self.pooler or _habitual_pooler(self.family, pooling, self.token_types),
        }

    def _check_family(self) -> None:
        if self.family == "vit":
            if self.image % self.patch:
                raise ConfigError(
                    f"image {self.image} is not divisible by patch {self.patch}; "
                    f"choose a patch from {_divisors(self.image)}"
                )
        elif self.vocab < 1:
            raise ConfigError(f"a {self.family} model needs vocab ≥ 1 (the tokenizer's size), got {self.vocab}")
        if self.family != "llama" and self.kv_heads != self.heads:
            raise ConfigError(f"grouped queries (kv_heads {self.kv_heads}) exist in llama only")
        if self.family == "llama" and self.head_dim % 2:
            raise ConfigError(f"rotary positions need an even head_dim, got {self.head_dim}")
        if self.task == "language-modeling" and self.family != "llama":
            raise ConfigError(f"language-modeling is for llama; {self.family} has task 'classification'")
        if self.pooling not in POOLINGS[self.family]:
            known = " or ".join(map(repr, POOLINGS[self.family]))
            raise ConfigError(f"pooling is {self.pooling!r}; a {self.family} model has {known}")
        if (self.activation == "silu") != self.gated:
            raise ConfigError(f"activation is {self.activation!r}; a llama model has 'silu', the others a gelu")
        if self.family != "llama" and (self.qk_norm or self.attention_bias != "all"):
            raise ConfigError("qk_norm and a choice of attention_bias exist in llama only")
        if self.pooler != "none" and self.family != "bert":
            raise ConfigError(f"pooler is {self.pooler!r}; a {self.family} model has a norm there and no pooler")
        if self.pooler != "none" and self.pooling == "mean":
            raise ConfigError(f"pooler is {self.pooler!r}; a mean is read without one, the cls token may have one")

    @property
    def tokens(self) -> int:
        """Sequence length of one sample: patches and cls token, or `max_tokens`."""
        return (self.image // self.patch) ** 2 + 1 if self.family == "vit" else self.max_tokens

    @property
    def groups(self) -> int:
        """Attention segments per block: one KV head with its query heads."""
        return self.kv_heads

    @property
    def queries_per_group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def gated(self) -> bool:
        """SwiGLU: a unit has a gate row next to its up row."""
        return self.family == "llama"

    @property
    def biased(self) -> bool:
        return self.family != "llama"

    @property
    def pre_norm(self) -> bool:
        return self.family != "bert"

    @property
    def outputs(self) -> int:
        return self.vocab if self.task == "language-modeling" else self.classes

    def with_(self, **changes: Any) -> ModelConfig:
        """A copy with other fields; a misspelt field is a ConfigError, not a TypeError."""
        known = {f.name for f in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ConfigError(f"unknown model field {unknown[0]!r}; known: {', '.join(sorted(known))}")
        # A value that follows from the old ones is worked out again; one that was chosen apart from them stays.
        if "heads" in changes and self.kv_heads == self.heads:
            changes = {"kv_heads": 0} | changes
        if changes.keys() & {"heads", "dim"} and self.head_dim * self.heads == self.dim:
            changes = {"head_dim": 0} | changes
        if "pooling" in changes and self.pooler == _habitual_pooler(self.family, self.pooling, self.token_types):
            changes = {"pooler": ""} | changes
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        unknown = sorted(set(values) - {f.name for f in fields(cls)})
        if unknown:
            raise ConfigError(f"unknown model field {unknown[0]!r}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"incomplete model description: {error}") from None


def _habitual_pooler(family: str, pooling: str, token_types: int) -> Pooler:
    if family != "bert" or pooling != "cls":
        return "none"
    return "tanh" if token_types else "relu"  # DistilBERT's way


def _divisors(n: int) -> str:
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return ", ".join(map(str, sorted({*small, *(n // d for d in small)})))

"""Whose data is whose: one index array per client, disjoint, the same for the same seed.

    dirichlet   a client draws its class mix from Dir(alpha) with `alpha` for each class on average, its size is given
    iid         a shuffled pack, cut to the given sizes
    natural     whole groups (writers, speakers) stay together, dealt so that the loads follow the sizes

A small alpha (0.1) gives each client few classes, a large one (100) nearly the prior. The paper uses 1.5 and cites
Hsu et al. 2019, where `alpha` is shared out over all classes. That would leave a device with two or three of
ImageNet's 200 classes, and its own test scores far above the server's; the paper's are slightly below. So its recipes
here take alpha for each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from cos2p.data.select import Groups, IntArray, largest_remainder, split_off
from cos2p.errors import ConfigError, DataError
from cos2p.seeding import numpy_rng
from cos2p.settings import Settings

PartitionKind = Literal["dirichlet", "iid", "natural"]
Labels = torch.Tensor | NDArray[np.int64] | Sequence[int]


def partition(
    labels: Labels,
    sizes: Sequence[int],
    kind: PartitionKind = "dirichlet",
    alpha: float = 1.5,
    seed: int = 0,
    groups: Groups | Sequence[str] | None = None,
    minimum: int = 2,
) -> list[IntArray]:
    """Indices of each client's samples, ascending; client i of `sizes` is item i of the result.

    `sizes` are exact for `dirichlet` and `iid` (what is left over stays unused), targets for `natural`. No client gets
    fewer than `minimum` samples: an impossible wish is a `DataError` with the numbers in it. `groups`
    are needed by `natural`.
    """
    classes = _as_array(labels)
    if classes.ndim != 1 and kind == "dirichlet":
        raise DataError(f"a {kind} partition needs one class per sample; texts without classes: iid or natural")
    total = len(classes)
    _check_enough(total, sizes, kind, minimum)
    if kind == "natural":
        return _natural(groups, total, sizes, seed, minimum)
    rng = numpy_rng(seed, "partition", kind)
    if kind == "iid":
        ends = np.cumsum(sizes)
        return [np.sort(part).astype(np.int64) for part in np.split(rng.permutation(total), ends)[:-1]]
    return _dirichlet(classes, sizes, alpha * len(np.unique(classes)), rng)


def sizes_by_weight(total: int, weights: Sequence[float]) -> list[int]:
    """`total` samples shared out in proportion to `weights`: whole numbers, all of them used.

    >>> sizes_by_weight(100, [1, 1, 2])
    [25, 25, 50]
    """
    if not weights or any(not 0 < w < np.inf for w in weights):
        raise ConfigError(f"weights are {list(weights)}; each client needs a finite weight above 0")
    return [int(size) for size in largest_remainder(total, np.asarray(weights, dtype=np.float64))]


def local_split(
    indices: IntArray, labels: Labels, *, seed: int, client: str | int, fraction: float = 0.8
) -> tuple[IntArray, IntArray]:
    """(training, test) indices of one client: `fraction` for training, each class in proportion.

    1 keeps nothing for testing. Below that, with two samples or more neither part is empty; a single sample is for
    training.
    """
    count = len(indices)
    if count < 2 or fraction == 1:
        return np.asarray(indices, dtype=np.int64), np.empty(0, dtype=np.int64)
    tests = min(max(1, round(count * (1 - fraction))), count - 1)
    own = _as_array(labels)[indices]
    strata = own if own.ndim == 1 else np.zeros(count, dtype=np.int64)
    train, test = split_off(strata, tests, numpy_rng(seed, "local split", client))
    return np.asarray(indices, dtype=np.int64)[train], np.asarray(indices, dtype=np.int64)[test]


def _as_array(labels: Labels) -> IntArray:
    array = labels.numpy() if isinstance(labels, torch.Tensor) else labels
    return np.asarray(array, dtype=np.int64)


def _check_enough(total: int, sizes: Sequence[int], kind: PartitionKind, minimum: int) -> None:
    if not sizes:
        raise ConfigError("a partition needs at least one client")
    clients = len(sizes)
    if clients * minimum > total:
        raise DataError(
            f"{clients} clients with at least {minimum} samples each need {clients * minimum}, but there are "
            f"{total}; use more samples or fewer devices"
        )
    if kind != "natural":
        if sum(sizes) > total:
            raise DataError(
                f"the clients' sizes sum to {sum(sizes)}, but there are {total} samples; "
                f"make the clients smaller, have fewer of them, or use more samples"
            )
        if min(sizes) < minimum:
            raise DataError(
                f"client {int(np.argmin(sizes))} would get {min(sizes)} samples, fewer than the minimum of "
                f"{minimum}; use more samples, fewer devices or more even weights"
            )


def _dirichlet(classes: IntArray, sizes: Sequence[int], alpha: float, rng: np.random.Generator) -> list[IntArray]:
    names, codes, counts = np.unique(classes, return_inverse=True, return_counts=True)
    prior = counts / counts.sum()
    # One shuffled pack per class; a client takes its cards from the top.
    packs = [rng.permutation(np.flatnonzero(codes == k)) for k in range(len(names))]
    left = counts.copy()
    parts: list[IntArray] = [np.empty(0, dtype=np.int64) for _ in sizes]
    # In random order, because whoever comes last gets what the others left, and that should be no fixed tier.
    for client in rng.permutation(len(sizes)):
        taken = _draw_counts(int(sizes[client]), left, alpha * prior, rng)
        tops = [pack[n - t : n] for pack, n, t in zip(packs, left, taken, strict=True)]
        parts[client] = np.sort(np.concatenate(tops)).astype(np.int64)
        left -= taken
    return parts


def _draw_counts(size: int, left: IntArray, concentration: NDArray[np.float64], rng: np.random.Generator) -> IntArray:
    """How many of each class: `size` draws by one mix; a class that runs out is removed, the mix renormalised.

    Drawing all at once and redrawing what a class cannot give is, in distribution, the same as one by one.
    """
    taken = np.zeros_like(left)
    mix = _dirichlet_mix(concentration, left > 0, rng)
    while (missing := size - int(taken.sum())) > 0:
        open_classes = taken < left
        weights = np.where(open_classes, mix, 0.0)
        if weights.sum() <= 0:
            # The open classes' shares were too small for a float. Given the others, a Dirichlet's remaining
            # shares are again Dirichlet distributed, so a fresh draw among them is exact.
            mix = weights = _dirichlet_mix(concentration, open_classes, rng)
        drawn = rng.multinomial(missing, weights / weights.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def _dirichlet_mix(
    concentration: NDArray[np.float64], among: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.float64]:
    mix = np.zeros(len(concentration))
    if not among.any():  # nothing is left; a client that asked for nothing still comes by
        return mix
    mix[among] = rng.dirichlet(concentration[among])
    if not np.isfinite(mix).all() or mix.sum() <= 0:
        # Underflow at a tiny alpha: the limit of the distribution is a single class, chosen by the prior.
        shares = np.where(among, concentration, 0.0)
        mix = np.zeros(len(concentration))
        mix[rng.choice(len(mix), p=shares / shares.sum())] = 1.0
    return mix


def _natural(
    groups: Groups | Sequence[str] | None, total: int, sizes: Sequence[int], seed: int, minimum: int
) -> list[IntArray]:
    if groups is None:
        raise DataError("a natural partition needs a group per sample; name its column in data.group_column")
    if len(groups) != total:
        raise DataError(f"there are {len(groups)} groups for {total} samples; each sample needs one")
    names, codes, counts = np.unique(Groups.of(groups).codes, return_inverse=True, return_counts=True)
    if len(names) < len(sizes):
        raise DataError(
            f"{len(names)} groups cannot be dealt to {len(sizes)} clients; have at most {len(names)} clients"
        )
    targets = np.maximum(np.asarray(sizes, dtype=np.float64), 1e-9)
    loads = np.zeros(len(sizes))
    owner = np.empty(len(names), dtype=np.int64)
    # Largest group first, to whoever would be least full with it; the shuffle decides between equals.
    shuffled = numpy_rng(seed, "partition", "natural").permutation(len(names))
    for group in shuffled[np.argsort(-counts[shuffled], kind="stable")]:
        client = int(np.argmin((loads + counts[group]) / targets))
        owner[group] = client
        loads[client] += counts[group]
    if loads.min() < minimum:
        raise DataError(
            f"dealing {len(names)} groups leaves client {int(loads.argmin())} with {int(loads.min())} samples, "
            f"fewer than the minimum of {minimum}; have fewer devices or more even sizes"
        )
    # One stable sort instead of a look at every sample for every client.
    by_client = np.argsort(owner[codes], kind="stable").astype(np.int64)
    return np.split(by_client, np.cumsum(loads.astype(np.int64))[:-1])


class PartitionSettings(Settings):
    """How the training samples are dealt to the devices."""

    kind: PartitionKind = Field(
        default="dirichlet",
        description="`dirichlet`: alpha for each class; `iid`; `natural`: by groups.",
    )
    alpha: float = Field(
        default=1.5,
        gt=0,
        allow_inf_nan=False,
        description="Dirichlet concentration: 0.1 very unequal, 100 nearly equal.",
    )
    local_test: float = Field(
        default=0.2,
        ge=0,
        lt=1,
        description="Share of a device's data kept to test its submodel. 0: none, and no scores of their own.",
    )

"""The data set that needs no file: scikit-learn's handwritten digits, 1,797 grey images of 8 by 8."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from cos2p.data.config import DataConfig
from cos2p.data.images import adapt_array
from cos2p.data.raw import Raw, RawSplits
from cos2p.data.select import IntArray

_INK_LEVELS = 16
"""Each pixel counts the inked ones among 4x4 of the original scan: 0 to 16."""


def read_digits(config: DataConfig) -> RawSplits:
    ink, labels = _scans()
    pixels = np.rint(ink * (255 / _INK_LEVELS)).astype(np.uint8)

    def images(indices: IntArray) -> torch.Tensor:
        return adapt_array(pixels[indices], "digits", config)

    return RawSplits(Raw(where="digits", count=len(pixels), labels=labels.tolist(), images=images))


def _scans() -> tuple[np.ndarray, IntArray]:
    """Ink levels (n, 8, 8) and labels, as `sklearn.datasets.load_digits` has them. Straight from its file where that is
    found: importing scikit-learn takes longer than all else that a run does before it trains."""
    package = find_spec("sklearn")
    file = Path(package.origin or "").parent / "datasets/data/digits.csv.gz" if package is not None else None
    if file is None or not file.is_file():
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target
    with gzip.open(file, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)

"""The data set that needs no file: scikit-learn's handwritten digits, 1,797 grey images of 8 by 8."""

from __future__ import annotations

import numpy as np
import torch

from cos2p.data.config import DataConfig
from cos2p.data.images import adapt_array
from cos2p.data.raw import Raw, RawSplits
from cos2p.data.select import IntArray

_INK_LEVELS = 16
"""Each pixel counts the inked ones among 4x4 of the original scan: 0 to 16."""


def read_digits(config: DataConfig) -> RawSplits:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / _INK_LEVELS)).astype(np.uint8)

    def images(indices: IntArray) -> torch.Tensor:
        return adapt_array(pixels[indices], "digits", config)

    return RawSplits(Raw(where="digits", count=len(pixels), labels=digits.target.tolist(), images=images))

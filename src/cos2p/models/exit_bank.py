"""From the one head of a checkpoint to an exit at every depth.

Everything the head has is copied to every depth, because the blocks of a trained transformer write into one residual
stream: the head reads shallow features too, only worse. Measured on a ViT of 8 blocks trained on digits, a copied
head was right on 44, 81, 89 and 91 % of the test set behind blocks 1 to 4 before any training (a fresh linear layer:
chance, and still behind after 80 steps).

A language model's norm is copied times depth/L. Shallow features predict less, so the logits have to be less sure of
themselves: on stories260K (L = 5) the loss at depths 1 to 4 starts at 4.9, 4.1, 3.2, 2.1, with a plain copy at
13.3, 6.6, 3.7, 2.2, with fresh norms at 8.3, 5.0, 3.5, 2.5.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, exit_key, exit_parameters, init_tensor


def fill_exits(config: ModelConfig, last: Mapping[str, Tensor], seed: int, trained_depth: int = 0) -> Weights:
    """All exits of a model by their full names. `last` holds what is known of the one behind `trained_depth` blocks
    (`norm.weight`, ...), of which the model may have kept the lower ones only; 0 means that it has them all.

    What it lacks, a classifier's linear layer mostly, is fresh at every depth: `init_tensor` with `seed`.
    """
    bank: Weights = {}
    for depth in range(1, config.depth + 1):
        shallow = config.task == "language-modeling" and config.exits == "bank"
        scale = depth / (trained_depth or config.depth) if shallow else 1.0
        for name in exit_parameters(config):
            full = f"{exit_key(config, depth)}.{name}"  # a shared exit is written again, with the same values
            bank[full] = last[name] * scale if name in last else init_tensor(config, full, seed)
    return bank

"""How well a language model foretells a text: its loss and perplexity, and whether its whole answers are right."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from cos2p.errors import DataError, TrainingError

WORST = 1e12
"""Perplexities are counted up to here: a model that has diverged has one that no number holds."""


def perplexity(loss: float) -> float:
    """e to the mean loss per token: among how many equally likely tokens the model hesitates.

    >>> round(perplexity(math.log(8)), 6), perplexity(1e6)
    (8.0, 1000000000000.0)
    """
    return math.exp(loss) if loss < math.log(WORST) else WORST


class LikelihoodCounter:
    """Adds up the loss of every token that counts, batch by batch."""

    def __init__(self) -> None:
        self.tokens = 0
        self.loss = 0.0

    def add(self, scores_NC: Tensor, labels_N: Tensor) -> None:
        loss = float(F.cross_entropy(scores_NC.detach().float(), labels_N, reduction="sum").item())
        if math.isnan(loss):
            raise TrainingError("the model's scores are not a number; its weights have diverged, lower training.lr")
        self.loss += loss
        self.tokens += len(labels_N)

    def result(self) -> dict[str, float]:
        """`loss` in nats, the mean over tokens, and `perplexity`."""
        if not self.tokens:
            raise DataError("no token was counted; a language model is judged by at least one")
        mean = self.loss / self.tokens
        return {"loss": mean, "perplexity": perplexity(mean)}


def right_answers(scores_BTV: Tensor, labels_BT: Tensor, ignore: int) -> Tensor:
    """(B,): whether every token that counts is the likeliest one. With the right tokens before it each is what greedy
    decoding gives, so a text is right exactly if decoding would have answered it so."""
    return ((scores_BTV.argmax(-1) == labels_BT) | (labels_BT == ignore)).all(1)

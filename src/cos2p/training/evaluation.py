"""Scores of a model on samples: for the server's model at each exit, for a device's own submodel at its deepest."""

from __future__ import annotations

import torch
from torch import Tensor

from cos2p.accelerator import place
from cos2p.data.examples import IGNORE, Examples, Normalize
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.metrics import ConfusionCounter, LikelihoodCounter, right_answers
from cos2p.training.distillation import flatten
from cos2p.training.prefix import Features

_LOGITS = 1 << 24
"""Logits of a language model that are in memory at once: 64 MiB an exit."""


class _Scores:
    """What one exit has answered so far. A language model also has a loss; F1 over its vocabulary would say nothing."""

    def __init__(self, outputs: int, language: bool, answers: bool) -> None:
        self._counter = ConfusionCounter(outputs)
        self._likelihood = LikelihoodCounter() if language else None
        self._answers = answers
        self._right = self._texts = 0

    def add(self, output: Tensor, labels: Tensor) -> None:
        scores, targets = flatten(output, labels)
        self._counter.add(scores, targets)
        if self._likelihood is not None and len(targets):
            self._likelihood.add(scores, targets)
        if self._answers:
            right = right_answers(output, labels, IGNORE)
            self._right += int(right.sum())
            self._texts += len(right)

    def result(self) -> dict[str, float]:
        found = self._counter.result()
        if self._likelihood is None:
            return found
        del found["f1"]
        answers = {"answers": self._right / self._texts} if self._answers else {}
        return self._likelihood.result() | answers | found


@torch.no_grad()
def evaluate(
    model: ElasticTransformer,
    examples: Examples,
    normalize: Normalize,
    features: Features | None = None,
    batch: int = 256,
) -> list[dict[str, float]]:
    """Scores at each of the model's exits, shallowest first: top1, top5, f1; of a language model loss, perplexity,
    top1 and top5 of the next token, and `answers`, the share of right ones, where texts have answers."""
    model.eval()
    language = model.config.task == "language-modeling"
    if language:
        batch = max(1, min(batch, _LOGITS // (model.config.max_tokens * model.outputs)))
    counters = [_Scores(model.outputs, language, examples.answers) for _ in model.spec.exits]
    for rows in examples.batches(batch):
        inputs, labels = (place(tensor, model.device) for tensor in examples.batch(rows, normalize))
        outputs = model(inputs, None if features is None else features[rows])
        for counter, output in zip(counters, outputs, strict=True):
            counter.add(output, model.targets(labels))
    return [counter.result() for counter in counters]


def evaluate_exits(model: ElasticTransformer, examples: Examples, normalize: Normalize) -> dict[int, dict[str, float]]:
    """Scores at each of the model's exits, by their depth."""
    return dict(zip(model.spec.exits, evaluate(model, examples, normalize), strict=True))

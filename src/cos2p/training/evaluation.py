"""Scores of a model on samples: for the server's model at each exit, for a device's own submodel at its deepest."""

from __future__ import annotations

import torch
from torch import Tensor

from cos2p.accelerator import place
from cos2p.data.examples import IGNORE, Examples, Normalize
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.metrics import ConfusionCounter, LikelihoodCounter
from cos2p.training.prefix import Features

_LOGITS = 1 << 22
"""Logits of a language model that are in memory at once: 16 MiB."""


class _Scores:
    """The answers of one exit so far. A language model also has a loss; F1 over its vocabulary would say nothing."""

    def __init__(self, outputs: int, language: bool, answers: bool) -> None:
        self._counter = ConfusionCounter(outputs)
        self._likelihood = LikelihoodCounter() if language else None
        self._answers = answers
        self._right = self._texts = 0

    def add(self, scores: Tensor, targets: Tensor) -> None:
        self._counter.add(scores, targets)
        if self._likelihood is not None and len(targets):
            self._likelihood.add(scores, targets)

    def add_answers(self, right: int, texts: int) -> None:
        self._right += right
        self._texts += texts

    def by_class(self) -> dict[str, list[int]]:
        return self._counter.by_class()

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
    by_class: dict[str, list[int]] | None = None,
) -> list[dict[str, float]]:
    """Scores at each of the model's exits, shallowest first: top1, top5, f1; of a language model loss, perplexity,
    top1 and top5 of the next token, and `answers`, the share of right ones, where texts have answers.

    `by_class` gets the counts of every class at the deepest exit; of a language model none."""
    model.eval()
    language = model.config.task == "language-modeling"
    if language:  # of a wide one no more features than logits
        batch = max(1, min(batch, _LOGITS // (model.config.max_tokens * model.config.dim)))
    counters = [_Scores(model.outputs, language, examples.answers) for _ in model.spec.exits]
    for rows in examples.batches(batch):
        inputs, labels = (place(tensor, model.device) for tensor in examples.batch(rows, normalize))
        known, targets = None if features is None else features[rows], model.targets(labels)
        if language:
            _add_tokens(model, counters, inputs, targets, known)
            continue
        for counter, output in zip(counters, model(inputs, known), strict=True):
            counter.add(output, targets)
    if by_class is not None and not language:
        by_class |= counters[-1].by_class()
    return [counter.result() for counter in counters]


def _add_tokens(
    model: ElasticTransformer, counters: list[_Scores], inputs: Tensor, targets: Tensor, features: Tensor | None
) -> None:
    """The tokens that count, some logits at a time. An answer is right if each of its tokens is the likeliest: with the
    right ones before it each is what greedy decoding gives."""
    places = (targets.flatten() != IGNORE).nonzero().squeeze(1)
    wanted = targets.flatten()[places]
    step = max(1, _LOGITS // model.outputs)
    for counter, rows_nD in zip(counters, model.rows_at(places, inputs, features), strict=True):
        wrong = torch.zeros(len(targets), dtype=torch.bool, device=targets.device)
        for own, labels, at in zip(rows_nD.split(step), wanted.split(step), places.split(step), strict=True):
            logits = model.logits(own)
            counter.add(logits, labels)
            wrong[at[logits.argmax(-1) != labels] // targets.shape[1]] = True
        counter.add_answers(int((~wrong).sum()), len(wrong))


def evaluate_exits(
    model: ElasticTransformer, examples: Examples, normalize: Normalize, by_class: dict[str, list[int]] | None = None
) -> dict[int, dict[str, float]]:
    """Scores at each of the model's exits, by their depth; `by_class` as above."""
    return dict(zip(model.spec.exits, evaluate(model, examples, normalize, by_class=by_class), strict=True))

"""How the server's model is scored, in a simulation and on a fleet alike: next to the training, one version at a time,
always the newest. And what a score is worth: chance, and always saying the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from cos2p.accelerator import resolve
from cos2p.data import Bundle, Examples
from cos2p.data.tokenizers import make_encoder, resolved
from cos2p.methods import method_class
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.numerics.output_table import SMALL
from cos2p.processes.pool import WorkerDied, wait
from cos2p.recipe import Recipe
from cos2p.seeding import numpy_rng
from cos2p.training.answers import answer_scores
from cos2p.training.evaluation import evaluate_exits

LAST_ATTEMPTS = 3
"""How often the last evaluation is begun, should its process be killed."""


class Evaluator(Protocol):
    def evaluate(self, weights: Weights, everything: bool = False) -> Future[dict[str, Any]]:
        """Scores on the validation and test samples; on a part of each, unless `everything`."""


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation; no scores if its process was killed."""

    version: int
    scores: dict[str, Any] | None


class BackgroundEvaluator:
    """A slow evaluation skips versions instead of falling behind, unless it is waited for."""

    def __init__(self, evaluator: Evaluator, newest: Callable[[], tuple[int, Weights]]) -> None:
        self._evaluator, self._newest = evaluator, newest
        self._running: tuple[int, Future[dict[str, Any]]] | None = None
        self._wanted: Literal["", "part", "everything"] = ""
        self.at_work: Literal["", "part", "everything"] = ""
        """The samples of the evaluation under way; empty if there is none."""

    def ask(self, everything: bool = False) -> None:
        """The newest version shall be scored, at once or when the evaluation under way is done; on all samples, or on
        those that a run looks at while it goes on."""
        self._wanted = "everything" if everything else self._wanted or "part"
        self._start()

    def evaluation(self) -> Evaluation | None:
        """An evaluation that is done; the next one, if it was asked for, begins."""
        if self._running is None or not self._running[1].done():
            return None
        version, future = self._running
        self._running, self.at_work = None, ""
        try:
            scores: dict[str, Any] | None = future.result()
        except WorkerDied:
            scores = None
        self._start()
        return Evaluation(version, scores)

    def awaited_evaluation(self) -> Evaluation | None:
        """The evaluation under way, when it is done; RunError if its process was killed."""
        if self._running is None:
            return None
        version, future = self._running
        scores = wait(future)
        self._running, self.at_work = None, ""
        return Evaluation(version, scores)

    def last(self) -> tuple[int, dict[str, Any]]:
        """The newest version and its scores on all samples; waits for them. RunError if that fails again and again."""
        if self._running is not None:
            self._running[1].cancel()
        version, weights = self._newest()
        for _ in range(LAST_ATTEMPTS - 1):
            try:
                return version, self._evaluator.evaluate(weights, everything=True).result()
            except WorkerDied:
                continue
        return version, wait(self._evaluator.evaluate(weights, everything=True))

    def _start(self) -> None:
        if self._running is None and self._wanted:
            self.at_work, self._wanted = self._wanted, ""
            version, weights = self._newest()
            self._running = (version, self._evaluator.evaluate(weights, self.at_work == "everything"))


# ---------------------------------------------------------------- scores


def score_model(
    recipe: Recipe, config: ModelConfig, bundle: Bundle, weights: Weights, everything: bool
) -> dict[str, Any]:
    """Scores on the validation and the test samples, at each exit; on a part of each, unless `everything`. Then also
    `classes`, the counts of every class of the test samples."""
    # A large language model has one exit that was ever trained, and its table costs as much as a block.
    top_only = config.task == "language-modeling" and config.vocab > SMALL
    exits = (config.depth,) if top_only else tuple(range(1, config.depth + 1))
    model = method_class(recipe.method["name"]).evaluation_model(config, weights, exits)
    model.to(resolve(recipe.run.accelerator))
    scores: dict[str, Any] = {}
    for name, examples in (("validation", bundle.validation), ("test", bundle.test)):
        part = examples if everything else evaluated_part(recipe, name, examples)
        if len(part):
            by_class: dict[str, list[int]] = {}
            by_exit = evaluate_exits(model, part, recipe.data.normalize, by_class)
            if name == "test" and everything and by_class:
                scores["classes"] = by_class
            scores[name] = {str(depth): result for depth, result in by_exit.items()}
            if part.answers:
                encoder = make_encoder(resolved(recipe.data, recipe.model.pretrained))
                scores[name][str(config.depth)] |= answer_scores(model, part, encoder.decode, encoder.end)
    return scores


def evaluated_part(recipe: Recipe, name: str, examples: Examples) -> Examples:
    """The samples that are evaluated during a run: the same for every version, and for every method of a study."""
    count = recipe.schedule.evaluate_samples or len(examples)
    return examples.sample(count, numpy_rng(recipe.seed, "evaluation", name))


# ---------------------------------------------------------------- what they are worth


@dataclass(frozen=True)
class Classes:
    names: tuple[str, ...] = ()
    """Empty for language modelling."""
    majority: float | None = None
    """Share of the test samples that belong to its most frequent class."""
    client_majority: float | None = None
    """The same for the devices' own test samples, each device naming its own most frequent class; None where they
    are not known, as on a real fleet."""
    samples: dict[str, int] = field(default_factory=dict)
    """How many `train`, `validation` and `test` have."""

    @classmethod
    def of(cls, bundle: Bundle, own: Iterable[Examples] = ()) -> Classes:
        """`own`: the test samples of each device."""
        samples = {"train": len(bundle.train), "validation": len(bundle.validation), "test": len(bundle.test)}
        if not bundle.classes and not (bundle.test.answers and bundle.test.labels.ndim == 1):
            return cls(samples=samples)
        # Answers that are names of classes have no chance, a model may answer anything; but a most frequent one.
        return cls(bundle.class_names, _majority([bundle.test]), _majority(own), samples)

    @property
    def chance(self) -> float | None:
        return 1 / len(self.names) if self.names else None

    def figures(self) -> dict[str, Any]:
        return {
            "classes": list(self.names),
            "chance": self.chance,
            "majority": self.majority,
            "client_majority": self.client_majority,
        }

    def facts(self) -> dict[str, Any]:
        """For the log: what a reader needs to evaluate an accuracy before the run is over."""
        known = self.figures() | {"classes": len(self.names)}
        return {**self.samples, **{name: value for name, value in known.items() if value is not None}}


def _majority(sets: Iterable[Examples]) -> float | None:
    """Share of the samples that belong to the most frequent class of their set; None without samples."""
    counts = [torch.bincount(one.labels) for one in sets if len(one)]
    total = sum(int(count.sum()) for count in counts)
    return sum(int(count.max()) for count in counts) / total if total else None

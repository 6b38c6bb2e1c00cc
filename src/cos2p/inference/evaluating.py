"""Scores of a trained model on labelled data: accuracy, F1, each class, the confusion matrix; perplexity."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.data import Bundle, load
from cos2p.data.examples import Examples
from cos2p.data.load import load_whole, source_of
from cos2p.errors import DataError
from cos2p.inference.sources import Trained
from cos2p.training.answers import answer_scores
from cos2p.training.evaluation import evaluate as token_scores

Split = Literal["train", "validation", "test"]
OnProgress = Callable[[int, int], None]
"""Called with the number of samples that are done, and of all."""


@dataclass(frozen=True)
class ClassScore:
    """One class; shares in [0, 1]."""

    name: str
    samples: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Evaluation:
    samples: int
    accuracy: float
    """For a language model: of next tokens."""
    loss: float
    """Mean cross entropy in nats, of a language model for each token."""
    f1: float | None = None
    """Plain mean over the classes that occur among labels or predictions; None for a language model."""
    generated: float | None = None
    """The share of answers that was written right, greedily."""
    likeliest: float | None = None
    """The share of texts whose right class name is the likeliest, where answers are such names."""
    top5: float | None = None
    """None below six classes, where it says nothing."""
    chance: float | None = None
    majority: float | None = None
    classes: tuple[ClassScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """Row i, column j: samples of class i that were taken for class j."""

    @property
    def perplexity(self) -> float | None:
        return math.exp(min(self.loss, 700.0)) if self.f1 is None else None

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("samples", "accuracy", "loss", "perplexity")}
        if self.f1 is None:
            more = {"generated": self.generated, "likeliest": self.likeliest}
            return plain | {name: value for name, value in more.items() if value is not None}
        return plain | {
            **{name: getattr(self, name) for name in ("f1", "top5", "chance", "majority")},
            "classes": [vars(score) for score in self.classes],
            "confusion": [list(row) for row in self.confusion],
        }


def evaluate(
    trained: Trained, examples: Examples, on_progress: OnProgress = lambda done, all: None, batch: int = 128
) -> Evaluation:
    """Scores of the model on the samples, whose labels count the model's classes."""
    if len(examples) == 0:
        raise DataError("there are no samples to evaluate on")
    outputs = trained.config.outputs
    confusion = torch.zeros(0 if trained.generates else outputs, outputs, dtype=torch.int64)
    loss, right, right5, count, done = 0.0, 0, 0, 0, 0
    if trained.generates:
        return _language(trained, examples, on_progress, batch)
    for rows in examples.batches(batch):
        inputs, labels_N = examples.batch(rows, trained.data.normalize)
        scores_NC = trained.outputs(inputs)
        loss += float(F.cross_entropy(scores_NC, labels_N, reduction="sum"))
        predicted_N = scores_NC.argmax(1)
        right += int((predicted_N == labels_N).sum())
        count += len(labels_N)
        right5 += int((scores_NC.topk(min(5, outputs), 1).indices == labels_N[:, None]).any(1).sum())
        confusion += torch.bincount(labels_N * outputs + predicted_N, minlength=outputs**2).view(outputs, outputs)
        done += len(rows)
        on_progress(done, len(examples))
    return Evaluation(
        samples=count,
        accuracy=right / count,
        loss=loss / count,
        top5=right5 / count if outputs > 5 else None,
        chance=1 / outputs,
        majority=float(confusion.sum(1).max()) / count,
        **_by_class(confusion, trained.classes),
    )


def _language(trained: Trained, examples: Examples, on_progress: OnProgress, batch: int) -> Evaluation:
    """As a run scores its model: perplexity of the tokens that count, and, where texts have answers, these."""
    answers, done = len(examples) if examples.answers else 0, len(examples)
    place = trained.model.spec.exits.index(trained.exit)
    found = token_scores(trained.model, examples, trained.data.normalize, None, batch)[place]
    on_progress(done, done + answers)
    scores = answer_scores(
        trained.model,
        examples,
        trained.encoder.decode,
        trained.encoder.end,
        trained.exit,
        lambda so_far, _: on_progress(done + so_far, done + answers),
    )
    generated, likeliest = scores.get("generated"), scores.get("likeliest")
    return Evaluation(len(examples), found["top1"], found["loss"], generated=generated, likeliest=likeliest)


def _by_class(confusion: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
    hits, actual, predicted = confusion.diagonal().tolist(), confusion.sum(1).tolist(), confusion.sum(0).tolist()
    scores = tuple(
        ClassScore(
            names[i] if i < len(names) else str(i),
            actual[i],
            hits[i] / predicted[i] if predicted[i] else 0.0,
            hits[i] / actual[i] if actual[i] else 0.0,
            2 * hits[i] / (actual[i] + predicted[i]) if actual[i] + predicted[i] else 0.0,
        )
        for i in range(len(hits))
    )
    occurring = [score.f1 for i, score in enumerate(scores) if actual[i] + predicted[i]]
    rows = tuple(tuple(row) for row in confusion.tolist())
    return {"classes": scores, "confusion": rows, "f1": sum(occurring) / len(occurring)}


# ---------------------------------------------------------------- labelled samples


def labelled(
    trained: Trained, place: str, split: Split, columns: Mapping[str, str | int], skip_bad: bool = False
) -> Examples:
    """The samples at `place`, prepared for the model; no place means the data of its own run."""
    if not place:
        return _own_samples(trained, split)
    path = Path(place).expanduser()
    if not path.exists():
        raise DataError(f"there is no data at {place}; name a folder of class folders, or a csv, jsonl or parquet file")
    source = "folder" if path.is_dir() else source_of(place)
    if not source:
        raise DataError(f"{place} is of no kind that is read; csv, tsv, jsonl, parquet, npz and folders are")
    changes: dict[str, Any] = {"source": source, "path": str(path.parent), "train": path.name}
    if source == "folder":
        changes |= {"path": str(path), "train": ""}
    instructs = trained.data.task == "instruction" or "prompt" in {name for name, own in columns.items() if own}
    task = ("instruction" if instructs else "language-modeling") if trained.generates else "classification"
    if trained.is_text and source != "text":
        changes["text_column"] = trained.data.text_column or "text"
    else:
        changes["text_column"] = ""
    if (source in ("folder", "npz") and trained.is_text) or (source == "text" and not trained.generates):
        raise DataError(f"{trained.where} takes {'texts' if trained.is_text else 'images'}; {place} cannot hold those")
    empty: dict[str, Any] = dict.fromkeys(("validation", "test", "group_column"), "") | {"test_classes": ()}
    if chats := _chats(trained, path, source, columns):
        task, changes["text_column"] = "instruction", ""
        empty |= {"messages_column": chats, "label_column": "", "answer_column": ""}
    chosen = {name: value for name, value in columns.items() if value}
    data = trained.data.model_copy(update={**empty, **changes, "task": task, "skip_bad": skip_bad, **chosen})
    return load_whole(data, trained.classes or tuple(trained.data.classes), split)


def _chats(trained: Trained, path: Path, source: str, columns: Mapping[str, str | int]) -> str:
    """The column of chats, if it is those that the file holds; empty: texts."""
    if not trained.generates or source not in ("jsonl", "parquet") or columns.get("text_column"):
        return ""
    if trained.data.messages_column or source != "jsonl":
        return trained.data.messages_column
    with path.open(encoding="utf-8", errors="replace") as file:
        first = next((line for line in file if line.strip()), "")
    try:
        return "messages" if isinstance(json.loads(first).get("messages"), list) else ""
    except (ValueError, AttributeError):
        return ""  # the reader names it


def _own_samples(trained: Trained, split: Split) -> Examples:
    recipe = trained.recipe
    if recipe is None:
        raise DataError(f"{trained.where} is no run, so it has no data of its own; name some with --data")
    bundle: Bundle = load(recipe.data, recipe.seed, recipe.model.pretrained)
    examples: Examples = getattr(bundle, split)
    if len(examples) == 0:
        raise DataError(f"the run of {trained.where} has no {split} samples")
    return examples

"""Labelled samples for a trained model: its run's own, or those of a file or folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cos2p.data import Bundle, load
from cos2p.data.examples import Examples
from cos2p.data.whole import load_whole, source_of
from cos2p.errors import DataError
from cos2p.inference.trained import Trained

Split = Literal["train", "validation", "test"]


def labelled(
    trained: Trained, place: str, split: Split, columns: Mapping[str, str], skip_bad: bool = False
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
    task = "language-modeling" if trained.generates else "classification"
    if trained.is_text and source != "text":
        changes["text_column"] = trained.data.text_column or "text"
    else:
        changes["text_column"] = ""
    if (source in ("folder", "npz") and trained.is_text) or (source == "text" and not trained.generates):
        raise DataError(f"{trained.where} takes {'texts' if trained.is_text else 'images'}; {place} cannot hold those")
    empty = dict.fromkeys(("validation", "test", "classes", "group_column", "train_labels"), "")
    chosen = {name: value for name, value in columns.items() if value}
    data = trained.data.model_copy(update={**empty, **changes, "task": task, "skip_bad": skip_bad, **chosen})
    return load_whole(data, trained.classes, split)


def _own_samples(trained: Trained, split: Split) -> Examples:
    recipe = trained.recipe
    if recipe is None:
        raise DataError(f"{trained.where} is no run, so it has no data of its own; name some with --data")
    bundle: Bundle = load(recipe.data, recipe.seed, recipe.model.pretrained)
    examples: Examples = getattr(bundle, split)
    if len(examples) == 0:
        raise DataError(f"the run of {trained.where} has no {split} samples")
    return examples

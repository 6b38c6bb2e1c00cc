"""Financial PhraseBank and Twitter Financial News as one set of questions: what smollm-finance trains on.

    python -m tools.finance [--into FOLDER]

Reads financial_phrasebank/all.csv.gz and twitter_financial_news/{train,valid}.csv.gz below $COS2P_DATA. Writes into
FOLDER (finance/ below $COS2P_DATA if that can be written to, else finance/):

    train.jsonl        PhraseBank's training part and the tweets' training set
    test.jsonl         PhraseBank's held-out fifth and the tweets' validation set
    test-fpb.jsonl, test-tfns.jsonl    the two halves of test.jsonl, to be scored apart

Each line has `text`, `label` (negative, neutral, positive) and `source` (fpb, tfns). A text whose letters and digits
stand in a test set is taken out of the training set, and of equal texts in one set the first stays.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

FPB = ("negative", "neutral", "positive")
TFNS = ("negative", "positive", "neutral")
"""Bearish, bullish, neutral."""

Row = dict[str, str]


def letters(text: str) -> str:
    """What makes two texts the same: links, signs, spaces and capitals do not count.

    >>> letters("$AB - Up 3% https://t.co/x") == letters("ab up 3")
    True
    """
    return re.sub(r"[^a-z0-9]", "", re.sub(r"https?://\S+", "", text.lower()))


def rows(file: Path, names: tuple[str, ...], source: str, split: str = "") -> list[Row]:
    with gzip.open(file, "rt", encoding="utf-8", newline="") as lines:
        read = [row for row in csv.DictReader(lines) if not split or row["split"] == split]
    return [{"text": row["text"], "label": names[int(row["label"])], "source": source} for row in read]


def without(found: Iterable[Row], known: set[str]) -> list[Row]:
    """Those whose text is not `known`; it is afterwards."""
    kept = []
    for row in found:
        key = letters(row["text"])
        if key not in known:
            known.add(key)
            kept.append(row)
    return kept


def write(data: Path, into: Path) -> dict[str, int]:
    """The four files; returns how many lines each has."""
    phrases, tweets = data / "financial_phrasebank" / "all.csv.gz", data / "twitter_financial_news"
    known: set[str] = set()
    fpb = without(rows(phrases, FPB, "fpb", "test"), known)
    tfns = without(rows(tweets / "valid.csv.gz", TFNS, "tfns"), known)
    train = without(rows(phrases, FPB, "fpb", "train") + rows(tweets / "train.csv.gz", TFNS, "tfns"), known)
    files = {"train": train, "test": fpb + tfns, "test-fpb": fpb, "test-tfns": tfns}
    into.mkdir(parents=True, exist_ok=True)
    for name, own in files.items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in own)
        (into / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return {name: len(own) for name, own in files.items()}


def main() -> None:
    data = Path(os.environ.get("COS2P_DATA", "."))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = data / "finance" if os.access(data, os.W_OK) else Path("finance")
    parser.add_argument("--into", type=Path, default=default, help="folder to put them in")
    into = parser.parse_args().into
    for name, count in write(data, into).items():
        print(f"{into / name}.jsonl: {count:,} texts")


if __name__ == "__main__":
    main()

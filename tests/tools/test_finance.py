"""Two sets of financial news as one set of questions, without what both halves know."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

from tools.finance import write


def table(file: Path, header: list[str], rows: list[list[object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(file, "wt", encoding="utf-8", newline="") as out:
        csv.writer(out).writerows([header, *rows])


def test_labels_mean_the_same_and_test_texts_are_not_trained_on(tmp_path: Path) -> None:
    columns = ["label", "text", "agreement", "split"]
    table(tmp_path / "financial_phrasebank" / "all.csv.gz", columns, [
        [2, "Sales rose .", 100, "train"], [0, "Sales fell .", 100, "test"], [1, "It is a mill .", 75, "train"],
    ])  # fmt: skip
    tweets = tmp_path / "twitter_financial_news"
    table(tweets / "train.csv.gz", ["label", "text"], [
        [0, "$X cut https://t.co/a"], [0, "$x CUT https://t.co/b"], [1, "Sales fell!"], [2, "An update"],
    ])  # fmt: skip
    table(tweets / "valid.csv.gz", ["label", "text"], [[1, "$Y up"], [2, "an UPDATE https://t.co/c"]])
    counts = write(tmp_path, tmp_path / "out")
    read = {name: (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines() for name in counts}
    found = {name: [tuple(json.loads(line).values()) for line in lines] for name, lines in read.items()}
    assert found["train"] == [
        ("Sales rose .", "positive", "fpb"),
        ("It is a mill .", "neutral", "fpb"),
        ("$X cut https://t.co/a", "negative", "tfns"),
    ]
    assert found["test-fpb"] == [("Sales fell .", "negative", "fpb")]
    assert found["test-tfns"] == [("$Y up", "positive", "tfns"), ("an UPDATE https://t.co/c", "neutral", "tfns")]
    assert found["test"] == found["test-fpb"] + found["test-tfns"]

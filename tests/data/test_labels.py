from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cos2p.data import DataConfig
from cos2p.data.raw import Raw, RawSplits, encode_labels
from cos2p.errors import DataError


def raw(labels: list[Any] | None, where: str = "train.csv", names: tuple[str, ...] | None = None) -> Raw:
    return Raw(where=where, count=len(labels or ()), labels=labels, class_names=names)


def encode(
    train: list[Any] | None, test: list[Any] | None = None, names: tuple[str, ...] | None = None, classes: str = ""
) -> tuple[tuple[str, ...], list[int], list[int]]:
    config = DataConfig(source="csv", train="train.csv", classes=classes)
    splits = RawSplits(raw(train, names=names), test=raw(test, "test.csv") if test is not None else None)
    found, codes = encode_labels(splits, config)
    return found, codes["train"].tolist(), codes["test"].tolist() if test is not None else []


def test_integers_stay_what_they_are_however_they_are_stored() -> None:
    assert encode([0, 2, 1], [2]) == (("0", "1", "2"), [0, 2, 1], [2])
    assert encode(["0", "2", "1"], [2.0]) == (("0", "1", "2"), [0, 2, 1], [2])
    assert encode([True, False]) == (("0", "1"), [1, 0], [])


def test_names_are_numbered_in_alphabetical_order() -> None:
    assert encode(["dog", "cat", "dog"], ["cat"]) == (("cat", "dog"), [1, 0, 1], [0])


def test_a_source_or_a_class_file_can_name_the_classes(here: Path) -> None:
    (here / "plain.txt").write_text("anger\njoy\nhope\n")
    (here / "table.tsv").write_text("0\tanger\n1\tjoy\textra\t\n2\thope")

    assert encode([0, 1], names=("a", "b", "c"))[0] == ("a", "b", "c")
    assert encode([0, 1], classes="plain.txt")[0] == ("anger", "joy", "hope")
    assert encode([0, 1], classes="table.tsv")[0] == ("anger", "joy", "hope")
    assert encode(["joy", "anger"], classes="plain.txt")[1] == [1, 0]


def test_a_class_that_only_the_test_set_has_is_out_of_range() -> None:
    with pytest.raises(DataError, match=r"test\.csv: row 1 has label 3, but the classes are 0 to 2"):
        encode([0, 1, 2], [0, 3])
    with pytest.raises(DataError, match=r"train\.csv: row 2 has label -1, but the classes are 0 to 1"):
        encode([0, 1, -1])
    with pytest.raises(
        DataError, match=r"test\.csv: row 0 has label 'bird', which is none of the 2 classes \(cat, dog"
    ):
        encode(["cat", "dog"], ["bird"])


def test_a_stated_list_of_classes_is_a_limit(here: Path) -> None:
    (here / "two.txt").write_text("a\nb\n")

    with pytest.raises(DataError, match="row 1 has label 2, but the classes are 0 to 1"):
        encode([0, 2], classes="two.txt")


def test_identifiers_are_not_mistaken_for_classes() -> None:
    with pytest.raises(DataError, match="only 2 different labels up to 70000; number the classes from 0"):
        encode([7, 70000])


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_a_missing_label_is_named_by_its_row(missing: object) -> None:
    with pytest.raises(DataError, match=r"train\.csv: row 1 has no label; fill in column 'label'"):
        encode([0, missing, 1])


def test_no_labels_and_no_class_names_are_refused(here: Path) -> None:
    (here / "none.txt").write_text("\n\n")

    with pytest.raises(DataError, match=r"train\.csv has no labels"):
        encode(None)
    with pytest.raises(DataError, match=r"none\.txt names no classes"):
        encode([0], classes="none.txt")
    (here / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"bytes\.txt cannot be read as a list of class names"):
        encode([0], classes="bytes.txt")


def test_files_that_count_their_classes_differently_agree_by_name() -> None:
    own, other = ("bad", "good", "so-so"), ("bad", "so-so", "good")
    config = DataConfig(source="csv", train="a.csv", classes=own, test_classes=other)
    splits = RawSplits(raw(["0", "1", "2"]), raw([1, 2]), raw(["0", "1", "2", "2"], "test.csv"))
    names, codes = encode_labels(splits, config)
    assert names == ("bad", "good", "so-so")
    assert codes["train"].tolist() == [0, 1, 2]
    assert codes["validation"].tolist() == [1, 2]  # counts as the training file does
    assert codes["test"].tolist() == [0, 2, 1, 1]

    spelt_out = RawSplits(raw([0, 1, 2]), test=raw(["good", "so-so"]))
    assert encode_labels(spelt_out, config)[1]["test"].tolist() == [1, 2]
    with pytest.raises(DataError, match=r"test\.csv: row 0 has label 3, but the classes are 0 to 2"):
        encode_labels(RawSplits(raw([0, 1, 2]), test=raw([3], "test.csv")), config)


@pytest.mark.parametrize(
    "names",
    [{"test_classes": ("a", "b")}, {"classes": ("a", "b"), "test_classes": ("a", "c")}, {"classes": ("a", "a")}],
)
def test_classes_must_be_the_same_names(names: Any) -> None:
    with pytest.raises(ValueError, match="each once"):
        DataConfig(source="csv", train="a.csv", **names)

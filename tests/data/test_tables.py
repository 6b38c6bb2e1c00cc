from __future__ import annotations

import base64
import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from cos2p.data import DataConfig, Examples, load
from cos2p.data.tokenizers import BYTE_FIRST
from cos2p.errors import DataError


def png(shade: int, size: int = 4) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((size, size), shade, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def shades(examples: Examples) -> list[int]:
    return examples.inputs[:, 0, 0, 0].tolist()


def text(row: torch.Tensor) -> str:
    """What the byte tokenizer was given."""
    return bytes(int(i) - BYTE_FIRST for i in row if i >= BYTE_FIRST).decode()


def parquet(**fields: Any) -> DataConfig:
    return DataConfig(source="parquet", train="train.parquet", **fields)


def csv(**fields: Any) -> DataConfig:
    return DataConfig(source="csv", train="train.csv.gz", **{"text_column": "text", "max_tokens": 64} | fields)


def write_csv(file: Path, content: str) -> None:
    file.write_bytes(gzip.compress(content.encode()))


# Parquet


@pytest.mark.parametrize("style", ["bytes", "hub", "file name"])
def test_images_in_parquet_as_bytes_as_the_hub_stores_them_or_by_name(here: Path, style: str) -> None:
    if style == "file name":
        for i in range(20):
            (here / f"{i}.png").write_bytes(png(i))
    cell = {
        "bytes": lambda i: png(i),
        "hub": lambda i: {"bytes": png(i), "path": f"{i}.png"},
        "file name": lambda i: f"{i}.png",
    }[style]
    table = pa.table({"image": [cell(i) for i in range(20)], "label": [i % 2 for i in range(20)]})
    pq.write_table(table, here / "train.parquet")

    bundle = load(parquet(), seed=0)

    everything = [*shades(bundle.train), *shades(bundle.validation), *shades(bundle.test)]
    assert sorted(everything) == list(range(20))
    assert bundle.test.labels.tolist() == [shade % 2 for shade in shades(bundle.test)]


def test_shards_are_one_table(here: Path) -> None:
    for shard in range(3):
        rows = range(shard * 10, shard * 10 + 10)
        table = pa.table({"image": [png(i) for i in rows], "label": [f"class {i % 2}" for i in rows]})
        pq.write_table(table, here / f"train-{shard:05}.parquet")

    bundle = load(DataConfig(source="parquet", train="train-*.parquet", validation_fraction=0), seed=0)

    assert sorted(shades(bundle.train) + shades(bundle.test)) == list(range(30))
    assert bundle.class_names == ("class 0", "class 1")


def test_class_names_inside_the_file_are_used(here: Path) -> None:
    table = pa.table({"image": [png(i) for i in range(10)], "label": [i % 2 for i in range(10)]})
    hub = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}

    for metadata in ({"huggingface": json.dumps(hub)}, {"classes": "cat,dog"}):
        pq.write_table(table.replace_schema_metadata(metadata), here / "train.parquet")
        assert load(parquet(), seed=0).class_names == ("cat", "dog")


def test_images_that_are_not_chosen_are_not_decoded(here: Path) -> None:
    labels = [i % 2 for i in range(100)]
    config = parquet(train_samples=10, test_samples=4)
    pq.write_table(pa.table({"image": [png(i) for i in range(100)], "label": labels}), here / "train.parquet")
    bundle = load(config, seed=0)
    chosen = {*shades(bundle.train), *shades(bundle.validation), *shades(bundle.test)}
    cells = [png(i) if i in chosen else b"broken" for i in range(100)]
    pq.write_table(pa.table({"image": cells, "label": labels}), here / "train.parquet")

    again = load(config, seed=0)

    assert len(chosen) == 14
    assert torch.equal(again.train.inputs, bundle.train.inputs)
    with pytest.raises(DataError, match=r"86 of 100 images cannot be read(.|\n)*train\.parquet, row \d+ "):
        load(parquet(), seed=0)


def test_groups_come_from_their_column_and_follow_their_samples(here: Path) -> None:
    table = pa.table(
        {"image": [png(i) for i in range(20)], "label": [i % 2 for i in range(20)], "writer": list(range(20))}
    )
    pq.write_table(table, here / "train.parquet")

    bundle = load(parquet(group_column="writer"), seed=0)

    assert tuple(bundle.train.groups or ()) == tuple(str(shade) for shade in shades(bundle.train))
    assert tuple(bundle.test.groups or ()) == tuple(str(shade) for shade in shades(bundle.test))


def test_what_is_wrong_with_a_parquet_file_is_said(here: Path) -> None:
    rows: dict[str, Any] = {"image": [png(1)] * 10, "label": [0, 1] * 5, "writer": ["a"] * 9 + [None]}

    def message(config: DataConfig, **changed: Any) -> str:
        pq.write_table(pa.table({k: v for k, v in (rows | changed).items() if v is not None}), here / "train.parquet")
        with pytest.raises(DataError) as error:
            load(config, seed=0)
        return str(error.value)

    assert "has no column 'picture'; it has image, label, writer; set data.image_column" in message(
        parquet(image_column="picture")
    )
    assert "has no column 'label'; it has image, writer; set data.label_column" in message(parquet(), label=None)
    assert "row 9 has no value in 'writer'" in message(parquet(group_column="writer"))
    assert "row 0 (it is empty;" in message(parquet(), image=[None] * 10)
    assert "the image holds int" in message(parquet(), image=[3] * 10)
    assert "'a.png' is neither a file in" in message(parquet(), image=["a.png"] * 10)
    assert "row 0 4x4; set data.image_size" in message(parquet(), image=[png(1, 4), png(1, 5)] * 5)
    assert "holds no samples" in message(
        parquet(), image=pa.array([], pa.binary()), label=pa.array([], pa.int64()), writer=pa.array([], pa.string())
    )
    (here / "train.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        load(parquet(), seed=0)


# CSV


def test_texts_are_kept_letter_by_letter(here: Path) -> None:
    texts = ["null", "NA", " x", "007", "1.50", ' a, "b"', "two\nlines", "naïve 😀"]
    quoted = "\n".join(f'{i % 2},"{t.replace(chr(34), chr(34) * 2)}"' for i, t in enumerate(texts))
    write_csv(here / "train.csv.gz", f"label,text\n{quoted}\n")

    bundle = load(csv(test="train.csv.gz"), seed=0)

    assert [text(row) for row in bundle.test.inputs[:]] == texts
    assert bundle.test.labels.tolist() == [0, 1] * 4
    assert (bundle.test.pad_id, bundle.test.vocabulary) == (0, 259)
    assert bundle.test.inputs.shape == (8, 64)


def test_an_empty_text_is_named_by_its_row(here: Path) -> None:
    for empty in ('""', '" "'):
        write_csv(here / "train.csv.gz", "label,text\n" + "0,a\n1,b\n" * 3 + f"0,{empty}\n")
        with pytest.raises(DataError, match=r"train\.csv\.gz: the text of line 8 is empty; fill in column 'text'"):
            load(csv(test="train.csv.gz"), seed=0)


# JSON lines


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz"])
def test_json_lines_are_a_table(here: Path, name: str) -> None:
    rows = [{"text": f"null, {i}", "label": ["ham", "spam"][i % 2], "by": i % 5, "more": {"x": i}} for i in range(20)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (here / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    config = DataConfig(
        source="jsonl", train=name, test=name, text_column="text", group_column="by", validation_fraction=0
    )
    bundle = load(config, seed=0)

    assert [text(row) for row in bundle.test.inputs[:]] == [row["text"] for row in rows]
    assert bundle.class_names == ("ham", "spam")
    assert bundle.test.labels.tolist() == [0, 1] * 10
    assert bundle.test.groups is not None
    assert list(bundle.test.groups) == [str(i % 5) for i in range(20)]


def test_json_lines_and_csv_are_not_mistaken_for_each_other(here: Path) -> None:
    (here / "train.json").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    with pytest.raises(DataError, match=r"this looks like JSON lines; set data\.source = 'jsonl'"):
        load(DataConfig(source="csv", train="train.json", text_column="text"), seed=0)
    (here / "train.jsonl").write_text("text,label\na,0\nb,1\n")
    with pytest.raises(DataError, match="cannot be read as JSON lines, an object a line"):
        load(DataConfig(source="jsonl", train="train.jsonl", text_column="text"), seed=0)
    (here / "train.jsonl").write_text('{"text": "a", "label": 0}\n{"text": null, "label": 1}\n' * 3)
    with pytest.raises(DataError, match="column 'text' is empty in line 2"):
        load(DataConfig(source="jsonl", train="train.jsonl", test="train.jsonl", text_column="text"), seed=0)


def test_labels_may_be_names_and_the_table_tab_separated(here: Path) -> None:
    (here / "train.tsv").write_text("kind\ttext\n" + "ham\thello, you\nspam\tbuy\n" * 10)

    bundle = load(DataConfig(source="csv", train="train.tsv", text_column="text", label_column="kind"), seed=0)

    assert bundle.class_names == ("ham", "spam")
    assert len(bundle.test) == 4


def test_images_in_csv_by_name_or_in_base64(here: Path) -> None:
    (here / "pictures").mkdir()
    rows = []
    for i in range(20):
        (here / "pictures" / f"{i}.png").write_bytes(png(i))
        rows.append(f"{i % 2},pictures/{i}.png" if i < 10 else f"{i % 2},{base64.b64encode(png(i)).decode()}")
    (here / "train.csv").write_text("label,image\n" + "\n".join(rows))

    bundle = load(DataConfig(source="csv", train="train.csv", test="train.csv"), seed=0)

    assert shades(bundle.test) == list(range(20))


def test_language_modelling_needs_no_labels_and_keeps_groups(here: Path) -> None:
    write_csv(here / "train.csv.gz", "role,text\n" + "A,To be\nB,or not\n" * 10)

    bundle = load(csv(task="language-modeling", group_column="role", max_tokens=10), seed=0)

    assert bundle.classes == 0
    inputs, labels = bundle.train.batch(torch.arange(len(bundle.train)))
    assert labels.shape == inputs.shape
    assert torch.equal(labels[0, :5], inputs[0, 1:6])
    assert bundle.train.groups is not None
    assert sorted(set(bundle.train.groups)) == ["A", "B"]
    # Groups are kept in proportion: 20 samples, 4 for testing, 2 of each role.
    assert bundle.test.groups is not None
    assert sorted(bundle.test.groups) == ["A", "A", "B", "B"]


def test_what_is_wrong_with_a_csv_file_is_said(here: Path) -> None:
    file = here / "train.csv.gz"
    write_csv(file, "label,text\n0,a\n1,b,c\n")
    with pytest.raises(DataError, match=r"cannot be read as CSV.*Expected 2 columns, got 3"):
        load(csv(), seed=0)
    write_csv(file, "label,sentence\n0,a\n1,b\n")
    with pytest.raises(DataError, match=r"has no column 'text'; it has label, sentence; set data\.text_column"):
        load(csv(), seed=0)
    write_csv(file, "label,text\n0,a\n,b\n")
    with pytest.raises(DataError, match="line 3 has no label"):
        load(csv(), seed=0)
    write_csv(file, "label,text\n")
    with pytest.raises(DataError, match="holds no samples"):
        load(csv(), seed=0)
    write_csv(file, "")
    with pytest.raises(DataError, match=r"train\.csv\.gz cannot be read as CSV with a header line"):
        load(csv(), seed=0)
    file.write_bytes(b"label,text\n0,a\n")
    with pytest.raises(DataError, match="cannot be read as CSV"):
        load(csv(), seed=0)


def test_a_column_that_holds_no_texts_is_refused(here: Path) -> None:
    pq.write_table(pa.table({"text": [1, 2] * 5, "label": [0, 1] * 5}), here / "train.parquet")
    with pytest.raises(DataError, match=r"column 'text' holds int, not a text in row"):
        load(parquet(text_column="text"), seed=0)
    pq.write_table(pa.table({"text": pa.array([None] * 10, pa.string()), "label": [0, 1] * 5}), here / "train.parquet")
    with pytest.raises(DataError, match=r"column 'text' is empty in row"):
        load(parquet(text_column="text"), seed=0)


# The real ones


def test_cifar10(shared_data: Path) -> None:
    config = DataConfig(
        source="parquet", path="cifar10", train="train.parquet", test="test.parquet", channels=3,
        train_samples=500, test_samples=500,
    )  # fmt: skip

    bundle = load(config, seed=0)

    assert bundle.class_names[:3] == ("airplane", "automobile", "bird")
    assert bundle.train.inputs.shape == (450, 3, 32, 32)
    assert torch.bincount(bundle.test.labels).tolist() == [50] * 10
    # Published channel means of CIFAR-10: 0.491, 0.482, 0.447.
    means = bundle.train.inputs.float().mean((0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.491, 0.482, 0.447], abs=0.03)


def test_omniglot_with_its_natural_owners(shared_data: Path) -> None:
    config = DataConfig(
        source="parquet", path="omniglot", train="images.parquet", image_size=28, label_column="class",
        group_column="client", train_samples=968, test_samples=242, validation_fraction=0,
    )  # fmt: skip

    bundle = load(config, seed=0)

    assert bundle.classes == 242
    assert bundle.train.inputs.shape == (968, 1, 28, 28)
    assert bundle.train.groups is not None
    assert all("#" in group for group in bundle.train.groups)


@pytest.mark.parametrize(
    ("folder", "train", "test", "extra", "classes", "counts"),
    [
        ("banking77", "train.csv.gz", "test.csv.gz", {"classes": "classes.txt"}, 77, (10_003, 3_080)),
        ("ag_news", "train.csv.gz", "test.csv.gz", {"classes": "classes.txt"}, 4, (20_587, 7_600)),
        ("trec", "train.csv.gz", "test.csv.gz", {"classes": "classes.txt"}, 6, (5_452, 500)),
        ("trec", "train.csv.gz", "", {"label_column": "fine"}, 50, (4_362, 1_090)),
        ("tweeteval_emotion", "train.csv.gz", "test.csv.gz", {"classes": "classes.tsv"}, 4, (3_257, 1_421)),
        ("tweeteval_offensive", "train.csv.gz", "test.csv.gz", {"classes": "classes.tsv"}, 2, (11_916, 860)),
        ("twitter_financial_news", "train.csv.gz", "valid.csv.gz", {}, 3, (9_543, 2_388)),
        ("financial_phrasebank", "all.csv.gz", "", {}, 3, (3_877, 969)),
    ],
)
def test_text_sets(
    shared_data: Path, folder: str, train: str, test: str, extra: dict[str, Any], classes: int, counts: tuple[int, int]
) -> None:
    config = DataConfig(
        source="csv", path=folder, train=train, test=test, text_column="text", max_tokens=16, validation_fraction=0,
        **extra,
    )  # fmt: skip

    bundle = load(config, seed=0)

    assert bundle.classes == classes
    assert (len(bundle.train), len(bundle.test)) == counts
    assert len(bundle.train.labels.unique()) == classes


def test_shakespeare_by_role(shared_data: Path) -> None:
    config = DataConfig(
        source="csv", path="shakespeare", train="by_role.csv.gz", text_column="text", group_column="role",
        task="language-modeling", max_tokens=64,
    )  # fmt: skip

    bundle = load(config, seed=0)

    assert len(bundle.train) + len(bundle.validation) + len(bundle.test) == 7_095
    assert bundle.train.groups is not None
    assert "ROMEO" in {group.upper() for group in bundle.train.groups}

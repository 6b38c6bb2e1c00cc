from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from cos2p.data.raw import row_words


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.csv", 'text,label\none,x\n"two\nlines",y\n\nthree,z\n', (2, 3, 6)),
        ("a.tsv", 'text\tlabel\r\na "b\tx\r\nc\ty\r\n', (2,)),
        ("a.jsonl", '{"text": "a\\nb"}\n\n{"text": "c, \\"d"}\n', (1, 3)),
    ],
)
def test_a_row_is_the_line_that_an_editor_shows(tmp_path: Path, name: str, text: str, lines: tuple[int, ...]) -> None:
    (tmp_path / name).write_text(text, newline="")
    with gzip.open(tmp_path / f"{name}.gz", "wt", newline="") as file:
        file.write(text)
    for end in ("", ".gz"):
        found = [row_words(str(tmp_path / name) + end, row) for row in range(len(lines))]
        assert found == [f"line {line}" for line in lines]


def test_what_is_no_file_of_lines_has_rows(tmp_path: Path) -> None:
    assert row_words("a.parquet", 2) == "row 2"
    assert row_words(str(tmp_path / "gone.csv"), 2) == "row 2"
    (tmp_path / "a.csv").write_text("text\n" + 200_000 * "x" + "\n")
    assert row_words(str(tmp_path / "a.csv"), 0) == "row 0", "a cell longer than the csv module reads"
    assert row_words(str(tmp_path / "a.csv"), 7) == "row 7"

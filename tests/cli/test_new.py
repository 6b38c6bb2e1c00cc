from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from cos2p import init_weights, model_config
from cos2p.cli.app import app
from cos2p.models.hub import save_pretrained
from tests.models.checkpoints import change_config
from tests.models.test_hub_export import word_tokenizer


def cli(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout + result.stderr


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "news.csv"
    file.write_text("Title,Category,who\n" + "".join(f"text number {i},{'ab'[i % 2]},x\n" for i in range(60)))
    return file


def test_a_recipe_for_texts_validates(table: Path, tmp_path: Path) -> None:
    made = cli("new", tmp_path / "r.toml", "--data", table, "--model", "bert-small", "--devices", "raspberry-pi-4:2")
    assert made[0] == 0, made[1]
    text = (tmp_path / "r.toml").read_text()
    assert 'text_column = "Title"' in text
    assert "its FLOP/s are those of its processor" in text
    assert 'form = "growing"' in text
    code, said = cli("recipes", "validate", tmp_path / "r.toml")
    assert code == 0, said
    assert "2 classes (a, b)" in said


def test_a_recipe_for_images_validates(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (40, 30), (i, 2 * i, 3 * i)).save(tmp_path / "photos" / name / f"{i}.png")
    made = cli("new", tmp_path / "r.toml", "--data", tmp_path / "photos", "--model", "vit-nano", "--devices", "laptop")
    assert made[0] == 0, made[1]
    code, said = cli("recipes", "validate", tmp_path / "r.toml")
    assert code == 0, said
    assert "2 classes (cat, dog); 32×32×3 pixels" in said


def test_what_is_missing_or_wrong_is_said(table: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    assert "--data is missing, and there is nobody to ask" in cli("new", file)[1]
    options = ("--data", table, "--model", "bert-small", "--devices")
    assert "write a number, or PRESET:NUMBER; presets are" in cli("new", file, *options, "toaster:3")[1]
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    said = cli("new", file, "--data", tmp_path / "odd.csv", "--model", "bert-small", "--devices", "laptop")[1]
    assert "has the columns a, b (its first line); say which with --text-column" in said
    assert not file.exists()
    file.touch()
    assert "exists and was left alone" in cli("new", file, *options, "laptop")[1]


def test_plain_texts_are_for_language_models(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for name in "ab":
        (tmp_path / "books" / f"{name}.txt").write_text("to be or not to be that is the question " * 60)
    made = cli("new", tmp_path / "r.toml", "--data", tmp_path / "books", "--model", "llama-nano", "--devices", "laptop")
    assert made[0] == 0, made[1]
    code, said = cli("recipes", "validate", tmp_path / "r.toml")
    assert code == 0, said
    assert "the next token is predicted; 128 tokens at most" in said
    options = ("--data", tmp_path / "books" / "a.txt", "--devices", "laptop", "--model")
    said = cli("new", tmp_path / "s.toml", *options, "bert-small")[1]
    assert "bert-small cannot be trained on texts without labels; take one of llama" in said


def test_a_checkpoint_decides_how_the_data_is_brought_to_it(table: Path, tmp_path: Path) -> None:
    config = model_config("bert-nano", vocab=300, max_tokens=24, classes=2)
    save_pretrained(tmp_path / "bert", config, init_weights(config, 0))
    options = ("--data", table, "--devices", "laptop", "--model", tmp_path / "bert")
    assert "the model's tokenizer: " in cli("new", tmp_path / "r.toml", *options)[1]
    word_tokenizer(tmp_path / "bert")
    code, said = cli("new", tmp_path / "r.toml", *options)
    assert code == 0, said
    text = (tmp_path / "r.toml").read_text()
    assert "max_tokens = 8" in text  # as long as the texts are
    assert f'pretrained = "{tmp_path / "bert"}"' in text
    assert "growing" not in text  # it would empty the blocks
    change_config(tmp_path / "bert", model_type="gpt2")
    assert "model_type is 'gpt2'" in cli("new", tmp_path / "s.toml", *options)[1]
    assert not (tmp_path / "s.toml").exists()
    assert "vit-nano cannot be trained on texts" in cli("new", tmp_path / "s.toml", *options[:-1], "vit-nano")[1]


def test_it_looks_at_the_texts_and_says_what_it_saw(table: Path, tmp_path: Path) -> None:
    file = tmp_path / "my recipe.toml"
    code, said = cli("new", file, "--data", table, "--model", "bert-nano", "--devices", 4, "--memory", "60MB")
    assert code == 0, said
    assert "60 texts, 2 classes" in said
    assert "99 % of the texts have at most 16 tokens (tokenizer: bytes): max_tokens = 16" in said
    assert "4 devices of 60MB each, batch 9" in said
    assert f"Next:  cos2p run '{file}'" in said
    assert 'memory = "60MB"' in file.read_text()


def test_what_cannot_run_is_written_and_refused(table: Path, tmp_path: Path) -> None:
    code, said = cli(
        "new", tmp_path / "r.toml", "--data", table, "--model", "bert-nano", "--devices", 4, "--memory", "9kB"
    )
    assert code != 0
    assert "was written, but cannot run as it is" in said
    assert "9.00 kB" in said


def test_one_class_and_too_many_devices_are_refused(table: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("text,label\n" + "hello there,a\n" * 30)
    assert (
        "has one single class" in cli("new", "--data", tmp_path / "one.csv", "--model", "bert-nano", "--devices", 2)[1]
    )
    options = ("--data", table, "--model", "bert-nano", "--devices", 500)
    assert "60 samples are too few for 500 devices" in cli("new", tmp_path / "r.toml", *options)[1]


def columns(folder: Path, name: str, *rows: str) -> Path:
    (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder / name


def test_a_folder_of_tables_and_a_file_of_another_separator(tmp_path: Path) -> None:
    rows = [f"größe {number};{'ab'[number % 2]}" for number in range(60)]
    train = columns(tmp_path, "train it.csv", "text;Gefühl", *rows)
    for other in ("test it.csv", "dev it.csv"):
        columns(tmp_path, other, "text;Gefühl", *rows[:20])
    options = ("--model", "bert-nano", "--devices", 2, "--label-column")
    said = cli("new", tmp_path / "r.toml", "--data", tmp_path, *options, "Gefühl")[1]
    assert f"is a folder of tables; name the one to train on: --data '{tmp_path / 'dev it.csv'}'" in said
    code, said = cli("new", tmp_path / "r.toml", "--data", train, *options, "gefühl")
    assert code == 2
    assert "has no column 'gefühl', but the columns text, Gefühl (its first line); say which with --label-col" in said
    code, said = cli("new", tmp_path / "r.toml", "--data", train, *options, "Gefühl")
    assert code == 0, said
    assert "60 texts, 2 classes ('text' and 'Gefühl')" in said
    assert "60 train, 20 validation, 20 test" in said
    assert 'label_column = "Gefühl"' in (tmp_path / "r.toml").read_text(encoding="utf-8")


def test_what_is_no_label_is_refused(table: Path, tmp_path: Path) -> None:
    numbered = columns(tmp_path, "n.csv", "text,label", *(f"text {number},{number}" for number in range(60)))
    options = ("--model", "bert-nano", "--devices", 2)
    said = cli("new", tmp_path / "r.toml", "--data", numbered, *options)[1]
    assert "column 'label'" in said
    assert "has 60 values in 60 rows, too many for classes; say which column with --label-column" in said
    empty = columns(tmp_path, "e.csv", "text,label")
    assert "has no rows below its first line" in cli("new", tmp_path / "r.toml", "--data", empty, *options)[1]
    (tmp_path / "l.csv").write_bytes(("text,label\n" + "grün,a\nrot,b\n" * 30).encode("latin-1"))
    assert "save it as UTF-8" in cli("new", tmp_path / "r.toml", "--data", tmp_path / "l.csv", *options)[1]
    said = cli("new", tmp_path / "r.toml", "--data", table, *options, "--memory", "60")[1]
    assert "--memory 60: add the unit, such as 60MB" in said


def test_a_checkpoint_without_a_tokenizer_takes_one_by_an_option(table: Path, tmp_path: Path) -> None:
    config = model_config("bert-nano", vocab=300, max_tokens=24, classes=2)
    save_pretrained(tmp_path / "bert", config, init_weights(config, 0))
    options = ("--data", table, "--devices", 2, "--model", tmp_path / "bert")
    assert "put one there, or name one with --tokenizer" in cli("new", tmp_path / "r.toml", *options)[1]
    (tmp_path / "words").mkdir()
    word_tokenizer(tmp_path / "words")
    for given in (tmp_path / "words", tmp_path / "words" / "tokenizer.json"):
        code, said = cli("new", "-f", tmp_path / "r.toml", *options, "--tokenizer", given)
        assert code == 0, said
        assert f"(tokenizer: {given.name}): max_tokens = 8" in said


def test_chats_are_found_by_their_column(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}]
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": said}) + "\n") * 40)
    options = ("--data", tmp_path / "chats.jsonl", "--model", "llama-nano", "--devices", "2")
    code, words = cli("new", tmp_path / "r.toml", *options)
    assert code == 0, words
    assert "40 chats, all that the assistant says is learned" in words
    assert 'task = "instruction"\nmessages_column = "messages"\nmax_tokens = 32' in (tmp_path / "r.toml").read_text()

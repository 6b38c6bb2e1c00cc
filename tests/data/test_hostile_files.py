"""Files that were made to crash or to stop whoever reads them: each is refused in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from cos2p.checksums import crc
from cos2p.cli.app import app
from cos2p.data import DataConfig, load
from cos2p.data import tokenizers as own_tokenizers
from cos2p.data.tokenizers import make_encoder
from cos2p.errors import CheckpointError, ConfigError, DataError, RecipeError, RunError
from cos2p.fleet.admin.kits import FleetPlan
from cos2p.fleet.device.owner import OwnerFile
from cos2p.inference.predicting import gather
from cos2p.models.config import ModelConfig
from cos2p.models.hub_files import read_json
from cos2p.recipe import Recipe
from cos2p.tracking import files
from cos2p.tracking.events import parse_event

TEXTS = {"text_column": "text", "label_column": "label", "tokenizer": "bytes", "max_tokens": 8}


def test_deep_json_in_a_line(tmp_path: Path) -> None:
    """Arrow's reader would end the process by a segmentation fault."""
    good = "".join(json.dumps({"text": f"word [[[ {n}", "label": n % 2, "more": [[1]] * 99}) + "\n" for n in range(20))
    file = tmp_path / "train.jsonl"
    config = DataConfig(source="jsonl", path=str(tmp_path), train="train.jsonl", **TEXTS)  # type: ignore[arg-type]
    file.write_text(good)
    load(config, 0)
    for deep in ('{"text": "a", "label": 0, "x": ' + "[" * 200_000 + "]" * 200_000 + "}", '{"x":' * 200_000):
        for text in (good + deep + "\n" + good, good + deep):
            file.write_text(text)
            with pytest.raises(DataError, match="line 21: JSON that is nested deeper than 64"):
                load(config, 0)


def test_a_text_that_a_table_repeats_beyond_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 20_000
    monkeypatch.setattr(os, "sysconf", lambda name: 2**16)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * 2**20]))
    table = pa.table({"text": texts, "label": pa.array([0] * rows, pa.int8())})
    pa.parquet.write_table(table, tmp_path / "train.parquet")
    assert (tmp_path / "train.parquet").stat().st_size < 2**21
    config = DataConfig(source="parquet", path=str(tmp_path), train="train.parquet", **TEXTS)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="column 'text' is larger than this machine's"):
        load(config, 0)


def tokenizer_with(pattern: str, folder: Path) -> DataConfig:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={"<pad>": 0, "a": 1}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    return DataConfig(source="csv", train="x.csv", text_column="text", tokenizer=str(folder / "tokenizer.json"))


def test_a_tokenizers_pattern_that_takes_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pattern in (r"(a+)+$", r"(?:[ab]*c?)*d", r"(\w*){3,}!"):
        with pytest.raises(DataError, match="repeats a repetition"):
            make_encoder(tokenizer_with(pattern, tmp_path))
    harmless = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|[(+*)]+"
    assert make_encoder(tokenizer_with(harmless, tmp_path)).encode(["aa"]) == [[1, 1]]
    monkeypatch.setattr(own_tokenizers, "_NESTED", own_tokenizers._PLAIN)  # one that nobody foresees
    encoder = make_encoder(tokenizer_with(r"(a+)+$", tmp_path))
    with pytest.raises(DataError, match="cannot read the texts"):
        encoder.encode(["a" * 40 + "b"])


def test_a_checkpoints_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        read_json(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="model depth is 100000000; at most 1000"):
        ModelConfig("vit", dim=64, depth=10**8, heads=8, mlp=256, classes=10, image=8, patch=2, channels=1)


def test_what_is_nested_for_ever(tmp_path: Path) -> None:
    file, deep = tmp_path / "deep", '{"a":' * 100_000 + "1" + "}" * 100_000
    file.write_text(deep)
    with pytest.raises(RunError, match="deep is nested too deep to be read"):
        files.read_json(file)
    (tmp_path / "checksums.json").write_text(deep)
    with pytest.raises(RunError, match=r"checksums\.json is damaged"):
        files.read_json(file)
    line = b'{"kind":"joined","x":' + deep.encode()
    with pytest.raises(ValueError, match="is not JSON"):
        parse_event(line + b',"crc":"%s"}' % crc(line).encode())
    for text in ("x = " + "[" * 100_000 + "]" * 100_000, "x = " + "9" * 5000):
        for name, read in (("owner.toml", OwnerFile.read), ("fleet.toml", FleetPlan.load), ("r.toml", Recipe.load)):
            (tmp_path / name).write_text(text)
            with pytest.raises(ConfigError, match="is not valid TOML"):
                read(tmp_path if name == "owner.toml" else tmp_path / name)
    found = CliRunner().invoke(app, ["plan", "quickstart", "--set", "a" + ".a" * 5000 + "=1"])
    assert (found.exit_code, found.stderr.count("\n")) == (2, 1), found.stderr
    assert "nested too deep" in found.stderr


def test_more_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask_for_much(*_: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 16 TB")

    monkeypatch.setattr("cos2p.recipe.Recipe.load", ask_for_much)
    found = CliRunner().invoke(app, ["plan", "quickstart"])
    assert (found.exit_code, found.stderr.count("\n")) == (4, 1), found.stderr
    monkeypatch.undo()
    assert (
        "fleet.devices.0.count"
        in CliRunner().invoke(app, ["plan", "demo", "--set", "fleet.devices.0.count=1000000000"]).stderr
    )


def test_fields_of_a_checkpoint_that_are_of_another_kind(tmp_path: Path) -> None:
    for name, value in (("id2label", [1]), ("architectures", 5), ("layer_norm_eps", "x"), ("rms_norm_eps", [1])):
        (tmp_path / "config.json").write_text(json.dumps({name: value}))
        with pytest.raises(CheckpointError, match=rf"{name} is .*, no (dict|list|float)"):
            read_json(tmp_path / "config.json")


def test_lists_in_the_place_of_texts(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"text": [["a"]] * 4, "label": [[0]] * 4}), tmp_path / "train.parquet")
    config = DataConfig(source="parquet", path=str(tmp_path), train="train.parquet", **TEXTS)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="column 'text'"):
        load(config, 0)


def test_a_text_in_the_place_of_a_file() -> None:
    with pytest.raises(DataError, match="a text itself is given by --text"):
        gather(["a" * 5000], [], DataConfig(), is_text=True)


def test_a_path_with_a_nul() -> None:
    for table, field in (("data", "path"), ("data", "tokenizer"), ("model", "pretrained")):
        with pytest.raises(RecipeError, match=rf"{table}\.{field}: has a NUL"):
            Recipe.parse({"method": {"name": "cos2p"}, table: {field: "a\0b"}})

"""A pretrained text model on a real fleet, with the files where docs/howto/pretrained-fleet.md says: the weights at
the server, the tokenizer and its own texts on a device. About half a minute on two idle cores."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from cos2p import ModelConfig
from cos2p.fleet.device.owner import DeviceFile
from cos2p.models.hub import save_pretrained
from cos2p.models.layout import init_weights
from tests.fleet.lab import running_lab, small_recipe

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

WORDS = ("[UNK]", "[PAD]", "who", "where", "is", "it", "he", "she", "that", "town")


def questions(path: Path, count: int) -> None:
    rng = random.Random(path.parent.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{first} {' '.join(rng.choices(WORDS[4:], k=4))},{first}" for first in ("who", "where") * (count // 2)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n", encoding="utf-8")


def test_weights_lie_at_the_server_and_the_tokenizer_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig("bert", dim=16, depth=2, heads=2, mlp=16, classes=2, vocab=len(WORDS), max_tokens=12)
    model = save_pretrained(tmp_path / "models/tiny", config, init_weights(config, 0))
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(model / "tokenizer.json"))
    for place in ("questions", "mine", "theirs"):
        questions(tmp_path / place / "train.csv", 40)
    (tmp_path / "mine/models/tiny").mkdir(parents=True)
    shutil.copy(model / "tokenizer.json", tmp_path / "mine/models/tiny")
    # Without $COS2P_DATA relative paths are meant from where `cos2p fleet serve` is started.
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COS2P_DATA", raising=False)
    recipe = small_recipe(
        2,
        rounds=3,
        model={"pretrained": "models/tiny"},
        data={
            "source": "csv", "path": "questions", "train": "train.csv", "text_column": "text", "test_fraction": 0.2,
            "max_tokens": 12,
        },
        method={"name": "fedavg"},
    )  # fmt: skip
    devices = {
        name: DeviceFile(threads=1, data=str(tmp_path / place))
        for name, place in (("dev-1", "mine"), ("dev-2", "theirs"))
    }
    with running_lab(tmp_path, recipe, devices) as lab:
        lab.start_run()
        lab.finish()
        assert {event["client"] for event in lab.events("merged")} == {"dev-1"}
        (unfit,) = lab.events("unfit")
        kit = lab.machine("dev-2").kit.folder
    assert unfit["client"] == "dev-2"
    assert unfit["reason"].startswith("data: its data cannot be used for this run")
    for said in ((kit / "training.log").read_text(), (kit / "notices.jsonl").read_text()):
        assert f"no data at {tmp_path}/theirs/models/tiny; put it there: this device reads nothing but" in said

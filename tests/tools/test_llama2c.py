from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import CheckpointError
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer
from tests.submodel.strategies import random_weights
from tools.llama2c import half_rotation, load_llama2c

CONFIG = ModelConfig(
    "llama", dim=16, depth=2, heads=4, kv_heads=2, mlp=10, vocab=20, max_tokens=6, task="language-modeling"
)
STORY = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."


def write(path: Path, config: ModelConfig, weights: Weights) -> Path:
    """The format from its description: pairs side by side, kind after kind."""

    def side_by_side(name: str, heads: int) -> torch.Tensor:
        return weights[name].view(heads, 2, -1, config.dim).transpose(1, 2).reshape(-1, config.dim)

    parts = [weights["embed.tokens"]]
    for kind in ("norm1", "q", "k", "v", "o", "norm2", "gate", "fc2", "fc1"):
        for block in range(config.depth):
            name = f"blocks.{block}.{kind}.weight"
            heads = {"q": config.heads, "k": config.kv_heads}.get(kind)
            parts.append(side_by_side(name, heads) if heads else weights[name])
    parts += [weights[f"exits.{config.depth}.norm.weight"], torch.zeros(config.max_tokens, config.head_dim)]
    if not config.tied:
        parts.append(weights["lm_head.weight"])
    vocab = config.vocab if config.tied else -config.vocab
    header = [config.dim, config.mlp, config.depth, config.heads, config.kv_heads, vocab, config.max_tokens]
    numbers = np.concatenate([part.numpy().ravel() for part in parts]).astype("<f4")
    path.write_bytes(np.array(header, "<i4").tobytes() + numbers.tobytes())
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_finds_its_place(tied: bool, tmp_path: Path) -> None:
    config = CONFIG.with_(tied=tied)
    weights = random_weights(config, 0)
    loaded, found = load_llama2c(write(tmp_path / "model.bin", config, weights))
    assert loaded == config
    assert found.keys() == weights.keys()
    for name, tensor in found.items():
        if not name.startswith("exits.1."):
            assert torch.equal(tensor, weights[name]), name


def test_half_rotation_by_hand() -> None:
    rows = torch.arange(12.0)[:, None]
    assert half_rotation(rows, heads=2).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.bin", CONFIG, random_weights(CONFIG, 0))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.bin holds \d+ numbers, its header says \d+; download it again"):
        load_llama2c(path)
    path.write_bytes(b"\0" * 28)
    with pytest.raises(CheckpointError, match=r"not a llama2\.c checkpoint of version 0: model dim is 0"):
        load_llama2c(path)
    path.write_bytes(b"safetensors, or anything else that is no such file")
    with pytest.raises(CheckpointError, match=r"not a llama2|its header says"):
        load_llama2c(path)
    path.write_bytes(b"\0" * 8)
    with pytest.raises(CheckpointError, match="too short for a llama2"):
        load_llama2c(path)
    with pytest.raises(CheckpointError, match=r"cannot read .*nothing: No such file"):
        load_llama2c(tmp_path / "nothing")


def test_stories260k_tells_its_story(data_folder: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = data_folder / "tinystories-llama-260k"
    config, weights = load_llama2c(folder / "stories260K.bin")
    assert (config.depth, config.heads, config.kv_heads, config.tied) == (5, 8, 4, True)
    model = ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tok512.model"))
    ids = torch.tensor([[tokenizer.bos_id()]])
    with torch.no_grad():
        for _ in range(44):
            ids = torch.cat((ids, model(ids)[-1][:, -1:].argmax(-1)), 1)
    assert tokenizer.decode(ids[0].tolist()).startswith(STORY)

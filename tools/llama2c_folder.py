"""A llama2.c checkpoint and its SentencePiece model as a Hugging Face folder; part of `python -m tools.weights`.

python -m tools.llama2c_folder stories260K.bin tok512.model FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

from cos2p.models.hub import save_pretrained
from tools.gguf_tokenizer import build_tokenizer
from tools.llama2c import load_llama2c

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
"""Kinds of tokens, as GGUF numbers them."""


def convert(checkpoint: Path, sentencepiece: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and tokenizer.json."""
    config, weights = load_llama2c(checkpoint)
    save_pretrained(folder, config, weights)
    tokenizer, special = build_tokenizer(_facts(SentencePieceProcessor(model_file=str(sentencepiece))))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")


def _facts(model: SentencePieceProcessor) -> dict[str, Any]:
    """What a GGUF file says of such a tokenizer."""
    ids = range(model.vocab_size())
    kinds = [
        _UNKNOWN if model.IsUnknown(i) else _CONTROL if model.IsControl(i) else _BYTE if model.IsByte(i) else _NORMAL
        for i in ids
    ]
    end = model.eos_id()
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.IdToPiece(i) for i in ids],
        "tokenizer.ggml.scores": [model.GetScore(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.padding_token_id": end if model.pad_id() < 0 else model.pad_id(),
    }


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    convert(*map(Path, sys.argv[1:]))

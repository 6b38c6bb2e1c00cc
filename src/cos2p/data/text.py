"""Texts to token ids, remembered on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import safetensors.torch
import torch

from cos2p.data import paths
from cos2p.data.cachedir import key_of, recall, remember
from cos2p.data.config import DataConfig
from cos2p.data.ragged import Ragged, from_flat
from cos2p.errors import DataError

# The byte tokenizer: three special ids, then the 256 bytes.
BYTE_PAD, BYTE_START, BYTE_END, BYTE_FIRST = 0, 1, 2, 3
BYTE_VOCABULARY = BYTE_FIRST + 256

_PAD_TOKENS = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>", "</s>", "<unk>")
"""Models without a padding token are commonly padded with the end of text: it is hidden by its position."""


@dataclass(frozen=True, eq=False)
class Tokens:
    ids: Ragged
    vocabulary: int
    """How many different ids there are."""


def tokenize(texts: list[str], config: DataConfig) -> Tokens:
    """Token ids, at most `config.max_tokens` of each text: longer texts are cut."""
    tokenizer = _tokenizer(config)
    name = key_of(tokenizer.identity, str(config.max_tokens), *texts) + ".safetensors"
    known = recall("tokens", name) if config.token_cache else None
    if known is not None:
        stored = safetensors.torch.load(known)
        values, lengths = stored["ids"], stored["lengths"]
    else:
        ids = tokenizer.encode(texts)
        lengths = torch.tensor([len(own) for own in ids], dtype=torch.int64)
        values = torch.from_numpy(np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(lengths.sum())))
        if config.token_cache:
            remember("tokens", name, safetensors.torch.save({"ids": values, "lengths": lengths}))
    return Tokens(from_flat(values, lengths, tokenizer.pad_id, config.max_tokens), tokenizer.vocabulary)


@dataclass(frozen=True, eq=False)
class _Encoder:
    encode: Callable[[list[str]], list[list[int]]]
    pad_id: int
    vocabulary: int
    identity: str
    """Another tokenizer has another one."""


def _tokenizer(config: DataConfig) -> _Encoder:
    if config.tokenizer == "bytes":

        def encode_bytes(texts: list[str]) -> list[list[int]]:
            return [_bytes(text, config.max_tokens) for text in texts]

        return _Encoder(encode_bytes, BYTE_PAD, BYTE_VOCABULARY, "bytes")
    import tokenizers

    file = paths.find(config.tokenizer)
    try:
        content = file.read_text(encoding="utf-8")
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception for a file it cannot read
        raise DataError(f"{file} is not a tokenizer.json ({error}); name one in data.tokenizer") from error
    padding = tokenizer.padding
    pad_ids = [padding["pad_id"]] if padding else [tokenizer.token_to_id(token) for token in _PAD_TOKENS]
    pad_id = next((i for i in pad_ids if i is not None), None)
    if pad_id is None:
        raise DataError(f"{file} has no padding token; add one of {', '.join(_PAD_TOKENS)} to it")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=config.max_tokens)

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in tokenizer.encode_batch(texts)]

    return _Encoder(encode, pad_id, tokenizer.get_vocab_size(), f"{tokenizers.__version__} {key_of(content)}")


def _bytes(text: str, max_tokens: int) -> list[int]:
    ids = [BYTE_START, *(byte + BYTE_FIRST for byte in text.encode()[:max_tokens]), BYTE_END]
    return ids[:max_tokens]

"""Texts to token ids of one length, padded on the right.

Shapes: N texts, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cos2p.data import paths
from cos2p.data.config import DataConfig
from cos2p.data.examples import IGNORE
from cos2p.errors import DataError

# The byte tokenizer: three special ids, then the 256 bytes.
BYTE_PAD, BYTE_START, BYTE_END, BYTE_FIRST = 0, 1, 2, 3
BYTE_VOCABULARY = BYTE_FIRST + 256

_PAD_TOKENS = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>", "</s>", "<unk>")
"""Models without a padding token are commonly padded with the end of text: it is hidden by its position."""


@dataclass(frozen=True, eq=False)
class Tokens:
    ids: torch.Tensor
    """(N, T), int64."""
    lengths: torch.Tensor
    """(N,): how many of them are not padding."""
    pad_id: int
    vocabulary: int

    def next_tokens(self) -> torch.Tensor:
        """(N, T): at t the id at t + 1; ignored from the last real token on."""
        labels_NT = torch.full_like(self.ids, IGNORE)
        labels_NT[:, :-1] = self.ids[:, 1:]
        positions_T = torch.arange(self.ids.shape[1])
        return labels_NT.masked_fill_(positions_T >= self.lengths[:, None] - 1, IGNORE)


def tokenize(texts: list[str], config: DataConfig) -> Tokens:
    """Token ids of `config.max_tokens` each; longer texts are cut."""
    if config.tokenizer == "bytes":
        return _pad([_bytes(text, config.max_tokens) for text in texts], config, BYTE_PAD, BYTE_VOCABULARY)
    from tokenizers import Tokenizer

    file = paths.find(config.tokenizer)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for a file it cannot read
        raise DataError(f"{file} is not a tokenizer.json ({error}); name one in data.tokenizer") from error
    padding = tokenizer.padding
    pad_ids = [padding["pad_id"]] if padding else [tokenizer.token_to_id(token) for token in _PAD_TOKENS]
    pad_id = next((i for i in pad_ids if i is not None), None)
    if pad_id is None:
        raise DataError(f"{file} has no padding token; add one of {', '.join(_PAD_TOKENS)} to it")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=config.max_tokens)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    return _pad(ids, config, pad_id, tokenizer.get_vocab_size())


def _bytes(text: str, max_tokens: int) -> list[int]:
    ids = [BYTE_START, *(byte + BYTE_FIRST for byte in text.encode()[:max_tokens]), BYTE_END]
    return ids[:max_tokens]


def _pad(ids: list[list[int]], config: DataConfig, pad_id: int, vocabulary: int) -> Tokens:
    padded = np.full((len(ids), config.max_tokens), pad_id, dtype=np.int64)
    for row, own in zip(padded, ids, strict=True):
        row[: len(own)] = own
    lengths = torch.tensor([len(own) for own in ids], dtype=torch.int64)
    return Tokens(torch.from_numpy(padded), lengths, pad_id, vocabulary)

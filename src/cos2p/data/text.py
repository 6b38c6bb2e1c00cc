"""Texts to token ids, remembered on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from cos2p.data.cachedir import key_of, recall, remember
from cos2p.data.config import DataConfig
from cos2p.data.ragged import Ragged, from_flat
from cos2p.data.select import IntArray
from cos2p.data.tokenizers import Encoder, make_encoder

_PIECE = 1 << 16
"""Characters of a long text that are tokenised at once, cut at the ends of lines."""


@dataclass(frozen=True, eq=False)
class Tokens:
    ids: Ragged
    vocabulary: int
    """How many different ids there are."""

    def subset(self, rows: IntArray) -> Tokens:
        return Tokens(self.ids.subset(torch.from_numpy(rows)), self.vocabulary)


def tokenize(texts: list[str], config: DataConfig) -> Tokens:
    """Token ids, at most `config.max_tokens` of each text: longer texts are cut."""
    encoder = make_encoder(config)
    name = key_of(encoder.identity, str(config.max_tokens), *texts)
    values, lengths = _once(name, lambda: flat(encoder.encode(texts)), config)
    return Tokens(from_flat(values, lengths, encoder.pad_id, config.max_tokens), encoder.vocabulary)


def pack(documents: list[str], config: DataConfig) -> tuple[Tokens, IntArray]:
    """Long texts as rows of `config.max_tokens`, the last of each shorter; also the number of each row's text.

    The rows of a text overlap by one token, so that every token but the first is predicted once.
    """
    encoder = make_encoder(config)
    name = key_of(encoder.identity, "packed", *documents)
    values, lengths = _once(name, lambda: flat([_whole(text, encoder) for text in documents]), config)
    ends = lengths.cumsum(0)
    starts, sizes, owners = [], [], []
    for number, (end, length) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
        own = torch.arange(end - length, max(end - 1, end - length + 1), config.max_tokens - 1)
        starts.append(own)
        sizes.append((end - own).clamp_max(config.max_tokens))
        owners += [number] * len(own)
    ids = Ragged(values, torch.cat(starts), torch.cat(sizes), encoder.pad_id, config.max_tokens)
    return Tokens(ids, encoder.vocabulary), np.asarray(owners, dtype=np.int64)


def _whole(text: str, encoder: Encoder) -> list[int]:
    before, after = encoder.around
    return [*before, *chain.from_iterable(map(encoder.encode_piece, _pieces(text))), *after]


def _pieces(text: str) -> Iterator[str]:
    piece: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        size += len(line)
        if size >= _PIECE:
            yield "".join(piece)
            piece, size = [], 0
    if piece:
        yield "".join(piece)


def flat(ids: list[list[int]]) -> tuple[Tensor, Tensor]:
    """All ids in a row, and how many belong to each text."""
    lengths = torch.tensor([len(own) for own in ids], dtype=torch.int64)
    values = np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=int(lengths.sum()))
    return torch.from_numpy(values), lengths


def _once(name: str, compute: Callable[[], tuple[Tensor, Tensor]], config: DataConfig) -> tuple[Tensor, Tensor]:
    """What was computed under this name before, or now."""
    if not config.token_cache:
        return compute()
    known = recall("tokens", f"{name}.safetensors")
    if known is not None:
        stored = safetensors.torch.load(known)
        return stored["ids"], stored["lengths"]
    values, lengths = compute()
    remember("tokens", f"{name}.safetensors", safetensors.torch.save({"ids": values, "lengths": lengths}))
    return values, lengths

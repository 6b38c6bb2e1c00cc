"""Texts to token ids: single texts, packed text files, prompts with their answers. Ids are cached on disk."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from cos2p.data import paths
from cos2p.data.chat import PLAIN, ChatTemplate, chat_template
from cos2p.data.config import DataConfig
from cos2p.data.paths import key_of, recall, remember
from cos2p.data.ragged import Ragged, Tokens, from_flat
from cos2p.data.raw import Raw, RawSplits, row_words
from cos2p.data.select import Groups, IntArray
from cos2p.data.tokenizers import Encoder, make_encoder
from cos2p.errors import DataError

_PIECE = 1 << 16
"""Characters of a long text that are tokenised at once, cut at the ends of lines."""


def tokenize(texts: list[str], config: DataConfig) -> Tokens:
    """Token ids, at most `config.max_tokens` of each text: longer texts are cut."""
    encoder = make_encoder(config)
    name = key_of(encoder.identity, str(config.max_tokens), *texts)
    values, lengths = _once(name, lambda: flat(encoder.encode(texts)))
    return Tokens(from_flat(values, lengths, encoder.pad_id, config.max_tokens), encoder.vocabulary)


def pack(documents: list[str], config: DataConfig) -> tuple[Tokens, IntArray]:
    """Long texts as rows of `config.max_tokens`, the last of each shorter; also the number of each row's text.

    The rows of a text overlap by one token, so that every token but the first is predicted once.
    """
    encoder = make_encoder(config)
    name = key_of(encoder.identity, "packed", *documents)
    values, lengths = _once(name, lambda: flat([_whole(text, encoder) for text in documents]))
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


def _once(name: str, compute: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The values computed under this name before, or now."""
    known = recall("tokens", f"{name}.safetensors")
    if known is not None:
        stored = safetensors.torch.load(known)
        return stored["ids"], stored["lengths"]
    values, lengths = compute()
    remember("tokens", f"{name}.safetensors", safetensors.torch.save({"ids": values, "lengths": lengths}))
    return values, lengths


# ---------------------------------------------------------------- plain text files


def read_text(config: DataConfig) -> RawSplits:
    """Text files for language modelling, packed into sequences of one length."""
    return RawSplits.of(config, lambda name: _text_file_split(name, config))


def _text_file_split(name: str, config: DataConfig) -> Raw:
    files = paths.find_all(config.path, name)
    tokens, owners = pack([_content(file) for file in files], config)
    # A file is its sequences' natural owner: an author, a speaker.
    groups = Groups.of([files[number].name for number in owners.tolist()])
    return Raw(where=paths.listed(files), count=len(owners), labels=None, tokens=tokens, groups=groups)


def _content(file: Path) -> str:
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text in UTF-8 ({error})") from error
    if not text.strip():
        raise DataError(f"{file} is empty; take it out of data.train, data.validation or data.test")
    return text


# ---------------------------------------------------------------- prompts with answers


def tokenize_answers(texts: list[str], answers: list[str], config: DataConfig) -> Tokens:
    """Token ids of `config.prompt` around each text with its answer, at most `config.max_tokens`: what is too long
    loses its beginning, never its answer."""
    encoder = make_encoder(config)
    found = [
        _answered(config.prompt.replace("{text}", text), answer, encoder, config.max_tokens)
        for text, answer in zip(texts, answers, strict=True)
    ]
    values, lengths = flat([ids for ids, _ in found])
    ids = from_flat(values, lengths, encoder.pad_id, config.max_tokens)
    return Tokens(replace(ids, answers=torch.tensor([at for _, at in found])), encoder.vocabulary)


def tokenize_chats(chats: list[Any], config: DataConfig, where: str, rows: IntArray) -> Tokens:
    """Token ids of each chat as its template writes it, at most `config.max_tokens`: what is too long loses its
    beginning, never the last answer. All that the assistant says is to be predicted."""
    encoder, template = make_encoder(config), template_for(config)
    found = []
    for row, messages in zip(rows.tolist(), chats, strict=True):
        try:
            found.append(_chat(template.turns(messages), encoder, config.max_tokens))
        except DataError as error:
            raise DataError(f"{where}, {row_words(where, row)}: {error}") from None
    values, lengths = flat([ids for ids, _, _ in found])
    marks = torch.tensor(list(chain.from_iterable(own for _, own, _ in found)), dtype=torch.bool)
    ids = from_flat(values, lengths, encoder.pad_id, config.max_tokens)
    last = torch.tensor([at for _, _, at in found])
    return Tokens(replace(ids, answers=last, learned=marks), encoder.vocabulary)


def _chat(pieces: list[tuple[str, bool]], encoder: Encoder, longest: int) -> tuple[list[int], list[bool], int]:
    """Ids, which of them are an answer's, and where the last answer begins.

    Piece by piece, as a model will meet them: it writes behind a prompt that was tokenised by itself.
    """
    ids, marks, last, own = [*encoder.around[0]], [False] * len(encoder.around[0]), 0, list[int]()
    for text, said in pieces:
        own = encoder.encode_piece(text)
        if said:
            _check_writable(text, own, encoder)
            last = len(ids)
        ids += own
        marks += [said] * len(own)
    if encoder.end is not None and encoder.end not in own:
        ids.append(encoder.end)  # a template that ends no turn with a mark of its own
        marks.append(True)
    cut = max(0, len(ids) - longest)
    if cut >= last:
        raise DataError(f"the last answer leaves nothing of the chat before it; raise data.max_tokens, now {longest}")
    return ids[cut:], marks[cut:], last - cut


def template_for(config: DataConfig) -> ChatTemplate:
    """The chat template next to the config's tokenizer, or a plain one."""
    named = config.tokenizer not in ("", "auto", "bytes")
    file = paths.find(config.tokenizer) if named else None
    own = chat_template(file if file.is_dir() else file.parent) if file is not None else None
    return own or ChatTemplate(PLAIN)


def _check_writable(answer: str, ids: list[int], encoder: Encoder) -> None:
    if not ids or encoder.unknown in ids:
        what = "has a sign that it does not know" if ids else "has no token there"
        raise DataError(f"the tokenizer cannot write the answer {answer.strip()[:40]!r}: it {what}")


def choices(names: tuple[str, ...], config: DataConfig) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The names of classes with the tokens that they have behind a prompt."""
    encoder, prompt = make_encoder(config), config.prompt.replace("{text}", "")
    ends = len(encoder.around[1]) or int(encoder.end is not None)
    found = []
    for name in names:
        ids, at = _answered(prompt, name, encoder, config.max_tokens)
        found.append((name, tuple(ids[at : len(ids) - ends])))
    return tuple(found)


def _answered(prompt: str, answer: str, encoder: Encoder, longest: int) -> tuple[list[int], int]:
    """The ids, and the place of the answer's first one.

    Prompt and answer are read as one text, as a reader of the whole would: the answer begins where that differs from
    the prompt alone.
    """
    before, after = encoder.around
    after = after or (() if encoder.end is None else (encoder.end,))  # so that a model learns to stop
    whole, alone = encoder.encode_piece(f"{prompt} {answer}"), encoder.encode_piece(prompt)
    _check_writable(answer, encoder.encode_piece(answer), encoder)
    begins = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(whole, alone, strict=False))))
    room = longest - len(before) - len(after)
    cut = max(0, len(whole) - room)
    if cut >= begins and not (cut == 0 and before):
        raise DataError(
            f"the answer {answer[:40]!r} has {len(whole) - begins} tokens and leaves nothing of the text before it; "
            f"raise data.max_tokens, now {longest}"
        )
    return [*before, *whole[cut:], *after], len(before) + begins - cut

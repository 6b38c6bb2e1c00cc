"""Texts with answers: a prompt, the answer behind it, and where in the tokens it begins."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import torch

from cos2p.data.config import DataConfig
from cos2p.data.ragged import from_flat
from cos2p.data.text import Tokens, flat
from cos2p.data.tokenizers import Encoder, make_encoder
from cos2p.errors import DataError


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


def _answered(prompt: str, answer: str, encoder: Encoder, longest: int) -> tuple[list[int], int]:
    """The ids, and the place of the answer's first one.

    Prompt and answer are read as one text, as a reader of the whole would: the answer begins where that differs from
    the prompt alone.
    """
    before, after = encoder.around
    whole, alone = encoder.encode_piece(f"{prompt} {answer}"), encoder.encode_piece(prompt)
    begins = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(whole, alone, strict=False))))
    room = longest - len(before) - len(after)
    cut = max(0, len(whole) - room)
    if cut >= begins and not (cut == 0 and before):
        raise DataError(
            f"the answer {answer[:40]!r} has {len(whole) - begins} tokens and leaves nothing of the text before it; "
            f"raise data.max_tokens, now {longest}"
        )
    return [*before, *whole[cut:], *after], len(before) + begins - cut

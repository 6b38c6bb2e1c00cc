"""Answers of a language model, scored as users would: written greedily and compared after normalising; and, where they
are names of classes, by which of the names is the likeliest behind the prompt."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cos2p.data.examples import Examples
from cos2p.data.ragged import Ragged
from cos2p.models.decoding import Decoder, write
from cos2p.models.transformer import ElasticTransformer

BATCH = 16
LONGEST = 256
"""Tokens of an answer that is written, at most."""

OnProgress = Callable[[int, int], None]


def normalized(text: str, words: int = 0) -> str:
    """The first line in small letters, without signs around its words; of it the first `words`, if that is not 0.

    >>> normalized(" Positive. The company\\n...", words=1)
    'positive'
    """
    lines = text.strip().splitlines() or [""]
    found = [word.strip(string.punctuation) for word in lines[0].casefold().split()]
    kept = [word for word in found if word]
    return " ".join(kept[:words] if words else kept)


@torch.no_grad()
def answer_scores(
    model: ElasticTransformer,
    examples: Examples,
    decode: Callable[[list[int]], str],
    end: int | None,
    exit: int = 0,
    on_progress: OnProgress = lambda done, all: None,
) -> dict[str, float]:
    """`generated`: the share whose answer, written greedily, is the right one; with choices also `likeliest`: the
    share whose right choice is the likeliest. As many words of what is written count as the longest choice has."""
    ids = examples.inputs
    if not isinstance(ids, Ragged) or ids.answers is None or not len(ids):
        return {}
    model.eval()
    choices = examples.choices
    words = max((len(normalized(name).split()) for name, _ in choices), default=0)
    ends = frozenset(() if end is None else (end,))
    limit = min(LONGEST, max([int((ids.lengths - ids.answers).max())] + [len(own) for _, own in choices]) + 2)
    written = likeliest = done = 0
    for rows in ids.answers.argsort(stable=True).split(BATCH):
        prompts, answers = ids.prompts(rows)
        decoder = Decoder(model, exit)
        first_BV = decoder.read(prompts)
        if choices:
            best = likelihoods(decoder, first_BV, [own for _, own in choices]).argmax(1)
            likeliest += int((best == examples.labels[rows]).sum())
        texts: list[list[int]] = [[] for _ in prompts]
        for tokens in write(decoder, first_BV, limit, ends):
            for text, token in zip(texts, tokens, strict=True):
                text += [] if token is None else [token]
        rights = (
            [choices[int(label)][0] for label in examples.labels[rows]]
            if choices
            else [decode([token for token in own if token != end]) for own in answers]
        )
        pairs = zip(texts, rights, strict=True)
        written += sum(normalized(decode(text), words) == normalized(right) for text, right in pairs)
        done += len(rows)
        on_progress(done, len(ids))
    scores = {"generated": written / len(ids)}
    return scores | {"likeliest": likeliest / len(ids)} if choices else scores


def likelihoods(decoder: Decoder, first_BV: Tensor, choices: Sequence[Sequence[int]]) -> Tensor:
    """(B, choices): log probability of every choice behind every prompt, whose next token has the logits `first_BV`."""
    log_BV, found = first_BV.log_softmax(-1), []
    everybody = torch.arange(len(first_BV))
    for tokens in choices:
        total = log_BV[:, tokens[0]]
        if len(tokens) > 1:
            rest = torch.tensor(tokens)
            behind = decoder.branch(everybody).go_on(rest[:-1].expand(len(first_BV), -1)).log_softmax(-1)
            total = total + behind.gather(2, rest[1:].expand(len(first_BV), -1)[..., None]).sum((1, 2))
        found.append(total)
    return torch.stack(found, 1)

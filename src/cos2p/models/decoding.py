"""A language model writes: the prompts pass once, then token after token, with the keys and values of all before.

Shapes: B texts, T new tokens, S tokens so far, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cos2p.models.context import Context, KeyValues, rotary_at
from cos2p.models.transformer import ElasticTransformer


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = 0.0
    """0: the likeliest token; above 0: drawn, the flatter the higher."""
    top_p: float = 1.0
    """Drawn from the likeliest tokens that together have this share."""
    seed: int = 0
    """The first text of a batch has it, the next has the next: a text does not depend on what is written next to it."""


GREEDY = Sampling()


class Decoder:
    """Some texts of a batch, and what the model has computed of them. It has to hold its embeddings and all blocks."""

    def __init__(self, model: ElasticTransformer, exit: int = 0) -> None:
        self.model, self.exit = model, exit or model.spec.exits[-1]
        self.past = KeyValues()
        self.seen = torch.zeros(0, 0, dtype=torch.bool)
        """(B, S): which of the tokens so far are real: prompts of unequal lengths are filled up on the left."""

    @torch.no_grad()
    def read(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """(B, V): logits of the token behind each prompt."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(own)) + list(own) for own in prompts])
        real = torch.tensor([[False] * (longest - len(own)) + [True] * len(own) for own in prompts])
        return self._pass(ids, real)[:, -1]

    @torch.no_grad()
    def go_on(self, tokens_BT: Tensor) -> Tensor:
        """(B, T, V): logits of the token behind each of these."""
        return self._pass(tokens_BT, torch.ones_like(tokens_BT, dtype=torch.bool), every=True)

    def branch(self, rows: Tensor) -> Decoder:
        """These texts in a batch of their own."""
        other = Decoder(self.model, self.exit)
        other.past, other.seen = self.past.copies(rows), self.seen[rows]
        return other

    def _pass(self, ids_BT: Tensor, real_BT: Tensor, every: bool = False) -> Tensor:
        model, before = self.model, self.seen.shape[1]
        self.seen = torch.cat((self.seen.view(len(ids_BT), before), real_BT), 1)
        positions = (self.seen.cumsum(1) - 1).clamp_min(0)[:, before:]
        width = ids_BT.shape[1]
        order = torch.arange(before + width)
        mask = self.seen[:, None, None, :] & (order <= order[before:, None])
        mask |= (order == order[before:, None]) & ~self.seen[:, None, None, :]  # what is filled up sees itself: no 0/0
        cos, sin = rotary_at(model.config, positions)
        device = model.device
        context = Context(mask.to(device), (cos[:, None].to(device), sin[:, None].to(device)), self.past)
        x_BTD = model.run_embedding(ids_BT.to(device))
        for i in range(self.exit):
            x_BTD = model.run_block(i, x_BTD, context)
        return model.run_exit(self.exit, x_BTD if every else x_BTD[:, -1:], context).float().cpu()


def write(
    decoder: Decoder,
    logits: Tensor,
    limit: int,
    ends: frozenset[int] = frozenset(),
    sampling: Sampling = GREEDY,
) -> Iterator[list[int | None]]:
    """From what `decoder.read` gave, token after token of every text; None for one that has ended. Stops when all have,
    or after `limit` tokens."""
    rngs = [torch.Generator().manual_seed(sampling.seed + number) for number in range(len(logits))]
    open_texts = [True] * len(logits)
    for number in range(limit):
        chosen = [choose(own, sampling, rng) for own, rng in zip(logits, rngs, strict=True)]
        open_texts = [going and token not in ends for going, token in zip(open_texts, chosen, strict=True)]
        if not any(open_texts):
            return
        yield [token if going else None for going, token in zip(open_texts, chosen, strict=True)]
        if number + 1 < limit:
            logits = decoder.go_on(torch.tensor(chosen)[:, None])[:, -1]


def choose(logits_V: Tensor, sampling: Sampling, rng: torch.Generator) -> int:
    """The next token.

    >>> choose(torch.tensor([0.0, 2.0, 1.0]), Sampling(), torch.Generator())
    1
    """
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    shares, order = (logits_V / sampling.temperature).softmax(-1).sort(descending=True, stable=True)
    kept = shares.cumsum(-1) - shares < sampling.top_p  # the first one always
    return int(order[torch.multinomial(shares * kept, 1, generator=rng)])

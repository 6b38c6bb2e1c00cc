"""Labels with probabilities for single inputs; of a language model the tokens that may come next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cos2p.data.images import BadImage, Content, decode_many
from cos2p.errors import DataError
from cos2p.inference.inputs import Item
from cos2p.inference.trained import Trained


@dataclass(frozen=True)
class Prediction:
    name: str
    answers: tuple[tuple[str, float], ...] = ()
    """Labels (of a language model: next tokens) with their probabilities, the likeliest first."""
    error: str = ""
    """Why there is no answer."""


def predict(trained: Trained, items: Sequence[Item], top: int = 1, batch: int = 32) -> Iterator[Prediction]:
    """One for each item, in order; what cannot be read has an error in place of answers, and the rest goes on."""
    for start in range(0, len(items), batch):
        part = items[start : start + batch]
        yield from _texts(trained, part, top) if trained.is_text else _images(trained, part, top)


def _images(trained: Trained, items: Sequence[Item], top: int) -> Iterator[Prediction]:
    contents: list[tuple[str, Content]] = []
    for item in items:
        assert not isinstance(item.content, str)
        contents.append((item.name, item.content))
    pixels = [decoded for _, decoded in decode_many(contents, trained.data)]
    good = [torch.tensor(image) for image in pixels if not isinstance(image, BadImage)]
    answers = iter(_answers(trained, trained.outputs(trained.data.normalize(torch.stack(good))), top) if good else [])
    for item, image in zip(items, pixels, strict=True):
        yield (
            Prediction(item.name, error=image.reason)
            if isinstance(image, BadImage)
            else Prediction(item.name, next(answers))
        )


def _texts(trained: Trained, items: Sequence[Item], top: int) -> Iterator[Prediction]:
    texts = [str(item.content) for item in items]
    ids = trained.encoder.encode(texts)
    ids = [_open_end(row, trained) for row in ids]
    outside = max((max(row, default=0) for row in ids), default=0)
    if outside >= trained.config.vocab:
        raise DataError(
            f"{trained.where} has {trained.config.vocab} token rows, but its tokenizer gives token {outside}; "
            "put the tokenizer.json it was trained with beside it"
        )
    longest = max(map(len, ids))
    padded = torch.tensor([row + [trained.config.pad_token] * (longest - len(row)) for row in ids])
    outputs = trained.outputs(padded)
    if trained.generates:
        outputs = outputs[torch.arange(len(ids)), torch.tensor([len(row) - 1 for row in ids])]
    for item, answers in zip(items, _answers(trained, outputs, top), strict=True):
        yield Prediction(item.name, answers)


def _open_end(ids: list[int], trained: Trained) -> list[int]:
    """A language model goes on with a text: the mark of its end is taken off."""
    after = list(trained.encoder.around[1])
    return ids[: -len(after)] if trained.generates and after and ids[-len(after) :] == after else ids


def _answers(trained: Trained, outputs_BC: Tensor, top: int) -> list[tuple[tuple[str, float], ...]]:
    shares = outputs_BC.softmax(-1)
    values, places = shares.topk(min(top, shares.shape[1]), dim=1)
    return [
        tuple((_label(trained, place), share) for share, place in zip(*row, strict=True))
        for row in zip(values.tolist(), places.tolist(), strict=True)
    ]


def _label(trained: Trained, number: int) -> str:
    if trained.generates:
        return trained.encoder.decode([number])
    return trained.classes[number] if number < len(trained.classes) else str(number)

"""Texts that a language model writes: token after token, from prompts or chats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cos2p.data.chat import PLAIN, ChatTemplate, chat_template, check_messages
from cos2p.errors import ConfigError, DataError
from cos2p.inference.sources import Trained
from cos2p.models.decoding import GREEDY, Decoder, Sampling, write

Prompt = str | list[dict[str, Any]]
"""A text to go on with, or a chat."""


@dataclass
class Written:
    """The text behind a prompt, so far."""

    prompt: Prompt
    text: str = ""
    tokens: int = 0
    ended: bool = False
    """By the model itself; False: by the limit, or by whoever stopped it."""


def generate(
    trained: Trained,
    prompts: Sequence[Prompt],
    limit: int = 128,
    sampling: Sampling = GREEDY,
    on_text: Callable[[int, str], None] = lambda number, piece: None,
) -> Iterator[list[Written]]:
    """All prompts together: after every token what was written so far, the same list each time.

    `on_text` gets every new piece of a text as soon as it is whole, with the number of its prompt.
    """
    if not trained.generates:
        raise ConfigError(f"{trained.where} is a classifier, which writes nothing; ask it with cos2p predict")
    encoder, room = trained.encoder, trained.config.max_tokens
    ids = [_prompt_ids(trained, prompt, room) for prompt in prompts]
    limits = [min(limit, room - len(own)) for own in ids]
    ends = frozenset(() if encoder.end is None else (encoder.end,))
    found, tokens = [Written(prompt) for prompt in prompts], [list[int]() for _ in prompts]
    decoder = Decoder(trained.model, trained.exit)
    yield found
    for chosen in write(decoder, decoder.read(ids), max(limits), ends, sampling):
        for number, (own, token) in enumerate(zip(found, chosen, strict=True)):
            if own.tokens == limits[number]:
                continue
            if token is None:
                own.ended = True
                continue
            tokens[number].append(token)
            text = _behind(encoder.decode, ids[number], tokens[number])
            own.tokens += 1
            if not text.endswith("\ufffd"):  # a letter of several tokens is not whole yet
                on_text(number, text[len(own.text) :])
                own.text = text
        yield found
        if all(own.ended or own.tokens == most for own, most in zip(found, limits, strict=True)):
            break
    for own, most in zip(found, limits, strict=True):
        own.ended = own.ended or own.tokens < most


def check_prompts(trained: Trained, prompts: Sequence[Prompt]) -> None:
    """DataError for the first that cannot be written behind, by its number in a file."""
    for number, prompt in enumerate(prompts, 1):
        try:
            _prompt_ids(trained, prompt, trained.config.max_tokens)
        except DataError as error:
            raise DataError(f"prompt {number}: {error}" if len(prompts) > 1 else str(error)) from None


def _behind(decode: Callable[[list[int]], str], before: list[int], after: list[int]) -> str:
    """The text of the tokens as it stands behind the prompt: alone, some would lose the space before them."""
    last = before[-4:]
    return decode([*last, *after])[len(decode(last)) :]


def _prompt_ids(trained: Trained, prompt: Prompt, room: int) -> list[int]:
    encoder = trained.encoder
    text = prompt
    if not isinstance(text, str):
        check_messages(text)
        text = template_of(trained).render(text, answer_next=True)
    ids = [*encoder.around[0], *encoder.encode_piece(text)]
    if not ids:
        raise DataError("the prompt is empty, and this tokenizer has no mark to begin with; write something")
    if len(ids) >= room:
        raise DataError(f"the prompt has {len(ids)} tokens; {trained.where} has {room} positions, its answer included")
    trained.check_tokens(ids)
    return ids


def template_of(trained: Trained) -> ChatTemplate:
    """The model's own chat template, or a plain one."""
    folders = [Path(trained.where), Path(trained.where) / "model", Path(trained.data.tokenizer).parent]
    return next((own for folder in folders if (own := chat_template(folder)) is not None), ChatTemplate(PLAIN))


def read_prompts(file: Path) -> list[Prompt]:
    """A text a line; or JSON lines with `prompt` or `messages`."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text in UTF-8 ({error})") from None
    if file.suffix not in (".jsonl", ".json", ".ndjson"):
        found: list[Prompt] = [line for line in lines if line.strip()]
    else:
        found = list(_objects(file, lines))
    if not found:
        raise DataError(f"{file} holds no prompts; write one a line")
    return found


def _objects(file: Path, lines: Iterable[str]) -> Iterator[Prompt]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file} line {number} is not JSON ({error})") from None
        given = values.get("prompt", values.get("messages")) if isinstance(values, dict) else values
        if not isinstance(given, str | list):
            raise DataError(f"{file} line {number} has neither a `prompt` nor `messages`")
        yield given

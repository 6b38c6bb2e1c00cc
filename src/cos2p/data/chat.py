"""Chats: a list of messages with roles, written as one text by the template that the model was trained with."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cos2p.errors import DataError

PLAIN = (
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""For models that bring none: a line each, with the role in front."""

Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template as Hugging Face has them, and the marks that it may use."""

    source: str
    bos_token: str = ""
    eos_token: str = ""

    def render(self, messages: Sequence[Message], answer_next: bool = False) -> str:
        """The chat as a text; `answer_next`: up to where the assistant's next words go."""
        from jinja2 import TemplateError

        try:
            text: str = _compiled(self.source).render(
                messages=list(messages),
                add_generation_prompt=answer_next,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
            )
        except TemplateError as error:
            raise DataError(f"the chat template refuses a chat: {str(error).splitlines()[0]}") from None
        return text.removeprefix(self.bos_token) if self.bos_token else text  # the tokenizer puts its own in front

    def turns(self, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        """The text in pieces, and which of them the assistant says; together they are the whole chat."""
        check_messages(messages)
        pieces: list[tuple[str, bool]] = []
        done = ""
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, after = self.render(messages[:number], answer_next=True), self.render(messages[: number + 1])
            if not before.startswith(done) or not after.startswith(before) or message["content"].strip() not in after:
                raise DataError(
                    "the chat template has no place for an answer: what it writes of a chat does not go on with "
                    "the assistant's words; put another one next to the tokenizer, as chat_template.jinja"
                )
            pieces += [(before[len(done) :], False), (after[len(before) :], True)]
            done = after
        if not pieces:
            raise DataError("a chat has no message of the role 'assistant', so there is nothing to learn")
        self._says_all(messages, self.render(messages))
        return pieces

    def _says_all(self, messages: Sequence[Message], text: str) -> None:
        for message in messages:
            if message["content"].strip() not in text:
                raise DataError(
                    f"the chat template does not know the role {message['role']!r}; "
                    "take such messages out, or put another template next to the tokenizer, as chat_template.jinja"
                )


def check_messages(messages: Any) -> None:
    """DataError unless it is a list of objects with `role` and `content`."""
    right = isinstance(messages, list) and all(
        isinstance(own, dict) and isinstance(own.get("role"), str) and isinstance(own.get("content"), str)
        for own in messages
    )
    if not right or not messages:
        raise DataError("a chat is a list of messages, each with a role and a content, both texts")


_GENERATION = re.compile(r"{%(-?)\s*(?:end)?generation\s*(-?)%}")
"""Marks of what the assistant says, for libraries that read it from there; they write nothing."""


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(reason: str) -> None:
        raise TemplateError(reason)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    source = _GENERATION.sub(r"{#\1 \2#}", source)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise DataError(f"the chat template is not one: {error}") from None


def chat_template(folder: Path) -> ChatTemplate | None:
    """That of a Hugging Face folder; None if it has none."""
    values: dict[str, Any] = {}
    try:
        read = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        values = read if isinstance(read, dict) else {}
    except (OSError, ValueError):
        pass
    source = values.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(source, list):  # several, by name
        named = {own.get("name"): own.get("template") for own in source if isinstance(own, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    marks = {name: values.get(name) or "" for name in ("bos_token", "eos_token")}
    return ChatTemplate(source, *(mark["content"] if isinstance(mark, dict) else str(mark) for mark in marks.values()))

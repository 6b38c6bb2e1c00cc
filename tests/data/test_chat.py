"""Chats as a template writes them: what the assistant says is learned, every turn of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cos2p.data import DataConfig, load
from cos2p.data.chat import PLAIN, ChatTemplate
from cos2p.data.examples import IGNORE
from cos2p.data.tokenizers import byte_tokenizer
from cos2p.errors import DataError

CHATML = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '</>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
CHAT = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "+1?"},
    {"role": "assistant", "content": "5"},
]


def config(folder: Path, chats: list[object], template: str = CHATML, **fields: object) -> DataConfig:
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer.json").write_text(byte_tokenizer())
    (folder / "train.jsonl").write_text("".join(json.dumps({"messages": own}) + "\n" for own in chats))
    values = {"source": "jsonl", "path": str(folder), "train": "train.jsonl", "messages_column": "messages"}
    more = {"task": "instruction", "tokenizer": str(folder), "validation_fraction": 0}
    return DataConfig.model_validate({**values, **more, **fields})


def spoken(row: torch.Tensor) -> str:
    return bytes(int(i) - 3 for i in row if i >= 3).decode()


def test_every_turn_of_the_assistant_is_learned_and_nothing_else(tmp_path: Path) -> None:
    train = load(config(tmp_path, [CHAT] * 5), seed=0).train
    inputs, following = train.batch(torch.tensor([0]))
    assert spoken(inputs[0]) == "<user>2+2?</><assistant>4</><user>+1?</><assistant>5</>"
    assert spoken(following[0][following[0] != IGNORE]) == "4</>5</>"
    prompts, answers = train.inputs.prompts(torch.tensor([0]))  # type: ignore[union-attr]
    assert spoken(torch.tensor(prompts[0])).endswith("<user>+1?</><assistant>")
    assert spoken(torch.tensor(answers[0])) == "5</>"


def test_an_answer_ends_with_the_end_of_text_where_the_template_has_no_mark_for_it(tmp_path: Path) -> None:
    train = load(config(tmp_path, [CHAT] * 5, PLAIN), seed=0).train
    inputs, following = train.batch(torch.tensor([0]))
    assert spoken(inputs[0]) == "User: 2+2?\nAssistant: 4\nUser: +1?\nAssistant: 5\n"
    learned = following[0][following[0] != IGNORE]
    assert (spoken(learned), int(learned[-1])) == (" 4\n 5\n", 2)


def test_templates_may_say_what_those_of_hugging_face_say() -> None:
    source = (
        "{% for m in messages %}\n{% if loop.index > 2 %}{% break %}{% endif %}{{ m | tojson }}"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\n{%- endgeneration %}{% endif %}{% endfor %}"
    )
    chat = [{"role": "user", "content": "schön"}, {"role": "assistant", "content": "ja"}, *CHAT]
    assert ChatTemplate(source).render(chat) == (
        '{"role": "user", "content": "schön"}{"role": "assistant", "content": "ja"}ja'
    )


def test_a_long_chat_loses_its_beginning_and_never_its_last_answer(tmp_path: Path) -> None:
    train = load(config(tmp_path, [CHAT] * 5, max_tokens=20), seed=0).train
    _, following = train.batch(torch.tensor([0]))
    assert spoken(following[0][following[0] != IGNORE]) == "5</>"
    with pytest.raises(
        DataError, match=r"train\.jsonl, line 1: the last answer leaves nothing .* raise data\.max_tokens, now 4"
    ):
        load(config(tmp_path, [CHAT] * 5, max_tokens=4), seed=0)


@pytest.mark.parametrize(
    ("chat", "template", "words"),
    [
        (CHAT, "{% for m in messages %}{{ m['content'] }}{% endfor %}!", "no place for an answer"),
        ([{"role": "robot", "content": "beep"}, *CHAT], None, "does not know the role 'robot'"),
        ([{"role": "robot", "content": "beep"}, *CHAT], "{{ raise_exception('no robots') }}", "no robots"),
        (CHAT[:1], CHATML, "no message of the role 'assistant'"),
        ([{"role": "user"}], CHATML, "each with a role and a content"),
        ("hello", CHATML, "a chat is a list of messages"),
        (CHAT, "{% for %}", "the chat template is not one"),
    ],
)
def test_chats_that_cannot_be_learned_are_named_with_their_row(
    tmp_path: Path, chat: object, template: str | None, words: str
) -> None:
    known = "{% for m in messages %}{% if m['role'] in ['user', 'assistant'] %}{{ '<' + m['role'] + '>' + m['content'] "
    known += "}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
    with pytest.raises(DataError, match=words):
        load(config(tmp_path, [chat] * 5, template or known), seed=0)


def test_a_template_cannot_reach_what_lies_outside() -> None:
    with pytest.raises(DataError, match="refuses a chat"):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}").render(CHAT)


def test_the_plain_template_has_a_line_for_each_message() -> None:
    assert ChatTemplate(PLAIN).render(CHAT[:1], answer_next=True) == "User: 2+2?\nAssistant:"


def test_messages_stand_in_the_place_of_texts() -> None:
    with pytest.raises(ValueError, match="in the place of `text_column`"):
        DataConfig(source="jsonl", train="x", task="instruction", messages_column="m", text_column="t")

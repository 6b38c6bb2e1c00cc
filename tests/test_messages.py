from __future__ import annotations

import json
import struct
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import UpdateRefused
from cos2p.messages import Order, Task, Update, envelope, tensor_bytes
from cos2p.messages.envelope import DTYPES
from cos2p.messages.packing import pack
from cos2p.methods import make_contract
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.server.update_reader import UpdateReader
from cos2p.submodel.slicing import trained_shapes
from tests.aggregation.brute import random_delta
from tests.submodel.strategies import random_weights, submodels
from tests.tiny import VIT, order, read_update, same, task, window

SPEC = SubmodelSpec(1, (BlockKeep((0, 2), (1, 5)),), (2,))


def update(spec: SubmodelSpec = SPEC, config: ModelConfig = VIT, **changes: Any) -> Update:
    plain = Update("pi-1", "pi-1#0", 4, spec, random_delta(config, spec, 0), 10, {"loss": 0.5, "local_samples": 3})
    return replace(plain, **changes)


# ---------------------------------------------------------------- there and back


@settings(max_examples=40)
@given(submodels())
def test_updates_come_back_as_they_were(case: tuple[ModelConfig, SubmodelSpec, int]) -> None:
    config, spec, seed = case
    sent = update(spec, config, extras={"scores": torch.arange(3.0)}, samples=seed + 1)
    got = read_update(sent.to_bytes())
    for what in ("client", "task", "version", "spec", "samples", "report"):
        assert getattr(got, what) == getattr(sent, what)
    assert same(got.delta, sent.delta)
    assert same(got.extras, sent.extras)


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("quotas", [None, (BlockSize(1, 3), BlockSize(0, 10))])
def test_tasks_come_back_as_they_were(precision: Any, quotas: Any) -> None:
    spec = window(VIT, 2, exits=(3, 4))
    sent = task(VIT, random_weights(VIT, 0), order(spec, quotas, precision))
    got = Task.from_bytes(sent.to_bytes())
    assert got.order == sent.order
    assert same(got.weights, sent.weights)
    assert same(got.prefix, sent.prefix)


def as_sent(number: int, weights: Weights) -> tuple[bytes, bytes]:
    """A task's parcel as a worker gets it."""
    packet = task(VIT, weights, order(window(VIT, 2, exits=(3, 4)), attempt=number)).packet()
    return packet.head, b"".join(packet.bodies)


def test_a_task_in_two_pieces_is_the_task() -> None:
    head, body = as_sent(1, random_weights(VIT, 0))
    assert same(Task.unpack(head, body).weights, Task.from_bytes(head + body).weights)


def test_an_order_is_json() -> None:
    given_order = order(window(VIT, 1), (BlockSize(1, 3), BlockSize(2, 2)))
    assert Order.from_dict(json.loads(json.dumps(given_order.to_dict()))) == given_order


def test_tensors_arrive_in_the_same_order_every_time() -> None:
    data = update().to_bytes()
    orders = {tuple(read_update(data).delta) for _ in range(5)}
    assert len(orders) == 1


def test_what_arrives_can_be_written_to() -> None:
    read_update(update().to_bytes()).delta["blocks.1.q.weight"].zero_()


def test_bytes_are_those_of_the_values_and_a_small_header() -> None:
    sent = update()
    numbers = sum(torch.Size(shape).numel() for shape in trained_shapes(VIT, SPEC).values())
    assert tensor_bytes(sent.delta, {"one": torch.zeros(1, dtype=torch.int8)}) == 4 * numbers + 1
    assert 4 * numbers < len(sent.to_bytes()) < 4 * numbers + 3000


# ---------------------------------------------------------------- what is not an update


def packed(meta: object, **tensors: torch.Tensor) -> bytes:
    text = meta if isinstance(meta, str) else json.dumps(meta)
    return safetensors.torch.save(tensors, metadata={"cos2p": text})


def facts(**changes: object) -> dict[str, object]:
    spec = SPEC.to_dict()
    return {"client": "a", "task": "a#0", "version": 0, "spec": spec, "samples": 1, "report": {}, **changes}


def with_header(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


WHOLE = update().to_bytes()
HOSTILE = {
    "nothing": b"",
    "a few bytes": b"\x01\x02\x03",
    "text": b"hello, this is no update at all",
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93.",
    "truncated header": WHOLE[:100],
    "truncated tensors": WHOLE[:-1],
    "longer than it says": WHOLE + b"\x00",
    "a header of 2^63 bytes": struct.pack("<Q", 2**63) + WHOLE[8:],
    "a header of all bytes": struct.pack("<Q", len(WHOLE)) + WHOLE[8:],
    "header is a list": with_header(b"[1, 2]"),
    "header is nested for ever": with_header(b"[" * 100_000 + b"]" * 100_000),
    "header is not text": with_header(b"\xff\xfe{}"),
    "no metadata": safetensors.torch.save({"d/x": torch.zeros(1)}),
    "metadata of someone else": safetensors.torch.save({"d/x": torch.zeros(1)}, metadata={"format": "pt"}),
    "metadata is not JSON": packed("{"),
    "metadata is a list": packed([1]),
    "metadata is nested for ever": packed("[" * 100_000 + "]" * 100_000),
    "a field is missing": packed({"client": "a"}),
    "spec is a word": packed(facts(spec="full")),
    "spec has no window": packed(facts(spec={"frozen": 0})),
    "spec is not hexadecimal": packed(facts(spec={"frozen": 0, "window": [["zz", ""]], "exits": [1]})),
    "version is a word": packed(facts(version="latest")),
    "version is infinite": packed('{"client": "a", "task": "b", "version": Infinity, "spec": {}, "samples": 1}'),
    "samples are infinite": packed(facts(samples=float("inf"))),
    "samples are a table": packed(facts(samples={})),
    "report is a list": packed(facts(report=[[1, 2]])),
    "report is a word": packed(facts(report="fine")),
    "unknown part": packed(facts(), **{"z/x": torch.zeros(1)}),
    "tensor without part": packed(facts(), x=torch.zeros(1)),
    "tensor beyond the end": with_header(
        json.dumps(
            {
                "__metadata__": {"cos2p": json.dumps(facts())},
                "d/x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
            }
        ).encode()
    ),
    "unknown type": with_header(
        json.dumps(
            {
                "__metadata__": {"cos2p": json.dumps(facts())},
                "d/x": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]},
            }
        ).encode(),
        b"\0" * 4,
    ),
}


def let_in(data: bytes) -> None:
    """As the server reads the answer to a task."""
    given_order = order(SPEC)
    reader = UpdateReader(given_order, VIT, make_contract(VIT, given_order))
    reader.read(reader.open(data))


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_what_is_not_an_update_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(UpdateRefused, match=r"not an update: \w+"):
        let_in(data)


@settings(max_examples=200)
@given(st.binary(max_size=200))
@example(b"\0" * 8)
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(UpdateRefused):
        let_in(data)


@settings(max_examples=200)
@given(st.integers(0, 2000), st.integers(0, 255))
def test_a_changed_byte_of_the_header_never_crashes(place: int, value: int) -> None:
    """It is refused, or it still is an answer to the task."""
    data = bytearray(WHOLE)
    data[place % len(data)] = value
    with suppress(UpdateRefused):
        let_in(bytes(data))


# ---------------------------------------------------------------- as safetensors would write it


def test_packed_bytes_are_those_of_safetensors() -> None:
    kinds = (*DTYPES.values(), torch.float32)
    tensors = {f"x/é{n}": torch.arange(6).reshape(2, 3).to(kind) for n, kind in enumerate(kinds)}
    tensors |= {"d/none": torch.zeros(0, 3), "d/one": torch.ones(()), "d/turned": torch.arange(6.0).view(2, 3).T}
    meta = {'quoted "é"': [1, 2.5, None], "back\\slash": "\n"}
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    for _ in range(2):  # the second time with the table that is known
        parts = {label: {n[2:]: t for n, t in tensors.items() if n.startswith(label)} for label in ("x", "d")}
        assert bytes(pack(meta, **parts)) == safetensors.torch.save(whole, metadata={"cos2p": json.dumps(meta)})


def test_tensors_come_out_as_they_went_in() -> None:
    """Each begins where torch would let it begin."""
    tensors = {f"x/{n}": torch.arange(5).to(kind) for n, kind in enumerate(DTYPES.values())}
    tensors |= {"d/none": torch.zeros(0, 3), "d/one": torch.ones(()), "d/matrix": torch.arange(6.0).view(2, 3)}
    parts = {label: {n[2:]: t for n, t in tensors.items() if n.startswith(label)} for label in ("x", "d")}
    opened = envelope.Envelope.open(bytes(pack({"a": 1}, **parts)), 2**20)
    found = {f"{label}/{name}": tensor for label in ("d", "x") for name, tensor in opened.part(label).items()}
    assert list(found) == sorted(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
        assert found[name].is_contiguous()
        assert found[name].data_ptr() % 64 == 0 or not tensor.numel()


def test_a_header_in_another_order_is_read_too() -> None:
    entry = '"d/a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = f'{{{entry},"__metadata__":{{"cos2p":"{{}}"}}}}'
    assert list(envelope.Envelope.open(with_header(header.encode(), bytes(4)), 2**20).entries) == ["d/a"]


@pytest.mark.parametrize("table", ["}x", ',"__metadata__":{"cos2p":"{}"}}', ',"d/a":1}', "]", ',"d/a":{}}'])
def test_a_broken_table_behind_a_plain_beginning_is_refused(table: str) -> None:
    with pytest.raises(UpdateRefused, match="not an update"):
        let_in(with_header(b'{"__metadata__":{"cos2p":"{}"}' + table.encode()))

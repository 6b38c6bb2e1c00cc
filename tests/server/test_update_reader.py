"""Faults that ended a run once: each is refused by name now, and the run goes on."""

from __future__ import annotations

import copy
import json
import struct
from dataclasses import replace
from typing import Any

import pytest
import torch

from cos2p.errors import UpdateRefused
from cos2p.messages import Update
from cos2p.messages.envelope import Forms, TensorForm
from cos2p.methods import build_method, make_contract
from cos2p.models.layout import init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.server.protocol import ClientJoined, Stop
from cos2p.server.server import Server
from cos2p.server.update_reader import REPORT_FIGURES, UpdateReader, kept_report
from cos2p.training.contract import TaskContract
from cos2p.training.settings import LocalSettings
from tests.fuzz.arena import CLIENT, Arena, answer, arena, harm, play
from tests.fuzz.memory import growth
from tests.fuzz.mutations import joined, split
from tests.runtime.played import notes
from tests.tiny import VIT, context, read_update


def refusal(place: Arena, data: bytes) -> str:
    """Why the update was not let in."""
    (note,) = notes(copy.deepcopy(place.server).receive(CLIENT, data), "refused")
    return str(note["reason"])


def with_tensors(place: Arena, **extras: torch.Tensor) -> bytes:
    honest = read_update(place.honest)
    return Update(
        honest.client, honest.task, honest.version, honest.spec, honest.delta, honest.samples, honest.report,
        {**honest.extras, **extras},
    ).to_bytes()  # fmt: skip


def with_meta(place: Arena, **changes: Any) -> bytes:
    header, meta, body = split(place.honest)
    return joined(header, {**meta, **changes}, body)


def test_a_shape_beyond_all_memory_is_refused_before_it_becomes_a_tensor() -> None:
    place = arena("cos2p")
    header, meta, body = split(place.honest)
    name = next(name for name in header if name.startswith("d/"))
    header[name]["shape"] = [2**58, 2**58, 0]
    assert "not as long as its shape says" in refusal(place, joined(header, meta, body))


def test_an_integer_of_five_thousand_digits_is_refused() -> None:
    assert "5000 digits" in refusal(arena("cos2p"), with_meta(arena("cos2p"), samples=10**5000 - 1))


def test_a_report_with_a_number_no_float_can_hold_is_refused() -> None:
    assert "digits" in refusal(arena("cos2p"), with_meta(arena("cos2p"), report={"loss": 10**400}))


def test_seeds_are_not_replayed_where_tensors_were_asked_for() -> None:
    """They moved a weight by 1e31: nobody had looked at them."""
    place = arena("fedmezo")
    seeds = {"seeds": torch.zeros(1, dtype=torch.int64), "scales": torch.tensor([1e31])}
    assert "'x/scales'; " in refusal(place, with_tensors(place, **seeds))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scales": torch.full((3,), 1e31)}, "root mean square"),
        ({"decay": torch.tensor(0.999)}, "decay has values"),
        ({"decay": torch.zeros(2)}, "x/decay is"),
        ({"seeds": torch.full((3,), -1)}, "seeds has values"),
        ({"seeds": torch.zeros(40, dtype=torch.int64)}, "x/seeds is"),
    ],
)
def test_steps_to_replay_are_bounded(change: dict[str, torch.Tensor], reason: str) -> None:
    place = arena("seeds")
    assert reason in refusal(place, with_tensors(place, **change))


def test_missing_parts_of_a_replay_are_named() -> None:
    place = arena("seeds")
    honest = read_update(place.honest)
    bad = Update(honest.client, honest.task, 0, honest.spec, {}, 1, {}, {"seeds": honest.extras["seeds"]})
    assert "x/scales is missing" in refusal(place, bad.to_bytes())


def test_codes_cannot_move_a_weight_far() -> None:
    """All ones and the largest step that is let in: by 128 and more, once."""
    place = arena("codes")
    honest = read_update(place.honest)
    delta = {n: torch.full_like(t, -7.9) if n.endswith(".step") else t for n, t in honest.delta.items()}
    ones = {"codes": torch.full_like(honest.extras["codes"], 255)}
    bad = Update(honest.client, honest.task, 0, honest.spec, delta, 1, {}, ones)
    assert "at most 10 is let in" in refusal(place, bad.to_bytes())


def test_a_plugin_that_says_nothing_is_sent_nothing_beside() -> None:
    place = arena("fedavg")
    assert "'x/more'; " in refusal(place, with_tensors(place, more=torch.zeros(1)))


class Talkative(TaskContract):
    """One number comes with every update; what it may be a `check` says."""

    def extra_tensors(self, spec: SubmodelSpec) -> Forms:
        return {"said": TensorForm((1,))}

    def check(self, update: Update, max_rms: float) -> None:
        if float(update.extras["said"]) > 1:
            raise UpdateRefused("too much is said")


def test_what_a_contract_declares_may_come_and_nothing_else() -> None:
    place = arena("fedavg")
    (order,) = (order for order in place.server.orders.values() if order.client == CLIENT)
    contract = Talkative(VIT, order, LocalSettings.model_validate(order.settings))
    door = UpdateReader(order, VIT, contract, max_rms=10.0)

    def read(**extras: torch.Tensor) -> Update:
        return door.read(door.open(with_tensors(place, **extras)))[0]

    assert read(said=torch.ones(1)).extras["said"].tolist() == [1.0]
    for extras, reason in (
        ({}, "said"),
        ({"said": torch.tensor([2.0])}, "too much is said"),
        ({"said": torch.tensor([torch.nan])}, "not finite"),
        ({"said": torch.zeros(100_000)}, "an answer to this task has at most"),
        ({"said": torch.zeros(1), "more": torch.zeros(1)}, "more"),
    ):
        with pytest.raises(UpdateRefused, match=reason):
            read(**extras)


def test_a_header_larger_than_the_task_asks_for_is_not_read() -> None:
    place = arena("cos2p")
    header, _, body = split(place.honest)
    text = json.dumps({**header, "pad": "x" * 10**6}).encode()
    assert "an answer to this task has at most" in refusal(place, struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize(
    "figure",
    [
        {"loss": "low"}, {"loss": True}, {"loss": [1.0]}, {"loss": None}, {"local_top1": 1.5}, {"loss": 1e10},
        {"loss": 10**400}, {"loss": float("nan")}, {"loss": float("-inf")}, {"x" * 100: 1.0}, {"a\nb": 1.0},
    ],
)  # fmt: skip
def test_what_is_no_number_between_its_bounds_is_left_out_of_a_report(figure: dict[str, Any]) -> None:
    assert kept_report({"mask_loss": 2, **figure}, TaskContract) == {"mask_loss": 2}  # type: ignore[arg-type]


def test_a_report_of_very_many_figures_is_refused() -> None:
    with pytest.raises(UpdateRefused, match="65 figures"):
        kept_report({str(i): 1.0 for i in range(REPORT_FIGURES + 1)}, TaskContract)  # type: ignore[arg-type]


def test_a_merge_that_stumbles_refuses_and_benches_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server = copy.deepcopy(arena("fedavg").server)
    server.coordinator.rules = replace(server.coordinator.rules, max_failures=5)

    def stumble(*_: Any) -> None:
        raise KeyError("decay")

    monkeypatch.setattr(server.aggregator.merge, "decode", stumble)
    reasons, excluded = [], []
    for _ in range(5):
        (order,) = (order for order in server.orders.values() if order.client == CLIENT)
        effects = server.receive(CLIENT, answer(VIT, order).to_bytes())
        reasons += [note["reason"] for note in notes(effects, "refused")]
        excluded += notes(effects, "excluded")
    assert set(reasons) == {"it cannot be merged: KeyError: 'decay'"}
    assert [note["client"] for note in excluded] == [CLIENT]
    monkeypatch.undo()
    other = next(order for order in server.orders.values() if order.client != CLIENT)
    assert notes(server.receive(other.client, answer(VIT, other).to_bytes()), "merged")


def test_a_round_that_ends_in_a_model_that_is_not_finite_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = copy.deepcopy(arena("fedavg").server)
    before = dict(server.weights)
    monkeypatch.setattr(server.aggregator.merge, "apply", lambda w: {n: t * torch.inf for n, t in w.items()})
    server.receive(CLIENT, arena("fedavg").honest)
    effects = server.handle(Stop("the end"))
    assert "is undone" in notes(effects, "refused")[0]["reason"]
    assert all(torch.equal(server.weights[name], before[name]) for name in before)


def test_play_tells_of_harm() -> None:
    """The judge of the fuzzer itself can say no."""
    assert harm({"w": torch.zeros(2)}, {"w": torch.tensor([0.0, 11.0])}) == "w moved by 11"
    assert harm({"w": torch.zeros(2)}, {"w": torch.tensor([0.0, torch.nan])}) == "w is not finite"
    assert play(arena("fedavg"), arena("fedavg").honest).fate == "merged"


@pytest.mark.memory
def test_reading_a_large_update_takes_its_bytes_once_more() -> None:
    """At most three times the update with the bytes that came; a damaged one takes no more."""
    config = replace(VIT, dim=256, heads=4, mlp=1024)
    home = context(config, rates=(1.0,) * 3, max_update_rms=10.0)
    server = Server(home, build_method({"name": "fedavg"}, home), init_weights(config, 0))
    server.handle(ClientJoined(CLIENT))
    (order,) = server.orders.values()
    door = UpdateReader(order, config, make_contract(config, order), max_rms=10.0)
    data = answer(config, order).to_bytes()
    corrupted = data[:-4] + struct.pack("<f", 11.0)
    assert len(data) > 8e6
    door.read(door.open(data))  # what is made once and kept
    assert growth(lambda: door.read(door.open(data))) < 2 * len(data)

    def refused() -> None:
        with pytest.raises(UpdateRefused, match="changes by 11"):
            door.read(door.open(corrupted))

    assert growth(refused) < 2 * len(data)

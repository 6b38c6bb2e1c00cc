"""Which messages are taken from whom. Without a network."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nvflare")

from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from cos2p.fleet.notices import FORBIDDEN
from cos2p.fleet.nvflare import channels, message_filter
from cos2p.fleet.nvflare.channels import LOCAL, Envelope, objection
from cos2p.fleet.nvflare.message_filter import MessageFilter, checked_job, read
from cos2p.fleet.nvflare.provisioning import ADMIN
from cos2p.fleet.nvflare.rejoin import Rejoin

JOB = "0d3e4c1c-8f6b-4b53-9c5e-6d3d54f1a001"
AN_ADMIN = "_admin_5c7a9f5e-8a57-4d55-9d22-0f2a3b4c5d6e"


def to_server(channel: str, topic: str, destination: str = "server", **changes: Any) -> Envelope:
    """From the job process of dev-2, as it is."""
    own = f"dev-2.{JOB}"
    values = {"origin": own, "destination": destination, "name": "dev-2", "channel": channel, "topic": topic}
    return Envelope(**{"me": "server", "peer": own, "inside": False, "certificate": "dev-2", **values, **changes})


def to_device(channel: str, topic: str, **changes: Any) -> Envelope:
    """From the server to the main process of dev-1."""
    values = {"origin": "server", "destination": "dev-1", "name": "server", "channel": channel, "topic": topic}
    return Envelope(**{"me": "dev-1", "peer": "server", "inside": False, "certificate": "host", **values, **changes})


@pytest.mark.parametrize(
    "message",
    [
        to_server("task", "challenge", peer="dev-2", origin="dev-2", name=""),
        to_server("task", "register regular", peer="dev-2", origin="dev-2"),
        to_server("task", "heart_beat", peer="dev-2", origin="dev-2"),
        to_server("cellnet.channel", "bye"),
        to_server("server_command", "get_task", f"server.{JOB}"),
        to_server("server_command", "submit_update", f"server.{JOB}"),
        to_server("cos2p", "push", f"server.{JOB}"),
        to_server("return_only", "aux_communication:__end_run__", f"server.{JOB}"),
        to_server("cos2p", "push", f"server.{JOB}", peer="dev-2"),  # passed on by its parent
        to_server("admin", "admin", request=False),  # the answer to a command
        to_server("hci_channel", "command", peer=AN_ADMIN, origin=AN_ADMIN, certificate=ADMIN, name=ADMIN),
        to_server("server_parent_listener", "get_clients", peer=f"server.{JOB}", origin=f"server.{JOB}", inside=True,
                  certificate="", name="server_job"),
        to_server("cos2p", "push", f"server.{JOB}", me=f"server.{JOB}", peer="server", inside=True, certificate=""),
        to_device("admin", "admin"),
        to_device("aux_communication", "__end_run__", me=f"dev-1.{JOB}", destination=f"dev-1.{JOB}"),
        to_device("aux_communication", "__end_run__", me=f"dev-1.{JOB}", destination=f"dev-1.{JOB}", peer="dev-1",
                  inside=True, certificate=""),
        to_device("client_command", "abort", me=f"dev-1.{JOB}", destination=f"dev-1.{JOB}", peer="dev-1",
                  origin="dev-1", inside=True, certificate=""),
        to_device("admin", "train.notify_job_status", peer=f"dev-1.{JOB}", origin=f"dev-1.{JOB}", inside=True,
                  certificate=""),
    ],
)  # fmt: skip
def test_what_a_run_needs_is_let_through(message: Envelope) -> None:
    assert objection(message) == ""


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (to_server("admin", "admin", "dev-1"), "only the server and its job"),
        (to_server("cos2p", "push", f"dev-1.{JOB}"), "only the server and its job"),
        (to_server("return_only", "x", f"dev-1.{JOB}", request=False), "only the server and its job"),
        (to_server("server_command", "abort", f"server.{JOB}"), "not needed"),
        (to_server("cellnet.channel", "bye", f"server.{JOB}"), "not needed"),
        (to_server("cellnet.channel", "bulk"), "not needed"),
        (to_server("server_parent_listener", "get_clients"), "not needed"),
        (to_server("hci_channel", "command"), "not needed"),
        (to_server("task", "register relay"), "not needed"),
        (to_server("task", "heart_beat", origin="server"), "it calls itself server"),
        (to_server("task", "heart_beat", name="server"), "it calls itself server"),
        (to_server("task", "heart_beat", origin="dev-1"), "it calls itself dev-1"),
        (to_server("task", "heart_beat", peer="dev-1", origin="dev-1"), "it connects as dev-1"),
        (to_server("hci_channel", "command", peer=AN_ADMIN, origin=AN_ADMIN), "it connects as _admin_"),
        (to_server("admin", "admin", "dev-1", peer=AN_ADMIN, origin=AN_ADMIN, certificate=ADMIN, name=ADMIN), "only"),
        (to_server("task", "heart_beat", offers_line=True), "names an address"),
        (to_server("task", "heart_beat", origin=""), "where it comes from"),
        (to_server("task", "heart_beat", origin=f".{JOB}"), "where it comes from"),
        (to_server("cos2p", "push", f"server.{JOB}", me=f"server.{JOB}", peer="server", inside=True, certificate="",
                   origin=""), "where it comes from"),
        (to_server("task", "heart_beat", certificate=""), "shows no certificate"),
        (to_server("task", "heart_beat", certificate="", inside=True), "only job processes do"),
        (to_server("task", "quit", peer=f"server.{JOB}", certificate="", inside=True), "speaks for dev-2"),
        (to_server("server_command", "abort", f"server.{JOB}", me=f"server.{JOB}", peer="server", inside=True,
                   certificate=""), "not needed"),
        (to_device("admin", "admin", origin="dev-2"), "by its server alone"),
        (to_device("_net_manager", "cells"), "not needed"),
        (to_device("admin", "admin", origin="dev-1"), "by its server alone"),
        (to_device("admin", "admin", peer=f"dev-1.{JOB}", inside=True, certificate=""), "speaks for server"),
        (to_device("admin", "admin", destination="dev-3"), "for another device"),
        (to_device("cellnet.channel", "bye", origin=f"server.{JOB}"), "in the name of another"),
    ],
)  # fmt: skip
def test_what_it_does_not_need_is_refused(message: Envelope, reason: str) -> None:
    assert reason in objection(message)


CELLS = st.sampled_from(
    ["server", f"server.{JOB}", "dev-1", f"dev-1.{JOB}", "dev-2", f"dev-2.{JOB}", AN_ADMIN, "", "x"]
)
LISTED = sorted(
    channels.DEVICE_TO_SERVER | channels.DEVICE_TO_JOB | channels.ADMIN_TO_SERVER | channels.SERVER_TO_DEVICE
)
PAIRS = st.one_of(st.sampled_from(LISTED), st.tuples(st.text(), st.text()))


@given(CELLS, CELLS, CELLS, st.sampled_from(["", "dev-1", "dev-2", "server", ADMIN]), PAIRS, st.booleans())
def test_whatever_a_device_says_of_itself_it_reaches_the_server_alone_as_itself(
    peer: str, origin: str, destination: str, name: str, pair: tuple[str, str], request: bool
) -> None:
    message = to_server(*pair, destination, peer=peer, origin=origin, name=name, request=request)
    if objection(message) == "":
        assert peer.partition(".")[0] == origin.partition(".")[0] == "dev-2"
        assert name in ("", "dev-2")
        assert destination in ("server", f"server.{JOB}")
        allowed = channels.DEVICE_TO_SERVER if destination == "server" else channels.DEVICE_TO_JOB
        assert not request or {pair, (pair[0], "*")} & allowed
    assert message.sender == "dev-2"


@given(CELLS, CELLS, CELLS, PAIRS)
def test_whatever_comes_over_the_network_a_device_obeys_its_server_alone(
    peer: str, origin: str, destination: str, pair: tuple[str, str]
) -> None:
    message = to_device(*pair, peer=peer, origin=origin, destination=destination)
    if objection(message) == "":
        assert peer == "server"
        assert origin.partition(".")[0] == "server"
        assert destination.partition(".")[0] == "dev-1"
        assert {pair, (pair[0], "*")} & channels.SERVER_TO_DEVICE


# ---------------------------------------------------------------- as NVFlare has it

LINE = SimpleNamespace(handle="CH1", params={"scheme": "https"})
INSIDE = SimpleNamespace(handle="CH2")


def cell_of(name: str) -> Any:
    return SimpleNamespace(my_info=SimpleNamespace(fqcn=name), int_listener=INSIDE, bb_int_connector=None)


def connection(connector: Any = LINE, name: str | None = "dev-2") -> Any:
    return SimpleNamespace(connector=connector, get_conn_properties=lambda: {"peer_cn": name})


def message_of(channel: object, topic: object, **headers: object) -> Any:
    said = {"cn__origin": "dev-2", "cn__destination": "server", "cn__msg_type": "req"}
    return SimpleNamespace(headers=said | {"cn__channel": channel, "cn__topic": topic} | headers)


def got(message: Any, line: Any = None, me: str = "server", peer: str = "dev-2") -> Envelope:
    return read(cell_of(me), SimpleNamespace(name=peer), line or connection(), message)


def test_a_stream_is_what_it_carries() -> None:
    inner = {"sm__ch": "server_command", "sm__tp": "abort"}
    assert got(message_of("sm__STREAM", "sm__DATA", **inner)).topic == "abort"
    ended = got(message_of("sm__STREAM", "sm__DATA", sm__em="it broke", **inner))
    assert (ended.channel, ended.topic) == ("sm__STREAM", "sm__ERROR")
    assert objection(got(message_of("sm__STREAM", "sm__DATA")))


def test_only_who_gets_a_stream_may_confirm_it(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = {7: SimpleNamespace(target="dev-1"), 8: SimpleNamespace(target="dev-2")}
    monkeypatch.setattr(ByteStreamer, "tx_task_map", streams)
    for number, allowed in ((7, False), (7.0, False), ("7", False), (None, False), ([7], False), (8, True), (9, True)):
        assert (objection(got(message_of("sm__STREAM", "sm__ACK", sm__id=number))) == "") == allowed, number
    to_job = message_of("sm__STREAM", "sm__ACK", sm__id=7, cn__destination=f"server.{JOB}")
    assert objection(got(to_job)) == ""  # the numbers are those of another process


def test_what_is_no_text_is_on_no_list() -> None:
    for strange in (b"task", ["task"], {"a": 1}, 5):
        assert objection(got(message_of(strange, "heart_beat")))
        assert objection(got(message_of("task", "heart_beat", cn__origin=strange)))
        assert objection(got(message_of("task", "heart_beat", cn__destination=strange)))
        assert objection(got(message_of("task", "heart_beat", client_name=strange)))


def test_who_shows_no_certificate_is_nobody(tmp_path: Path) -> None:
    """Neither let in nor able to have another excluded."""
    plain = SimpleNamespace(handle="CH3", params={"scheme": "tcp"})
    for line in (connection(plain), connection(LINE, None), connection(LINE, "N/A")):
        assert "no certificate" in objection(got(message_of("task", "heart_beat"), line))
        assert got(message_of("task", "heart_beat"), line).sender == LOCAL
    claimed = got(message_of("task", "heart_beat"), connection(INSIDE))
    assert "only job processes" in objection(claimed)
    assert claimed.sender == LOCAL


def test_who_is_refused_is_named_but_not_without_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    passed: list[Any] = []
    process = MessageFilter(tmp_path).wrap(lambda *arguments: passed.append(arguments))
    arguments = (cell_of("server"), SimpleNamespace(name="dev-2"), connection(), 1)
    process(*arguments, message_of("task", "heart_beat"))
    assert len(passed) == 1
    for number in range(100):
        process(*arguments, message_of("_net_manager", f"cells\n{number}" + "x" * 1000))
    assert len(passed) == 1
    notices = [json.loads(line) for line in (tmp_path / "notices.jsonl").read_text().splitlines()]
    assert len(notices) == MessageFilter.MOST_NOTICES
    assert len(caplog.records) == 100
    assert notices[0]["client"] == "dev-2"
    assert notices[0]["reason"].startswith(f"{FORBIDDEN}_net_manager:cells?0xxx")
    assert all(len(record.message) < 300 for record in caplog.records)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = (
        (CoreCell, "process_message"), (cells, "_is_server_job_cell"),
        (FedAdminAgent, "register_processor"), (Workspace, "get_run_dir"),
    )  # fmt: skip
    for owner, name in patched:
        monkeypatch.setattr(owner, name, getattr(owner, name))
    message_filter.install(None)


@pytest.mark.usefixtures("installed")
def test_nothing_is_deleted_but_the_folder_of_a_job(tmp_path: Path) -> None:
    engine = SimpleNamespace(args=SimpleNamespace(workspace=str(tmp_path)))
    for folder in ("startup", "local"):
        (tmp_path / folder).mkdir()  # NVFlare's Workspace wants them
    for folder in ("data", JOB):
        (tmp_path / folder / "deep").mkdir(parents=True)
    for name in ("data", "startup", "", ".", "..", "data/deep", f"../{tmp_path.name}", None, JOB.upper(), f"{{{JOB}}}"):
        with pytest.raises(ValueError, match="is no job's name"):
            ClientEngine.delete_run(engine, name)
    assert (tmp_path / "data" / "deep").is_dir()
    ClientEngine.delete_run(engine, JOB)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "local", "startup"]


@pytest.mark.usefixtures("installed")
def test_a_device_does_of_commands_what_a_run_needs() -> None:
    agent = SimpleNamespace(processors={})
    for processor in ClientRequestProcessors.request_processors:
        FedAdminAgent.register_processor(agent, processor)
    assert agent.processors.keys() == channels.COMMANDS


@given(st.uuids())
def test_a_jobs_own_name_is_taken(name: uuid.UUID) -> None:
    assert checked_job(str(name)) == str(name)


@pytest.mark.usefixtures("installed")
def test_no_message_ends_the_servers_job() -> None:
    assert not cells._is_server_job_cell(SimpleNamespace(fqcn=f"server.{JOB}"))


def test_a_clients_report_of_failure_ends_no_job() -> None:
    pending, handlers, heard = {(JOB, "dev-1"), (JOB, "dev-2")}, dict[str, Any](), list[set[tuple[str, str]]]()
    server = SimpleNamespace(
        process_job_failure=lambda request: heard.append(set(pending)),
        cell=SimpleNamespace(register_request_cb=lambda channel, topic, cb: handlers.update({topic: cb})),
    )
    rejoin = Rejoin()
    rejoin._engine = SimpleNamespace(
        server=server,
        notify_dead_job=None,
        client_manager=SimpleNamespace(clients={"token": SimpleNamespace(name="dev-2")}),
        job_runner=SimpleNamespace(resolve_client_outcome=lambda job, client: pending.discard((job, client))),
    )
    rejoin._listen_for_lost_jobs()
    report = SimpleNamespace(payload={"job_id": JOB, "code": 101}, get_header=lambda key: "token")
    handlers["report_job_failure"](report)
    assert heard == [{(JOB, "dev-1")}]  # NVFlare ends the job only for a client whose outcome is still open

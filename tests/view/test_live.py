"""The server with real requests over a real socket."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cos2p.errors import RunError
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run
from cos2p.tracking.event_kinds import Event
from cos2p.view import live
from cos2p.view.live import LiveServer
from tests.cli.conftest import TINY
from tests.view.diary import Diary, two_rounds

Get = Callable[..., tuple[HTTPResponse, bytes]]


@contextmanager
def serving(*folders: Path, host: str = "127.0.0.1") -> Iterator[tuple[LiveServer, Get]]:
    server = LiveServer(folders, host)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def get(path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): v for name, v in headers.items()})
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    try:
        yield server, get
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(live, "REST", 0.0)


def test_the_page_and_its_document(tmp_path: Path) -> None:
    with serving(two_rounds().write(tmp_path / "run")) as (server, get):
        response, page = get("/")
        assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b"<!--VIEW-->" not in page
        response, data = get("/view.json")
        view = json.loads(data)
        assert (view["live"], view["runs"][0]["header"]["updates"]) == (True, 3)
        assert server.url == f"http://127.0.0.1:{server.port}/"


def test_unchanged_is_304(tmp_path: Path) -> None:
    folder = Diary().started("a").joined(0, "a").write(tmp_path / "run")
    with serving(folder) as (_, get):
        response, data = get("/view.json")
        version = json.loads(data)["version"]
        response, body = get(f"/view.json?since={version}")
        assert (response.status, body) == (304, b"")
        Diary().task(0, "a#0").write(folder, "a")
        response, data = get(f"/view.json?since={version}")
        assert response.status == 200
        assert json.loads(data)["runs"][0]["devices"][0]["tasks"] == 1


def test_compressed_for_who_can_read_it(tmp_path: Path) -> None:
    with serving(two_rounds().write(tmp_path / "run")) as (_, get):
        plain = get("/view.json")[1]
        response, packed = get("/view.json", Accept_Encoding="gzip, br")
        assert response.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed) == plain
        assert b"<!doctype html>" in gzip.decompress(get("/", Accept_Encoding="gzip")[1])


@pytest.mark.parametrize(
    "path",
    ["/events.jsonl", "/../run/events.jsonl", "/..%2f..%2fetc/passwd", "//etc/passwd", "/view.json/", "/view.json/../x",
     "/index.html", "/%2e%2e/", "/view.jsonx", "/?/../", "/.cos2p-run", "/view.json%00"],
)  # fmt: skip
def test_there_is_nothing_else(tmp_path: Path, path: str) -> None:
    with serving(two_rounds().write(tmp_path / "run")) as (_, get):
        response, body = get(path)
        if path == "/?/../":
            assert response.status == 200  # the page, with a query that means nothing
        else:
            assert (response.status, body) == (404, b"there is only / and /view.json\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_it_only_shows(tmp_path: Path, method: str) -> None:
    with serving(two_rounds().write(tmp_path / "run")) as (_, get):
        assert get("/view.json", method)[0].status == 501


def test_headers_are_strict(tmp_path: Path) -> None:
    with serving(two_rounds().write(tmp_path / "run")) as (_, get):
        for path in ("/", "/view.json", "/nothing"):
            headers = get(path)[0].headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cache-Control"] == "no-store"
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "Access-Control-Allow-Origin" not in headers
            assert "Python" not in headers["Server"]


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:{port}", 200), ("localhost:{port}", 200), ("[::1]:{port}", 200), ("LOCALHOST", 200),
     ("evil.example:{port}", 403), ("127.0.0.1.evil.example", 403), ("127.0.0.1:1", 403), ("", 403),
     ("localhost:{port}@evil.example", 403), ("192.168.0.7:{port}", 403), ("[::1", 403)],
)  # fmt: skip
def test_only_by_our_own_names(tmp_path: Path, host: str, status: int) -> None:
    """A page elsewhere that points its own name to 127.0.0.1 (DNS rebinding) still sends that name."""
    with serving(two_rounds().write(tmp_path / "run")) as (server, get):
        for path in ("/", "/view.json"):
            assert get(path, Host=host.format(port=server.port))[0].status == status


def test_bound_elsewhere_a_token_is_asked_for(tmp_path: Path) -> None:
    with serving(two_rounds().write(tmp_path / "run"), host="0.0.0.0") as (server, get):
        address = urlsplit(server.url)
        (token,) = parse_qs(address.query)["token"]
        assert len(token) >= 32
        assert address.hostname == socket.gethostname().lower()
        for path in ("/", "/view.json", "/nothing", "/?token=", "/?token=x", f"/?token={token}x", "/?token=%ff%00é"):
            response, body = get(path.replace("é", "%c3%a9"))
            assert response.status == 403
            assert token.encode() not in body
        for path in ("/", "/view.json"):
            assert get(f"{path}?token={token}")[0].status == 200
            assert get(f"{path}?token={token}", Host="any.name")[0].status == 200


def test_every_server_has_a_token_of_its_own(tmp_path: Path) -> None:
    folder = two_rounds().write(tmp_path / "run")
    with serving(folder, host="0.0.0.0") as (one, _), serving(folder, host="0.0.0.0") as (other, _):
        assert one.token != other.token


def test_it_waits_for_a_run_follows_it_and_sees_it_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with serving(folder) as (_, get):

        def header() -> dict[str, Any]:
            return dict(json.loads(get("/view.json")[1])["runs"][0]["header"])

        assert header()["status"] == "waiting"
        Diary().started("a").joined(0, "a").write(folder)
        assert header()["status"] == "stopped"
        with (folder / "events.jsonl").open("a") as log:
            log.write('{"kind":"disp')  # half a line
        assert header()["status"] == "stopped"
        two_rounds().write(folder)
        assert header()["updates"] == 3
        (folder / "events.jsonl").write_text("nonsense\n")
        assert header()["updates"] == 3  # what was known, while the file is not as it should be
        (folder / "events.jsonl").unlink()
        assert header()["updates"] == 0
        two_rounds().write(folder)
        assert header()["updates"] == 3


def test_a_run_that_goes_on_meanwhile(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    folder = tmp_path / "run"
    seen: list[tuple[str, int]] = []
    with serving(folder) as (_, get):

        def look(event: Event) -> None:
            header = json.loads(get("/view.json")[1])["runs"][0]["header"]
            seen.append((header["status"], header["updates"]))

        result = run(Recipe.load(recipe), folder, listener=look)
        final = json.loads(get("/view.json")[1])["runs"][0]["header"]
    assert {status for status, _ in seen[:-1]} == {"running"}
    assert [updates for _, updates in seen] == sorted(updates for _, updates in seen)
    assert (final["status"], final["updates"]) == ("finished", result["updates"])


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    folder = two_rounds().write(tmp_path / "run")
    with serving(folder) as (server, _), pytest.raises(RunError, match=r"cannot listen .*--port"):
        LiveServer([folder], "127.0.0.1", server.port)
    with pytest.raises(RunError, match=r"cannot listen on no\.such\.host\.invalid"):
        LiveServer([folder], "no.such.host.invalid")


def test_a_browser_that_hangs_up_is_no_news(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serving(two_rounds().write(tmp_path / "run")) as (server, get):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert get("/view.json")[0].status == 200
    assert capfd.readouterr().err == ""

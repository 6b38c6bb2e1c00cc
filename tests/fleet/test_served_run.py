"""What the server's side of a run tells the one who follows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.errors import RunError
from cos2p.fleet.server.driver import Driver
from cos2p.fleet.server.served_run import PAGE_BYTES, ServedRun
from cos2p.recipe import Recipe
from cos2p.runtime import settled
from tests.fleet.lab import small_recipe
from tests.runtime.texts import open_recipe


@pytest.fixture
def host(tmp_path: Path) -> ServedRun:
    made = ServedRun(tmp_path, small_recipe(1), set())
    made.state = "running"
    return made


def test_while_it_starts_nothing_of_the_old_log_is_told(tmp_path: Path) -> None:
    """A killed server left lines behind its last checkpoint; they will be cut away."""
    (tmp_path / "events.jsonl").write_text('{"t":1}\n')
    assert ServedRun(tmp_path, small_recipe(1), set()).report("", 0) == {"state": "starting"}


def test_the_log_is_told_from_where_the_follower_is(host: ServedRun) -> None:
    (host.folder / "events.jsonl").write_text('{"t":1}\n{"t":2}\n{"t":3')  # the last line is being written
    reported = host.report(host.life, 8)
    assert (reported["start"], reported["lines"], reported["end"]) == (8, '{"t":2}\n', 16)
    assert host.report(host.life, 16)["lines"] == ""


def test_who_knew_an_earlier_process_is_sent_back_to_the_checkpoint(host: ServedRun) -> None:
    (host.folder / "events.jsonl").write_text('{"t":1}\n{"t":2}\n')
    host.base = 8
    reported = host.report("an earlier life", 500)
    assert (reported["start"], reported["lines"]) == (8, '{"t":2}\n')
    assert host.report("an earlier life", 0)["start"] == 0  # it had less than that: it gets all of it


def test_a_line_longer_than_a_page_is_told_whole(host: ServedRun) -> None:
    line = '{"x":"' + "y" * (2 * PAGE_BYTES) + '"}\n'
    (host.folder / "events.jsonl").write_text(line + line)
    assert host.report(host.life, 0)["lines"] == line
    assert host.report(host.life, len(line))["lines"] == line


def test_only_results_can_be_fetched(host: ServedRun) -> None:
    (host.folder / "result.json").write_text("{}")
    assert host.chunk("result.json", 0) == {"data": "e30="}
    for name in ("checkpoint.safetensors", "../server/startup/server.key"):
        with pytest.raises(RunError, match="cannot be fetched"):
            host.chunk(name, 0)


class Transferred:
    """A network that carries nothing."""

    folder = Path()

    def close(self) -> None:
        pass


def test_what_the_recipe_leaves_open_is_settled_by_the_server_and_goes_to_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settled, "compare_poolings", lambda *given: {"cls": 0.1, "mean": 0.2})
    recipe, drivers = open_recipe(tmp_path), list[Driver]()

    def ready(driver: Driver) -> None:
        drivers.append(driver)
        raise RunError("enough")

    for _ in range(2):  # and once more, as after a crash of the server
        served = ServedRun(tmp_path / "run", recipe, set())
        served.host(None, Transferred(), ready, lambda: True)  # type: ignore[arg-type]
        assert served._open is not None
        served._open.close()  # as its process ends
        monkeypatch.setattr(settled, "compare_poolings", lambda *given: pytest.fail("it was settled before"))
    assert str(served.error) == "enough"
    assert [driver.recipe.model.pooling for driver in drivers] == ["mean", "mean"]
    assert drivers[0].config.pooling == "mean"
    assert "was chosen" in drivers[0].notes[0]
    assert Recipe.load(tmp_path / "run" / "recipe.toml").model.pooling == "mean"

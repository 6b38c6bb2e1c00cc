"""Fleets by distribution, by trace, by the hours of the day."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.devices.device import device
from cos2p.devices.draw import DAY, daily, group_devices, read_sessions, read_trace
from cos2p.devices.settings import DeviceGroup
from cos2p.errors import ConfigError, DataError, RecipeError
from cos2p.recipe import Recipe


def group(**values: object) -> DeviceGroup:
    return DeviceGroup.model_validate({"preset": "raspberry-pi-4", **values})


def names(count: int) -> list[str]:
    return [f"pi-{number}" for number in range(1, count + 1)]


def test_without_a_spread_devices_are_as_before() -> None:
    plain = group(flops=1e9)
    assert group_devices(plain, ["pi-1"], seed=3) == [plain.device("pi-1")]


def test_figures_are_log_normal_around_the_groups() -> None:
    made = group_devices(group(flops=1e9, spread={"flops": 0.5, "memory": 0.2, "network": 0.3}), names(2000), seed=0)
    logs = np.log([one.flops / 1e9 for one in made])
    assert abs(np.median(logs)) < 0.05
    assert np.std(logs) == pytest.approx(0.5, rel=0.06)
    assert max(abs(logs)) <= 1.5 + 1e-9
    assert np.std(np.log([one.memory / 3e9 for one in made])) == pytest.approx(0.2, rel=0.06)
    assert abs(np.corrcoef([one.down for one in made], [one.up for one in made])[0, 1]) < 0.1
    assert abs(np.corrcoef(logs, np.log([one.up for one in made]))[0, 1]) < 0.1


def test_a_device_is_the_same_whoever_else_is_there() -> None:
    wide = group(spread={"flops": 0.5}, online=["22:00-07:00"], online_spread=2)
    assert group_devices(wide, names(9), seed=1)[4] == group_devices(wide, names(9)[4:5], seed=1)[0]
    assert group_devices(wide, names(1), seed=1) != group_devices(wide, names(1), seed=2)


def test_a_trace_gives_each_row_once_before_any_twice(tmp_path: Path) -> None:
    file = tmp_path / "fleet.csv"
    file.write_text("device,flops,memory\na,1e9,600MB\nb,2e9,1GB\nc,3e9,2GiB\n")
    made = group_devices(group(trace=str(file)), names(6), seed=0)
    assert sorted(one.flops for one in made[:3]) == [1e9, 2e9, 3e9]
    assert [one.flops for one in made[3:]] == [one.flops for one in made[:3]]
    assert {one.memory for one in made} == {600_000_000, 1_000_000_000, 2 * 1024**3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device,speed\na,1\n", "there is no figure speed"),
        ("flops\n", "no device in it"),
        ("flops,memory\n1e9\n", "row 2: it has another number of cells"),
        ("flops,memory\n1e9,\n", "row 2: memory is empty"),
    ],
)
def test_a_wrong_trace_is_named_with_its_row(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_trace(str(file))


def test_sessions_follow_the_traced_device(tmp_path: Path) -> None:
    fleet, sessions = tmp_path / "fleet.csv", tmp_path / "sessions.csv"
    fleet.write_text("device,flops\na,1e9\nb,2e9\n")
    sessions.write_text("device,from,to\nb,50,60\na,0,10\na,10,20\n")
    made = group_devices(group(trace=str(fleet), online=str(sessions)), names(2), seed=0)
    assert {one.flops: one.sessions for one in made} == {1e9: ((0, 20),), 2e9: ((50, 60),)}
    assert made[0].session_period is None
    strangers = group_devices(group(online=str(sessions)), names(20), seed=0)
    assert {one.sessions for one in strangers} == {((0, 20),), ((50, 60),)}


@pytest.mark.parametrize("row", ["a,5,5", "a,9,3", "a,x,3", "a,-1,3", "a,0,inf"])
def test_a_session_without_length_is_refused(tmp_path: Path, row: str) -> None:
    file = tmp_path / "sessions.csv"
    file.write_text(f"device,from,to\n{row}\n")
    with pytest.raises(ConfigError, match="row 2"):
        read_sessions(str(file))


def test_hours_of_the_day() -> None:
    assert daily(["00:00-06:00", "06:00-07:00"]) == ((0, 7 * 3600),)
    night = device("raspberry-pi-4", sessions=daily(["22:00-07:00"]), session_period=DAY)
    hours = [hour for hour in range(48) if night.present_at(3600.0 * hour)]
    assert hours == [*range(7), *range(22, 31), 46, 47]


@given(st.integers(0, 23), st.integers(0, 23), st.floats(0, 5 * DAY), st.floats(-DAY, DAY))
def test_the_next_session_holds_the_moment_or_begins_after_it(begin: int, end: int, time: float, shift: float) -> None:
    sessions = daily([f"{begin:02}:00-{end:02}:00"], shift)
    found = device("raspberry-pi-4", sessions=sessions, session_period=DAY).session_at(time)
    assert found is not None
    assert time < found[1]
    assert found[1] - found[0] == pytest.approx((end - begin) % 24 * 3600 or DAY)
    assert found[0] - time < DAY + 1e-6


def test_a_recipe_says_when_its_devices_are_there_once() -> None:
    with pytest.raises(RecipeError, match=r"sessions: the field is called fleet\.devices\.online now"):
        Recipe.load("quickstart", ["fleet.devices.0.sessions=x.csv"])
    with pytest.raises(RecipeError, match=r"fleet\.devices\.0\.online"):
        Recipe.load("quickstart", ['fleet.devices.0.online=["25:00-07:00"]'])


def test_a_trace_that_is_not_there() -> None:
    with pytest.raises(DataError, match="nowhere"):
        group_devices(group(trace="nowhere.csv"), names(1), seed=0)

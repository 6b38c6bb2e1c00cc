"""ε from what happened, against the library's own composition."""

from __future__ import annotations

import json
import math

import pytest

from cos2p.aggregation.privacy import account as accounting
from cos2p.aggregation.privacy.account import Account, epsilon_of, multiplier_for
from cos2p.aggregation.privacy.checks import with_multiplier
from cos2p.aggregation.settings import PrivacySettings, ScheduleSettings
from cos2p.errors import MissingExtra

pytest.importorskip("dp_accounting")


def composed(*events: tuple[float, int], delta: float = 1e-5) -> float:
    """ε of Gaussian mechanisms one after the other, by privacy loss distributions."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    total = PLDAccountant()
    for multiplier, count in events:
        total.compose(dp_accounting.GaussianDpEvent(multiplier), count)
    return float(total.get_epsilon(delta))


def test_epsilon_is_that_of_the_composition() -> None:
    assert epsilon_of(20, 1.0, 1e-5) == pytest.approx(composed((1.0, 20)), rel=1e-3)
    assert epsilon_of(7, 3.5, 1e-6) == pytest.approx(composed((3.5, 7), delta=1e-6), rel=1e-3)
    assert epsilon_of(0, 1.0, 1e-5) == 0.0
    assert epsilon_of(1, 0.0, 1e-5) == math.inf


def test_two_updates_in_one_sum_cost_as_much_as_four() -> None:
    """A round with j updates of a device is one mechanism of sensitivity jC."""
    central = Account(2.0, 1e-5, None, by_round=True)
    for updates in (2, 1, 3):
        for _ in range(updates):
            central.took_part("a")
        central.close_round()
    assert central.cost["a"] == 4 + 1 + 9
    assert central.updates["a"] == 6
    assert central.epsilon("a") == pytest.approx(composed((2.0 / 2, 1), (2.0, 1), (2.0 / 3, 1)), rel=1e-3)
    local = Account(2.0, 1e-5, None, by_round=False)
    for _ in range(6):
        local.took_part("a")
    assert local.cost["a"] == 6


def test_the_run_costs_what_its_busiest_device_paid() -> None:
    found = Account(1.0, 1e-5, None, by_round=True)
    assert found.worst() == 0.0
    for client in ("a", "b", "b"):
        found.took_part(client)
        found.close_round()
    assert found.worst() == found.epsilon("b") > found.epsilon("a") > 0


def test_nobody_goes_beyond_the_budget() -> None:
    sigma = multiplier_for(2.0, 1e-5, updates=5)
    found = Account(sigma, 1e-5, 2.0, by_round=True)
    for taken in range(5):
        assert found.allows("a"), taken
        found.took_part("a")
        found.close_round()
    assert found.epsilon("a") <= 2.0
    assert not found.allows("a")
    assert found.allows("b")
    found.took_part("b")
    found.took_part("b")  # in the same round: 4 of 5
    assert not found.allows("b")  # a third one there would cost 9
    found.close_round()
    assert found.allows("b")


def test_an_account_goes_on() -> None:
    found = Account(1.0, 1e-5, 9.0, by_round=True)
    found.took_part("a")
    again = Account(1.0, 1e-5, 9.0, by_round=True)
    again.load_dict(json.loads(json.dumps(found.to_dict())))
    for one in (found, again):
        one.took_part("a")
    assert again.to_dict() == found.to_dict()
    assert again.cost["a"] == 4


def test_what_was_released_after_the_last_checkpoint_counts() -> None:
    found = Account(1.0, 1e-5, 9.0, by_round=True)
    found.took_part("a")
    found.close_round()
    found.at_least({"a": 3, "b": 1})
    assert (found.updates["a"], found.cost["a"], found.updates["b"]) == (3, 3, 1)
    found.at_least({"a": 2})
    assert found.updates["a"] == 3


def test_the_multiplier_follows_from_the_budget_and_the_schedule() -> None:
    private = PrivacySettings(noise="central", epsilon=8.0)
    by_rounds = with_multiplier(private, ScheduleSettings(rounds=9), devices=4).multiplier
    by_updates = with_multiplier(private, ScheduleSettings(updates=34), devices=4).multiplier
    assert by_rounds == by_updates
    assert by_rounds is not None
    assert epsilon_of(9, by_rounds, 1e-5) == pytest.approx(8.0)
    assert with_multiplier(PrivacySettings(), ScheduleSettings(rounds=1), 1) == PrivacySettings()


def test_without_the_library_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dp_accounting", None)
    with pytest.raises(MissingExtra, match=r"pip install 'cos2p\[privacy\]'"):
        accounting.multiplier_for(1.0, 1e-5, 1)


def test_settings_that_contradict_each_other_are_named() -> None:
    for values, words in (({"noise": "central"}, "give `multiplier`"),
                          ({"noise": "local", "multiplier": 0, "epsilon": 1}, "no finite `epsilon`")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            PrivacySettings.model_validate(values)

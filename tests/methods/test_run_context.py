from __future__ import annotations

from tests.tiny import context


def test_expected_tasks_follow_whichever_end_comes_first() -> None:
    assert context(rates=(0.5, 0.5), rounds=12).expected_tasks() == 12
    assert context(rates=(0.5, 0.5), rounds=12).expected_tasks("one") == 6
    assert context(rates=(0.5, 0.5), rounds=12, updates=10).expected_tasks() == 5

from __future__ import annotations

import pytest

from cos2p.terminal.formatting import duration, printable


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3599.7, "1 h"),
        (3661, "1 h 1 min"),
        (7170, "2 h"),
        (86_399, "1 d"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_never_show_sixty_of_a_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_control_characters_are_taken_out_and_letters_kept() -> None:
    assert printable("Größe\t\x07µ") == "Größe??µ"

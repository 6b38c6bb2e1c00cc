"""JSON from a stranger: depth, number of values and length of numbers are checked before anything is made of it.

A megabyte of `[[],[],…` becomes a hundred megabytes of lists, and a number of five thousand digits an error of its own
kind. What is counted here are the tokens of the text, so that the cost of refusing is that of reading it once.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

DEPTH = 12
DIGITS = 18
"""The most digits of an integer: it fits in 64 bits."""

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]|,')


def loads(text: str | bytes | bytearray | memoryview, values: int, digits: int = DIGITS) -> Any:
    """The value; ValueError for what is not JSON, is deeper than `DEPTH`, has more values in all or longer integers.

    >>> loads('{"a": [1, 2]}', values=9)
    {'a': [1, 2]}
    >>> loads('[[], [], []]', values=2)
    Traceback (most recent call last):
    ValueError: more than 2 values
    """
    try:
        words = text if isinstance(text, str) else bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    _measure(words, values)
    try:
        return json.loads(words, parse_int=partial(_integer, most=digits), parse_float=_real, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _measure(words: str, values: int) -> None:
    depth = count = 0
    for token in _TOKEN.finditer(words):
        first = words[token.start()]
        if first in "[{":
            depth += 1
            count += 1
        elif first in "]}":
            depth -= 1
        elif first == ",":
            count += 1
        if depth > DEPTH:
            raise ValueError(f"nested deeper than {DEPTH}")
        if count > values:
            raise ValueError(f"more than {values} values")


def _integer(digits: str, most: int) -> int:
    if len(digits.lstrip("-")) > most:
        raise ValueError(f"an integer of {len(digits)} digits; at most {most} are read")
    return int(digits)


def _real(digits: str) -> float:
    if len(digits) > 40:
        raise ValueError(f"a number of {len(digits)} characters")
    return float(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found

"""A value hashes as its fields do, once; a pickled one does not bring the hash of another process along."""

import pickle
from dataclasses import dataclass, replace

from cos2p.models.config import hash_once

COUNTED: list[int] = []


@dataclass(frozen=True)
class Counted:
    value: int

    def __hash__(self) -> int:
        COUNTED.append(self.value)
        return hash(self.value)


@hash_once
@dataclass(frozen=True)
class Pair:
    name: str
    counted: Counted


def test_equal_values_are_one_key_and_are_hashed_once() -> None:
    COUNTED.clear()
    one, other = Pair("a", Counted(1)), Pair("a", Counted(1))
    assert {one: "found"}[other] == "found"
    assert {one, other} == {one}
    assert hash(one) == hash(other) != hash(replace(one, name="b"))
    assert COUNTED == [1, 1, 1]  # of one, of the other, of the one with another name


def test_a_hash_does_not_travel() -> None:
    one = Pair("a", Counted(1))
    hash(one)
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert vars(again).keys() == {"name", "counted"}

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from cos2p.errors import ConfigError, RecipeError
from cos2p.methods import (
    Assignment,
    Call,
    Merge,
    Method,
    Trainer,
    build_method,
    method_class,
    method_settings,
    methods,
    trainer_class,
    trainers,
)
from cos2p.methods import registry as package
from cos2p.methods.cos2p import Cos2p, Cos2pAsync, Cos2pSync
from cos2p.methods.fedavg import FedAvg
from tests.tiny import context


def test_methods_are_known_by_their_names() -> None:
    known = methods()
    assert all(name == kind.name for name, kind in known.items())
    assert {
        "cos2p": Cos2p,
        "cos2p-async": Cos2pAsync,
        "cos2p-sync": Cos2pSync,
        "fedavg": FedAvg,
    }.items() <= known.items()
    assert len({kind.title for kind in known.values()}) == len(known)


@pytest.mark.parametrize("name", ["cos2p", "fedavg"])
def test_every_setting_says_what_it_is(name: str) -> None:
    def check(settings: Any) -> None:
        for field_name, field in settings.model_fields.items():
            if hasattr(field.annotation, "model_fields"):
                assert field.annotation.__doc__
                check(field.annotation)
            else:
                assert field.description, field_name

    check(method_class(name).settings_type)


def test_a_misspelt_name_is_told_what_was_meant() -> None:
    with pytest.raises(RecipeError, match=r"unknown method 'cos2'; did you mean 'cos2p'\? known: .*fedavg"):
        method_class("cos2")
    with pytest.raises(RecipeError, match=r"method\.name is None; name one, or choose it with --method: "):
        method_settings({})


def test_settings_are_typed_and_unknown_ones_refused() -> None:
    settings = method_settings({"name": "cos2p", "masks": {"heads": "fixed"}})
    assert settings.masks.heads == "fixed"  # type: ignore[attr-defined]
    for wrong in ({"masks": {"heads": "sometimes"}}, {"mask": {}}, {"exits": {"lambda2": 1.5}}):
        with pytest.raises(ValidationError):
            method_settings({"name": "cos2p", **wrong})


class MyTrainer(Trainer):
    name = "mine"


class Mine(Method):
    name: ClassVar[str] = "mine"
    title: ClassVar[str] = "My own"
    trainers = (MyTrainer,)

    def assign(self, call: Call) -> Assignment:
        raise NotImplementedError

    def merge(self) -> Merge:
        raise NotImplementedError


class _Entry:
    value = "somewhere:Thing"

    def __init__(self, name: str, found: object) -> None:
        self.name, self._found, self.loads = name, found, 0

    def load(self) -> object:
        self.loads += 1
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[_Entry]]:
    """Entry points of packages that a user might have."""
    entries: list[_Entry] = []
    monkeypatch.setattr(package, "entry_points", lambda group: entries if group == "cos2p.methods" else [])
    methods.cache_clear()
    yield entries
    methods.cache_clear()


def test_a_method_of_an_installed_package_is_found(installed: list[_Entry]) -> None:
    installed.append(_Entry("mine", Mine))
    assert isinstance(build_method({"name": "mine"}, context()), Mine)


def test_a_package_is_imported_only_when_one_of_its_methods_is_asked_for(installed: list[_Entry]) -> None:
    mine, broken = _Entry("mine", Mine), _Entry("broken", ModuleNotFoundError("No module named 'torch2'"))
    installed += [mine, broken]
    build_method({"name": "fedavg"}, context())
    assert {"fedavg", "mine", "broken"} <= set(methods())
    assert trainer_class("submodel") is trainer_class("submodel")
    assert (mine.loads, broken.loads) == (0, 0)
    assert method_class("mine") is method_class("mine") is Mine
    assert trainer_class("mine") is MyTrainer  # a device's cap counts from here on: nothing else is imported
    assert (mine.loads, broken.loads) == (1, 0)
    with pytest.raises(ConfigError, match="cannot be loaded: No module"):
        trainer_class("another")


def test_the_trainer_of_a_package_is_found_before_its_method_was_asked_for(installed: list[_Entry]) -> None:
    installed.append(_Entry("mine", Mine))
    assert trainer_class("mine") is MyTrainer


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ("a string", r"entry point 'broken' of cos2p\.methods is not a Method class"),
        (
            ModuleNotFoundError("No module named 'torch2'"),
            r"'broken' .*\(somewhere:Thing\) cannot be loaded: No module",
        ),
        (AttributeError("module has no Thing"), r"'broken' .* cannot be loaded: module has no Thing; install its"),
    ],
)
def test_an_entry_point_that_is_no_method_is_told(installed: list[_Entry], found: object, reason: str) -> None:
    installed.append(_Entry("broken", found))
    with pytest.raises(ConfigError, match=reason):
        method_class("broken")


class Copycat(Trainer):
    name = "submodel"


class Copying(Mine):
    trainers = (Copycat,)


def test_a_trainer_with_the_name_of_a_built_in_one_is_refused(installed: list[_Entry]) -> None:
    installed.append(_Entry("copying", Copying))
    with pytest.raises(
        ConfigError, match=r"two trainers are called 'submodel': .*SubmodelTrainer and .*Copycat; rename"
    ):
        method_class("copying")


def test_an_unknown_trainer_is_told_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match=r"unknown trainer 'qwit'; known: .*mezo, .*proximal, .*qvit"):
        trainer_class("qwit")


def test_public_names_are_sorted_and_exist() -> None:
    public = import_module("cos2p.methods")
    assert public.__all__ == sorted(set(public.__all__))
    names: dict[str, object] = {}
    exec("from cos2p.methods import *", names)
    assert set(names) - {"__builtins__"} == set(public.__all__)


def test_every_method_lists_the_trainers_it_asks_for() -> None:
    listed = {trainer for kind in methods().values() for trainer in kind.trainers}
    assert set(trainers().values()) == listed
    assert {kind.name for kind in listed} >= {"submodel", "proximal", "platon", "prunefl", "adavit", "qvit", "mezo"}

"""`DeviceMethod`: a method in one class. It differs from another method only in what its devices do.

    class FedProx(DeviceMethod):
        mu: float = Field(default=0.01, ge=0, description="Pull towards the model as it came.")

        def before_step(self) -> None:
            for name, weight in self.model.named_parameters():
                if weight.grad is not None:
                    weight.grad.add_(weight.detach() - self.start[name], alpha=self.mu)

The class is the devices' trainer. Its fields are settings of the recipe's `[method]` and travel with every task. The
server's half, that is which submodel a device gets, when the server aggregates and how, is that of the method `base`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, get_type_hints

from pydantic import create_model
from pydantic.fields import FieldInfo

from cos2p.errors import ConfigError
from cos2p.messages import Order
from cos2p.methods.base import Assignment, Call, Method
from cos2p.methods.fedrolex import FedRolex
from cos2p.models.config import ModelConfig
from cos2p.settings import Settings
from cos2p.training.settings import LocalSettings
from cos2p.training.trainer import SubmodelTrainer


class DeviceMethod(SubmodelTrainer):
    """Base of methods in one class."""

    base: ClassVar[type[Method]] = FedRolex
    """The server's half: FedRolex (a share of every block's width, by the device's memory), FedAvg, Cos2p, ..."""
    title: ClassVar[str]
    """As it stands in tables; by default the name of the class."""
    fields: ClassVar[dict[str, Any]] = {}
    """The parameters of the class and their types, for `create_model`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hints = get_type_hints(cls)
        own = {name: (hints[name], value) for name, value in vars(cls).items() if isinstance(value, FieldInfo)}
        taken = own.keys() & (LocalSettings.model_fields.keys() | cls.base.settings_type.model_fields.keys())
        if taken:
            raise ConfigError(f"{cls.__name__}: {sorted(taken)[0]!r} is a setting of {cls.base.name!r} or of training")
        cls.fields = {**cls.fields, **own}
        cls.settings_type = create_model(f"{cls.__name__}Task", __base__=LocalSettings, **cls.fields)
        if "name" not in vars(cls):
            cls.name = f"{cls.__module__}:{cls.__qualname__}"
        if "title" not in vars(cls):
            cls.title = cls.__name__

    def __init__(self, config: ModelConfig, order: Order) -> None:
        super().__init__(config, order)
        vars(self).update({name: getattr(self.settings, name) for name in self.fields})


_wholes: dict[Any, type[Method]] = {}


def method_of(trainer: type[DeviceMethod]) -> type[Method]:
    """The whole method: the server's half of `base`, whose devices train as this class does; the same at every call."""
    if trainer not in _wholes:
        _wholes[trainer] = _whole(trainer)
    return _wholes[trainer]


def _whole(trainer: type[DeviceMethod]) -> type[Method]:
    base: Any = trainer.base

    class Whole(base):  # type: ignore[misc]
        name: ClassVar[str] = trainer.name
        title: ClassVar[str] = trainer.title
        settings_type: ClassVar[type[Settings]] = create_model(
            f"{trainer.__name__}Settings", __base__=base.settings_type, **trainer.fields
        )
        trainers: ClassVar[tuple[type[Any], ...]] = (*base.trainers, trainer)
        sized_by_rate = False  # its contract may hold more than plain training does

        def assign(self, call: Call) -> Assignment:
            plain: Assignment = super().assign(call)
            if plain.trainer is not SubmodelTrainer:  # statistics, adapters
                return plain
            own = {name: getattr(self.settings, name) for name in trainer.fields}
            settings = trainer.settings_type.model_validate({**plain.settings.model_dump(), **own})
            return replace(plain, settings=settings, trainer=trainer)

    Whole.__name__, Whole.__qualname__, Whole.__module__ = trainer.__name__, trainer.__qualname__, trainer.__module__
    Whole.__doc__ = trainer.__doc__
    return Whole

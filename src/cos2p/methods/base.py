"""`Method`: which submodel a client gets, how it trains, when the server aggregates, how updates are weighed.

One method is one file, or one folder, with both its halves: what the server decides, and what a device does. It
composes named parts and answers a few questions; it has no loop and does no I/O:

    rules()              when the server aggregates, and when a client gets its next task
    assign(...)          which submodel this client trains now, and how
    trainers             what its devices do, if not plain training
    merge()              how accepted updates become the next model
    accepted(...)        what the server remembers of an update (masks, statistics)
    evaluated_weights    the model that is evaluated and saved
    own_config, own_model   where that is not the run's model: its config, its forward pass
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, get_args

from pydantic import Field
from typing_extensions import Self

from cos2p.aggregation.head_merge import HeadForm
from cos2p.aggregation.merge import Merge
from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.memory.parts import Part, windows
from cos2p.memory.planning import choose
from cos2p.memory.tasks import Assignment, Call, Member, RunContext
from cos2p.messages import Order, Precision, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.settings import Settings
from cos2p.training.embeddings import Embeddings
from cos2p.training.statistics import StatisticsTrainer, is_final_statistics
from cos2p.training.trainer import SubmodelTrainer, Trainer


class HeadSettings(Settings):
    """Where heads begin, and where the top one ends."""

    start: Literal["fresh", "means", "discriminant"] = Field(
        default="fresh",
        description="`fresh`: as the model came; `means`, `discriminant`: in closed form from sums of features by "
        "class, which each device reports in its first task (the server learns its class counts and mean features).",
    )
    finish: Literal["trained", "as-start", "means", "discriminant"] = Field(
        default="trained",
        description="Where the top head ends: as it was `trained`, or once more in closed form, from sums that every "
        "device reports in a last round, of the features as they are then; `as-start`: in the form of `start`, and "
        "`trained` if that is `fresh`. The round waits for everybody and takes as many of `schedule.updates` as there "
        "are devices; a run that is stopped earlier ends as trained.",
    )

    @property
    def start_form(self) -> HeadForm | None:
        return None if self.start == "fresh" else self.start

    @property
    def finish_form(self) -> HeadForm | None:
        if self.finish == "as-start":
            return self.start_form
        return None if self.finish == "trained" else self.finish


def heads_of(settings: Settings) -> HeadSettings | None:
    """Where a method with these settings begins and ends its heads; None if it has no say in that."""
    heads = settings if isinstance(settings, HeadSettings) else getattr(settings, "exits", None)
    return heads if isinstance(heads, HeadSettings) else None


def ends_in_closed_form(settings: Settings) -> bool:
    """Whether a method with these settings ends with a head in closed form; before, its scores are those of
    a trained one."""
    heads = heads_of(settings)
    return heads is not None and heads.finish_form is not None


def asks_statistics(settings: Settings, final: bool, moments: bool) -> bool:
    """Whether a method with these settings asks its devices for sums of features, at the start or (`final`) at the end,
    and for sums of their products (`moments`)."""
    heads = heads_of(settings)
    form = None if heads is None else heads.finish_form if final else heads.start_form
    return form is not None and (form == "discriminant" or not moments)


def trained_instead(settings: Settings) -> str:
    """The field to set where the head cannot end in closed form."""
    field = "method.finish" if isinstance(settings, HeadSettings) else "method.exits.finish"
    return f'let the head end as it is trained: {field} = "trained"'


__all__ = ["Assignment", "Call", "Forms", "Member", "Method", "RunContext"]

Forms = Mapping[str, tuple[str, ...]]
"""Forms of a method by name, each as changes to a recipe: `path.to.field=value`."""


class OwnConfig(Protocol):
    def __call__(self, config: ModelConfig, weights: Weights, /) -> ModelConfig: ...


class OwnModel(Protocol):
    def __call__(self, config: ModelConfig, spec: SubmodelSpec, weights: Weights, /) -> ElasticTransformer: ...


class Method:
    """Base of all methods: synchronous rounds and nothing to remember."""

    name: ClassVar[str]
    title: ClassVar[str]
    """As it stands in tables."""
    settings_type: ClassVar[type[Settings]] = Settings
    over_budget: ClassVar[bool] = False
    """Cannot keep a device's budget (it trains the full model, say): a bound to compare with, marked in tables. Alone
    it is not run where a device has too little memory."""
    embeddings: ClassVar[tuple[Embeddings, ...]] = get_args(Embeddings)
    """The values of `training.embeddings` that its devices can do. One that has no `rows` gets whole tables instead."""
    trainers: ClassVar[tuple[type[Trainer], ...]] = (SubmodelTrainer,)
    """Its devices' work on their tasks: all that `assign` may ask for."""
    statistics_first: bool = False
    """Its first version brings what all later tasks need: until then nobody gets a second task."""
    statistics_last: bool = False
    """In a last round of its own, after all training, every device reports statistics. It waits for everybody, and
    begins when nobody is at work any more: so many of `schedule.updates` are left for it."""
    one_round: ClassVar[bool] = False
    """Its devices have nothing to add once each has reported: a run in which all take part ends after one round, which
    waits for everybody."""
    by_memory: ClassVar[bool] = False
    """Its devices take what their memory allows, whatever their rate."""
    ratio: float = 0.0
    """R_width / R_depth of its submodels: 0 cuts the width alone, which is the most that a rate takes."""
    sized_by_rate: bool = True
    """A task takes no more than plain training of a submodel of the device's rate. Where that is not so, `assign` is
    asked before a run, without weights, which of its `parts` fit."""
    forms: ClassVar[Forms] = {}
    """Others in which the method is known; a tuned comparison tries them too."""
    own_config: ClassVar[OwnConfig | None] = None
    """The config of `evaluated_weights`, where they are not of the run's model."""
    own_model: ClassVar[OwnModel | None] = None
    """The forward pass of `evaluated_weights`, where it is not the run's model's."""

    @classmethod
    def pretrained(cls, language: bool) -> Mapping[str, Any]:
        """Settings that are other defaults where `model.pretrained` is set. A `language` model has no classes.

        A head that can start in closed form does so there: a fresh one would teach nonsense to what is below it. And it
        ends so: a step that suits pretrained blocks hardly moves a head, which falls behind the features it reads.
        """
        if language or not issubclass(cls.settings_type, HeadSettings):
            return {}
        finish = {"finish": "as-start"} if cls.evaluates_its_weights() else {}
        return {"start": "discriminant", **finish}

    @classmethod
    def not_asked(cls, settings: Settings, order: Order) -> str:
        """The part of a task that no recipe with these settings asks for; empty if the task follows from it. A device
        of a real fleet refuses the rest: its owner accepted the recipe."""
        if order.quotas is not None:
            return "masks that the device chooses by its data"
        if order.trainer == StatisticsTrainer.name:
            final, moments = (bool(order.settings.get(name)) for name in ("final", "moments"))
            return "" if asks_statistics(settings, final, moments) else "statistics of the device's features"
        return "" if order.trainer in {kind.name for kind in cls.trainers} else f"the trainer {order.trainer!r}"

    @classmethod
    def evaluates_its_weights(cls) -> bool:
        """Whether what is evaluated is the run's own model with `evaluated_weights`."""
        return cls.own_config is None and cls.own_model is None

    @classmethod
    def model_defaults(cls, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fields of `[model]` that are other defaults where `[method]` has these `settings`."""
        return {}

    def __init__(self, settings: Settings, context: RunContext) -> None:
        self.settings, self.context = settings, context
        self._parts: dict[str, Part] = {}

    def for_members(self, context: RunContext) -> Self:
        """The same method for other members, as it begins."""
        return type(self)(self.settings, context)

    @classmethod
    def frozen_precision(cls, settings: Settings) -> Precision:
        """How frozen parts travel, where tasks have some."""
        return "float32"

    @property
    def statistics_updates(self) -> int:
        """Updates of a run that report statistics and do not train: each device's first, and those of the last
        round."""
        devices, schedule = len(self.context.members), self.context.schedule
        return devices * self.statistics_first + schedule.taking_part(devices) * self.statistics_last

    def parts(self, member: Member) -> Sequence[Part]:
        """The parts that the member may train, those that learn most first; the first that fits its memory is taken.

        By default a window of the rate that the recipe sets, or of the largest that fits.
        """
        return windows() if member.auto else [Part("window", member.rate)]

    def part_of(self, member: Member) -> Part:
        """The part that the member trains."""
        if member.part is not None:
            return member.part
        if member.name not in self._parts:
            self._parts[member.name] = choose(self, member)
        return self._parts[member.name]

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.synchronous(), "at-aggregation"

    def assign(self, call: Call) -> Assignment:
        raise NotImplementedError

    def evaluated_adapters(self) -> Mapping[str, float]:
        """`scale` and number (`adapters`, of scalars) of low-rank factors, where they are all that `evaluated_weights`
        adds to the weights: then they travel in the last round, and not the model. By default there are none."""
        return {}

    def head_depths(self) -> Sequence[int]:
        """Where heads are trained, by the number of blocks below them."""
        return (self.context.config.depth,)

    def statistics_options(self) -> Mapping[str, Any]:
        """How its devices run the frozen model for statistics: the `precision` in which it travels, and their settings
        for features."""
        return {"precision": getattr(self.settings, "precision", "float16")}

    def merge(self) -> Merge:
        raise NotImplementedError

    def accepted(self, order: Order, update: Update) -> None:
        """An update was merged."""

    def evaluated_weights(self, weights: Weights) -> Weights:
        """The model that is evaluated and saved, from the server's current one (a method may mask or scale it)."""
        return weights

    def from_evaluated(self, order: Order, weights: Weights) -> bool:
        """Whether a task is cut from the evaluated model; where factors are all that it has more, they come along."""
        return is_final_statistics(order) and not order.settings.get("scale")

    @classmethod
    def evaluation_config(cls, config: ModelConfig, weights: Weights) -> ModelConfig:
        """The config that `evaluated_weights` belong to."""
        return config if cls.own_config is None else cls.own_config(config, weights)

    @classmethod
    def evaluation_model(cls, config: ModelConfig, weights: Weights, exits: Sequence[int]) -> ElasticTransformer:
        """The forward pass of `evaluated_weights`, with answers at these exits."""
        config = cls.evaluation_config(config, weights)
        spec = SubmodelSpec.full(config, sorted(exits))
        if cls.own_model is not None:
            return cls.own_model(config, spec, weights)
        return ElasticTransformer(config, spec).load(weights)

    def initial_weights(self, weights: Weights) -> Weights:
        """A method may begin from other weights than the recipe's."""
        return weights

    def state(self) -> tuple[dict[str, Any], Weights]:
        """Everything that must survive a restart: JSON and tensors."""
        return {}, {}

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        """The counterpart of `state`. Members may have joined since, or changed their rate."""

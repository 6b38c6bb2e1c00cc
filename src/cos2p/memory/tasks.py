"""A method's context (`RunContext`, `Member`), what it assigns (`Call` → `Assignment`), and its order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

from typing_extensions import Self

from cos2p.aggregation.robust.filter import most_credited
from cos2p.aggregation.settings import PrivacySettings, RobustSettings, ScheduleSettings
from cos2p.costs.ledger import peak
from cos2p.devices.device import Device
from cos2p.memory.parts import Part
from cos2p.messages import Order, Precision, Update
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockSize, SubmodelSpec
from cos2p.numerics.optimizers import learning_rate
from cos2p.settings import Settings, shared
from cos2p.training.costs import workload
from cos2p.training.embeddings import Embeddings, cut_tables
from cos2p.training.settings import LocalSettings, LocalTraining, TrainingSettings, settled
from cos2p.training.trainer import SubmodelTrainer, Trainer


@dataclass(frozen=True)
class Member:
    """A client as the server knows it."""

    name: str
    device: Device
    rate: float
    """R_n: the share of the model it may train."""
    batch: int
    samples: int
    """Local training samples."""
    test_samples: int = 0
    rows: str = ""
    """The tokens of its data, as bits (`training.embeddings.token_rows`); empty: it has not said."""
    texts: tuple[int, int] = (0, 0)
    """Tokens of its longest text, and of all that it trains on; 0: it has not said, each is as long as can be."""
    largest: int = 0
    """Bytes for its tasks: fewer than it has, since one ran out; 0: all of them."""
    auto: bool = False
    """The recipe leaves its rate open: what it trains is planned by its memory."""
    part: Part | None = None
    """The part that it trains, once that is planned; None: as its rate says, or whatever its method finds that fits."""

    def training(self, part: Part) -> Member:
        """The same device when it trains this part."""
        rate = part.size if part.kind == "window" else self.rate
        return replace(self, part=part, rate=rate)


@dataclass(frozen=True)
class RunContext:
    """Every method is built from this."""

    config: ModelConfig
    members: Mapping[str, Member]
    training: TrainingSettings
    schedule: ScheduleSettings
    seed: int
    enforce_memory: bool = True
    """Refuse tasks that do not fit a device's memory."""
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    robust: RobustSettings = field(default_factory=RobustSettings)
    as_bound: bool = False
    """A method that is `over_budget` may train over a device's memory: it is there to compare with."""

    def tables(self, spec: SubmodelSpec, member: Member) -> SubmodelSpec:
        """The spec with as much of the token tables as `training.embeddings` gives this member.

        The server does this with every assignment; a method needs it only to know beforehand what a spec costs.
        """
        return cut_tables(spec, self.config, self.training.embeddings, member.rows)

    def credited(self, member: Member) -> int:
        """As many of a member's samples, which are its own word, as count; `robust.samples`."""
        return int(min(member.samples, self.most_credited))

    @cached_property
    def most_credited(self) -> float:
        """Samples of one device that count."""
        return most_credited((member.samples for member in self.members.values()), self.robust.samples)

    def full_memory(self, members: Iterable[Member] | None = None) -> int | None:
        """Bytes that training the whole model takes on the member with the smallest batch; None without members."""
        among = list(self.members.values() if members is None else members)
        if not among:
            return None
        member = min(among, key=lambda member: (member.batch, member.samples))
        spec = self.tables(SubmodelSpec.full(self.config), member)
        return peak(self.config, spec, workload(self.local(member), member.samples)).total

    def expected_tasks(self, updates_per_version: Literal["all", "one"] = "all") -> float:
        """How many tasks a client will have done at the end of the run, if all are equally quick.

        A synchronous version has an update of everybody, an asynchronous one of one.
        """
        schedule, clients = self.schedule, len(self.members)
        ends = []
        if schedule.updates:
            ends.append(schedule.updates / clients)
        if schedule.rounds:
            ends.append(schedule.rounds / (1 if updates_per_version == "all" else clients))
        return max(1.0, min(ends))

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.members)

    def local(self, member: Member, **changes: Any) -> LocalSettings:
        """The recipe's local training for this member, one exit, no distillation; `changes` are the method's."""
        plain = {**shared(self.training, LocalTraining), "batch": member.batch, "lambda2": 0.0, "features": "auto"}
        plain["texts"] = member.texts
        return LocalSettings.model_validate({**plain, **changes})


@dataclass(frozen=True)
class Call:
    """A client is ready for work: what `assign` may look at."""

    member: Member
    version: int
    cycle: int
    attempt: int
    weights: Weights
    """The current full model; not to be changed."""
    final: bool = False
    """Training is over: the round is the last one of a method that `statistics_last`."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """The client's next work."""

    spec: SubmodelSpec
    settings: Settings
    """As the trainer's `settings_type` has them."""
    trainer: type[Trainer] = SubmodelTrainer
    """One of the method's `trainers`."""
    quotas: tuple[BlockSize, ...] | None = None
    prefix_precision: Precision = "float32"
    lr_factor: float = 1.0


class Planned(Protocol):
    """A method as far as it is asked here; `methods.base.Method` is one."""

    context: RunContext

    @property
    def title(self) -> str: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def embeddings(self) -> tuple[Embeddings, ...]: ...
    @property
    def over_budget(self) -> bool: ...
    @property
    def by_memory(self) -> bool: ...
    @property
    def sized_by_rate(self) -> bool: ...
    @property
    def ratio(self) -> float: ...
    @property
    def statistics_last(self) -> bool: ...
    def parts(self, member: Member) -> Sequence[Part]: ...
    def assign(self, call: Call) -> Assignment: ...
    def accepted(self, order: Order, update: Update) -> None: ...
    def for_members(self, context: RunContext) -> Self: ...


def make_order(
    method: Planned,
    member: Member,
    assignment: Assignment,
    *,
    task: str = "",
    version: int = 0,
    cycle: int = 0,
    attempt: int = 0,
    progress: float = 0.0,
    lr: float | None = None,
    rates: Sequence[float] = (),
) -> Order:
    """A method's task; nothing is saved where it leaves that open. `progress`, 0 to 1, lowers the learning rate.

    `lr`: the run's rate, if it is found already; `rates`: those that the device is to try.
    """
    context, spec, training = method.context, assignment.spec, method.context.training
    if training.embeddings in method.embeddings:
        spec = context.tables(spec, member)

    def now(rate: float) -> float:
        return learning_rate(training.lr_schedule, rate, progress) * assignment.lr_factor

    return Order(
        client=member.name,
        task=task,
        version=version,
        cycle=cycle,
        attempt=attempt,
        seed=context.seed,
        trainer=assignment.trainer.name,
        settings=settled(assignment.settings).model_dump(mode="json"),
        lr=now(lr or training.first_lr),
        spec=spec,
        quotas=assignment.quotas,
        prefix_precision=assignment.prefix_precision,
        label_skew=training.label_skew,
        wire=training.wire.of_orders,
        rates=tuple(map(now, rates)),
    )

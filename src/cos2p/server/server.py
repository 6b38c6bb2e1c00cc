"""The server: the coordinator's decisions with the tensors they are about. No clock, socket or file.

A driver (simulation or network) feeds it news and raw updates, and carries out the effects it returns: send this task,
start this timer; an event is to be logged. Both drivers use this same object, so what is simulated is deployed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cos2p.aggregation.privacy.clipping import Draw
from cos2p.errors import BudgetError, UpdateRefused
from cos2p.memory.planning import lowered
from cos2p.memory.tasks import Member, RunContext
from cos2p.messages import Order, Update
from cos2p.messages.envelope import Buffer
from cos2p.methods.base import Method
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.server.aggregator import Aggregator
from cos2p.server.coordinator import Coordinator
from cos2p.server.orders import Orders, Versions
from cos2p.server.protocol import (
    Aggregate,
    ClientJoined,
    ClientLeft,
    Decision,
    Dispatch,
    Effect,
    Merge,
    News,
    Send,
    Stop,
    UpdateArrived,
    UpdateRejected,
)
from cos2p.server.rules import rules_of
from cos2p.server.update_reader import UpdateReader, refusal_reason
from cos2p.tracking.event_kinds import BUDGET_SPENT, Aggregated, Dispatched, Excluded, Left, Lowered, Merged, Refused
from cos2p.training.contract import TaskContract
from cos2p.training.rate_trial import at_own_rate


class ClosedTask(UpdateRefused):
    """An answer to a task that is answered or given up; the open one goes on."""

    def __init__(self, task: str) -> None:
        super().__init__("its task is closed: answered before, or given up")
        self.task = task


class Server:
    def __init__(
        self,
        context: RunContext,
        method: Method,
        weights: Weights,
        draw: Draw | None = None,
        *,
        exclude_unfit: bool = False,
    ) -> None:
        """`draw`: where privacy's noise comes from; by default the run's seed, so that a simulation is repeatable.

        `exclude_unfit`: a device for which no task can be made is excluded, and the others go on. Otherwise it is an
        error, because devices of a simulation are what the recipe says.
        """
        self.context, self.method, self._exclude_unfit = context, method, exclude_unfit
        self.aggregator = Aggregator(context, method, draw)
        self.coordinator = Coordinator(rules_of(context, method), tuple(context.members))
        self.versions = Versions(method.initial_weights(weights))
        self.orders = Orders(context, method, self.versions, self._forget_version)

    @property
    def weights(self) -> Weights:
        return self.versions.weights

    @property
    def progress(self) -> float:
        """How far the training is, 0 to 1, by rounds or by updates, whichever is further."""
        coordinator = self.coordinator
        return self.context.schedule.share_done(
            coordinator.version, coordinator.merged, coordinator.rules.final_updates
        )

    # ------------------------------------------------------------ what the driver calls

    def handle(self, news: News) -> list[Effect]:
        """Something happened that is not an update."""
        if isinstance(news, ClientJoined) and news.client in self._excluded:
            return [Excluded(client=news.client, task="", reason=self._excluded[news.client])]
        effects = self._carry_out(self._decide(news))
        if isinstance(news, UpdateRejected) and self.coordinator.is_excluded(news.client):
            # For the whole run: one that says `ready` again is the one that sent all this.
            self._excluded.setdefault(news.client, f"its updates were refused; the last one: {news.reason}")
        self._forget(getattr(news, "client", ""))
        return effects

    def exclude(self, client: str, reason: str) -> list[Effect]:
        """No more tasks for this client in this run, also if it joins anew; its open one is not waited for."""
        self.aggregator.robust_filter.excluded.setdefault(client, reason)
        return self._exclude(client) + self.handle(ClientLeft(client))

    def receive(self, sender: str, data: Buffer) -> list[Effect]:
        """An update came in from `sender` (as the transport knows it, not as the update says).

        One that is refused changes nothing but this: its sender has done with its task and gets a new one.
        """
        privacy = self.aggregator.privacy
        if privacy is not None and sender in self.context.members:
            privacy.received(sender)
        dispatch = self.coordinator.in_flight().get(sender)
        if dispatch is None:
            out = self.coordinator.is_excluded(sender)
            reason = "it is excluded from this run" if out else "it has no open task"
            return [Refused(client=sender, task="", reason=reason)]
        try:
            accepted = self._let_in(dispatch, data)
        except ClosedTask as closed:  # the device is at work on a newer task
            return [Refused(client=sender, task=closed.task, reason=str(closed))]
        except Exception as error:  # whatever an update does to whoever reads it, the run goes on without it
            reason = refusal_reason(error)
            refused = Refused(client=sender, task=dispatch.task, reason=reason)
            return [refused, *self.handle(UpdateRejected(sender, dispatch.task, reason))]
        effects = self._carry_out(self._decide(UpdateArrived(sender, dispatch.task)), accepted)
        self._forget(sender)
        return effects

    def welcome(self, member: Member) -> None:
        """A client that was not known beforehand, or whose figures changed: its next task is cut to them.

        Call it before the `ClientJoined` or `TaskFailed` that makes the client get its next task.
        """
        if self.context.members.get(member.name) == member:
            return
        self.context = replace(self.context, members={**self.context.members, member.name: member})
        method = self.method.for_members(self.context)
        method.load_state(*self.method.state())
        self.method = self.orders.method = method
        self.orders.context = self.context
        self.aggregator.take_members(self.context, method)
        self._renew_rules()

    def lower(self, client: str, task: str) -> Lowered:
        """A task ran out of memory: the client's next one is smaller, as the ledger says."""
        member, order = self.context.members[client], self.orders.get(task)
        needed = 0 if order is None else self.orders.needed_memory(order)  # it may have been given up meanwhile
        smaller = lowered(self.method, member, needed)
        self.welcome(smaller)
        return Lowered(client=client, was=member.rate, rate=smaller.rate, memory=member.device.memory)

    def dispatched(self, order: Order, size: int, seconds: dict[str, float] | None = None) -> Dispatched:
        """A task of `size` bytes goes out; `seconds` are its phases, where they are known beforehand."""
        return Dispatched(
            client=order.client,
            task=order.task,
            version=order.version,
            cycle=order.cycle,
            window=_trained_blocks(self.orders.contract(order), order.spec),
            exits=list(order.spec.exits),
            masks=order.quotas is not None,
            lr=order.lr,
            bytes=size,
            peak_memory=self.orders.needed_memory(order),
            seconds=seconds,
        )

    # ------------------------------------------------------------ an update

    def _let_in(self, dispatch: Dispatch, data: Buffer) -> Merged | None:
        """Read, check and add an update; None if it is too late to be added.

        Raises UpdateRefused for what is wrong with it, and anything else that a method may raise over it.
        """
        client, order = dispatch.client, self.orders[dispatch.task]
        samples = self.context.members[client].samples
        contract = self.orders.contract(order)
        largest = self.aggregator.largest_step(order, contract, self.versions[order.version])
        reader = UpdateReader(order, self.context.config, contract, samples, largest)
        opened = reader.open(data)
        task = opened.meta.get("task")
        if isinstance(task, str) and self.coordinator.was_closed(client, task):
            raise ClosedTask(task)
        if order.rates:
            report = opened.meta.get("report")
            order = at_own_rate(order, report if isinstance(report, Mapping) else {})
            reader = replace(reader, order=order, contract=self.orders.contract(order))
        update, size = reader.read(opened)
        if self.coordinator.too_late(dispatch):
            return None
        return self._add(order, update, size, self.coordinator.staleness(dispatch), largest)

    def _add(self, order: Order, update: Update, size: float, staleness: int, largest: float) -> Merged:
        received = self.versions[order.version]
        weight = self.aggregator.add(order, update, staleness, received, self.weights, largest)
        try:
            self.method.accepted(order, update)
        except Exception:
            self.aggregator.robust_filter.drop(order.task)
            raise
        self.orders.rates.note(order, update.report)
        report = update.report
        self.orders.caches.answered(
            order, stored=not report.get("uncached"), features_kept=not report.get("prefix_recomputed")
        )
        if self.aggregator.privacy is not None:  # no noise covers how large an update is, nor its report
            self.aggregator.privacy.merged(order.client)
            update, size = update.without_figures(), 0.0
        window = _trained_blocks(self.orders.contract(order), update.spec)
        return Merged(
            client=order.client,
            task=order.task,
            version=order.version,
            staleness=staleness,
            window=window,
            kept=update.spec.to_dict()["window"][: window[1] - window[0]],
            size=size,
            weight=weight,
            report=dict(update.report),
        )

    # ------------------------------------------------------------ carrying out what the coordinator decides

    def _decide(self, news: News) -> list[Decision]:
        """A final round may begin without a new version, where training was over before its time: it has its rules."""
        before = self.coordinator.in_final_round
        decisions = self.coordinator.handle(news)
        if self.coordinator.in_final_round and not before:
            self._renew_rules()
        return decisions

    def _carry_out(self, decisions: list[Decision], accepted: Merged | None = None) -> list[Effect]:
        effects: list[Effect] = []
        for decision in decisions:
            if isinstance(decision, Merge):
                assert accepted is not None
                effects.append(accepted)
                if self.aggregator.robust_filter.full:
                    effects += self.aggregator.release(self.weights)
            elif isinstance(decision, Aggregate):
                effects += self._aggregate(decision)
            elif isinstance(decision, Dispatch):
                effects += self._give(decision)
            else:
                effects.append(decision)
        return effects

    def _give(self, dispatch: Dispatch) -> list[Effect]:
        """A task, unless the client was excluded for the very round that made it ready, or has spent its budget."""
        client = dispatch.client
        if self.coordinator.is_excluded(client):
            return self._carry_out(self._decide(ClientLeft(client)))
        if not self.aggregator.affords(client):
            return self._let_go(client)
        try:
            return [Send(self.order(dispatch))]
        except BudgetError as error:  # it follows from what the client says of itself
            if not self._exclude_unfit:
                raise
            excluded = self._carry_out(self.coordinator.exclude(client, str(error)))
            return excluded + self._carry_out(self._decide(ClientLeft(client)))

    def order(self, dispatch: Dispatch) -> Order:
        """The client's order, open from now on. BudgetError if it cannot be done."""
        return self.orders.make(dispatch, self.progress, self.coordinator.in_final_round)

    def _let_go(self, client: str) -> list[Effect]:
        """The client has spent its privacy budget. When all have, the run is over."""
        effects: list[Effect] = [Left(client=client, reason=BUDGET_SPENT)]
        effects += self._carry_out(self._decide(ClientLeft(client)))
        if not any(map(self.aggregator.affords, self.context.members)):
            effects += self._carry_out(self._decide(Stop(BUDGET_SPENT)))
        return effects

    def _aggregate(self, decision: Aggregate) -> list[Effect]:
        aggregator = self.aggregator
        effects: list[Effect] = [*aggregator.release(self.weights)]
        closed = Aggregated(
            round=decision.round,
            version=decision.version,
            clients=list(decision.clients),
            updates=decision.updates,
            **aggregator.coverage(),
        )
        after, undone = aggregator.apply(self.method, self.weights, decision.clients)
        self.versions.advance(after, keep=self.versions.current in self.coordinator.in_flight_versions())
        if self.method.statistics_first or self.method.statistics_last:
            self._renew_rules()
        excluded = [effect for client in self._newly_excluded() for effect in self._exclude(client)]
        rated = self.orders.rates.settle(self.context.schedule.taking_part(len(self.context.members)))
        return [*effects, *undone, *aggregator.spent(), closed, *rated, *excluded]

    # ------------------------------------------------------------ who takes part

    @property
    def _excluded(self) -> dict[str, str]:
        return self.aggregator.robust_filter.excluded

    def _newly_excluded(self) -> list[str]:
        return [client for client in self._excluded if not self.coordinator.is_excluded(client)]

    def _exclude(self, client: str) -> list[Effect]:
        effects = self._carry_out(self.coordinator.exclude(client, self._excluded[client]))
        self._forget(client)
        return effects

    def _renew_rules(self) -> None:
        coordinator = self.coordinator
        coordinator.rules = rules_of(self.context, self.method, coordinator.version, coordinator.in_final_round)

    def _forget(self, client: str) -> None:
        """Drop what no open task needs any more. Only the client that the news was about can have closed one."""
        if self.coordinator.finished is not None:
            for other in self.orders.clients():
                self.orders.close(other)
            return
        task = self.orders.task_of(client)
        if task is not None and self.coordinator.ticket(client, task) is None:
            self.orders.close(client)

    def _forget_version(self, version: int) -> None:
        if (
            version not in self.coordinator.in_flight_versions()
            and version not in self.aggregator.robust_filter.versions
        ):
            self.versions.forget(version)

    # ------------------------------------------------------------ checkpoint

    def state(self) -> tuple[dict[str, Any], dict[str, Weights]]:
        """Everything that is not in the recipe: JSON, and named groups of tensors (shared ones are the same object)."""
        values, tensors = self.method.state()
        aggregator, sums = self.aggregator.state()
        groups = {f"version.{v}": self.versions[v] for v in self.versions.held}
        return {
            **aggregator,
            **self.orders.state(),
            "coordinator": self.coordinator.to_dict(),
            "current": self.versions.current,
            "method": values,
        }, {**groups, **sums, "method": tensors}

    def load_state(self, values: Mapping[str, Any], groups: Mapping[str, Weights]) -> None:
        self.coordinator = Coordinator.from_dict(values["coordinator"], tuple(self.context.members))
        self._renew_rules()
        self.coordinator.reconsider_final_round()
        self._renew_rules()
        self.versions = Versions.restored(int(values["current"]), groups, self.versions.spool)
        self.aggregator.load_state(self.method, values, groups, self.versions.__getitem__)
        self.orders.load_state(values, self.versions)
        self.method.load_state(values["method"], groups.get("method", {}))


def _trained_blocks(contract: TaskContract, spec: SubmodelSpec) -> list[int]:
    """The first block that trains and the one after the last; equal where nothing does."""
    return [spec.frozen if contract.trains else spec.top, spec.top]

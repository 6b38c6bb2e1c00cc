"""The server: the coordinator's decisions with the tensors they are about. No clock, socket or file.

A driver (simulation or network) feeds it news and raw updates, and carries out the effects it returns: send this task,
start this timer; an event is to be written down. Both drivers use this same object, so what is simulated is deployed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cos2p.accelerator import CPU
from cos2p.aggregation.admission import check_decoded, check_finite, refusal_reason
from cos2p.aggregation.door import Door
from cos2p.aggregation.merge import Contribution
from cos2p.aggregation.merge import Merge as MergePart
from cos2p.aggregation.placed import placed
from cos2p.aggregation.privacy.clipping import Draw
from cos2p.aggregation.privacy.guard import check_covered
from cos2p.aggregation.robust.claims import credited
from cos2p.aggregation.versions import Versions
from cos2p.errors import BudgetError, UpdateRefused
from cos2p.messages import Order, Task, Update, pieces_of, tensor_bytes, write_task
from cos2p.messages.envelope import Buffer, Envelope
from cos2p.methods import Trainer, make_trainer, trainers
from cos2p.methods.base import Call, Member, Method, RunContext
from cos2p.models.layout import Weights
from cos2p.models.one_piece import MOST_BYTES
from cos2p.models.spec import SubmodelSpec
from cos2p.numerics.optimizers import learning_rate
from cos2p.runtime.coordinator import Coordinator
from cos2p.runtime.decisions import (
    Action,
    Aggregate,
    Bench,
    ClientJoined,
    ClientLeft,
    Dispatch,
    Drop,
    Finish,
    Merge,
    News,
    StartTimer,
    Stop,
    Ticket,
    UpdateArrived,
    UpdateRejected,
)
from cos2p.runtime.effects import Done, Effect, NewVersion, Send, Timer
from cos2p.runtime.fit import advice, check_fit, check_last_fit, saving_as_needed
from cos2p.runtime.protection import guard_of, privacy_of, spent
from cos2p.runtime.run_rules import rules_of
from cos2p.runtime.shelves import Shelves
from cos2p.seeding import torch_rng
from cos2p.tracking.event_kinds import (
    BUDGET_SPENT,
    Aggregated,
    Benched,
    Dispatched,
    Doubted,
    Dropped,
    Left,
    Merged,
    Refused,
)
from cos2p.training.prefix import encode
from cos2p.training.statistics import tells_last
from cos2p.training.wire import packed


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
        bench_unfit: bool = False,
        device: torch.device = CPU,
    ) -> None:
        """`draw`: where privacy's noise comes from; by default the run's seed, so that a simulation is repeatable.

        `bench_unfit`: a device for which no task can be made is benched, and the others go on. Otherwise it is an
        error, because devices of a simulation are what the recipe says. `device`: where updates are merged.
        """
        self._device = device
        self.context, self.method, self._bench_unfit = context, method, bench_unfit
        self.privacy = privacy_of(context, method, draw or partial(torch_rng, context.seed))
        self.coordinator = Coordinator(rules_of(context, method), tuple(context.members), self._worth)
        self.versions = Versions(method.initial_weights(weights))
        self.merge = self._make_merge(method)
        self.guard = guard_of(context)
        self.orders: dict[str, Order] = {}
        """Every unanswered task."""
        self._task_of: dict[str, str] = {}
        """The unanswered task of each client that has one."""
        self._trainers: dict[str, Trainer] = {}
        """By open task."""
        self._newest: Trainer | None = None
        """Of the order that is being made."""
        self._shared: tuple[tuple[int, SubmodelSpec, str], Weights] | None = None
        """What the last task was given, and what it was cut by."""
        self._judged: tuple[int, Weights] | None = None
        """The version that is told about at the end, as the method judges it."""
        self.shelves = Shelves(context.config)
        self.trained = [0] * context.config.depth
        """How many updates held each block."""

    @property
    def weights(self) -> Weights:
        return self.versions.weights

    @property
    def progress(self) -> float:
        """How far the training is, 0 to 1, by rounds or by updates, whichever is further."""
        coordinator = self.coordinator
        return self.context.schedule.share_done(coordinator.version, coordinator.merged, coordinator.rules.finale)

    # ------------------------------------------------------------ what the driver calls

    def handle(self, news: News) -> list[Effect]:
        """Something happened that is not an update."""
        if isinstance(news, ClientJoined) and news.client in self.guard.barred:
            return [Benched(client=news.client, task="", reason=self.guard.barred[news.client])]
        effects = self._carry_out(self._decide(news))
        self._forget(getattr(news, "client", ""))
        return effects

    def receive(self, sender: str, data: Buffer | Update) -> list[Effect]:
        """An update came in from `sender` (as the transport knows it, not as the update says).

        One that is refused changes nothing but this: its sender has done with its task and gets a new one.
        """
        if self.privacy is not None and sender in self.context.members:
            self.privacy.received(sender)
        ticket = self.coordinator.in_flight().get(sender)
        if ticket is None:
            return [Refused(client=sender, task="", reason="it has no open task")]
        try:
            accepted = self._let_in(sender, ticket, data)
        except ClosedTask as closed:  # the device is at work on a newer task
            return [Refused(client=sender, task=closed.task, reason=str(closed))]
        except Exception as error:  # whatever an update does to whoever reads it, the run goes on without it
            reason = refusal_reason(error)
            told = Refused(client=sender, task=ticket.task, reason=reason)
            return [told, *self.handle(UpdateRejected(sender, ticket.task, reason))]
        effects = self._carry_out(self._decide(UpdateArrived(sender, ticket.task)), accepted)
        self._forget(sender)
        return effects

    def _decide(self, news: News) -> list[Action]:
        """A last round may begin without a new version, where training was over before its time: it has its rules."""
        before = self.coordinator.in_finale
        actions = self.coordinator.handle(news)
        if self.coordinator.in_finale and not before:
            self._renew_rules()
        return actions

    def _let_in(self, sender: str, ticket: Ticket, data: Buffer | Update) -> Merged | None:
        """Read, check, decode, bound and add an update; None if it is too old to be added.

        Raises UpdateRefused for what is wrong with it, and anything else that a method may raise over it.
        """
        config, order = self.context.config, self.orders[ticket.task]
        samples = self.context.members[sender].samples
        door = Door(order, config, self.trainer(order), samples, self._largest_rms())
        opened = data if isinstance(data, Update) else door.open(data)
        task = opened.meta.get("task") if isinstance(opened, Envelope) else opened.task
        if isinstance(task, str) and self.coordinator.was_closed(sender, task):
            raise ClosedTask(task)
        update, size = door.read(opened) if isinstance(opened, Envelope) else door.check(opened)
        if self.coordinator.too_stale(ticket):
            return None
        return self._add(order, update, size)

    def _add(self, order: Order, update: Update, size: float) -> Merged:
        """Into the running sums; or into the guard's hands, until the round closes."""
        staleness = self.coordinator.version - order.version
        update = credited(update, self.context.most_credited)
        item = Contribution(
            client=order.client,
            spec=update.spec,
            delta=update.delta,
            samples=update.samples,
            staleness=staleness,
            received=self.versions[order.version],
            settings=order.settings,
            extras=update.extras,
            down=order.wire.down,
        )
        decoded = self.merge.decode(item, self.weights)
        if decoded is not item:
            check_decoded(decoded.delta, self._largest_rms())
        ready = self.guard.take(decoded, order.task, order.version)
        weight = self.merge.weigh(decoded, self.weights) if ready is None else self.merge.add(ready, self.weights)
        try:
            self.method.accepted(order, update)
        except Exception:
            self.guard.drop(order.task)
            raise
        self.shelves.answered(order, features_kept=not update.report.get("prefix_recomputed"))
        if self.privacy is not None:  # how large an update is, and what was told of it, no noise covers
            self.privacy.merged(order.client)
            update, size = update.without_figures(), 0.0
        window = _trained_blocks(order.trainer, update.spec)
        for block in range(*window):
            self.trained[block] += 1
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

    def welcome(self, member: Member) -> None:
        """A client that was not known beforehand, or whose figures changed: its next task is cut to them.

        Call it before the `ClientJoined` or `TaskFailed` that makes the client get its next task.
        """
        if self.context.members.get(member.name) == member:
            return
        self.context = replace(self.context, members={**self.context.members, member.name: member})
        method = type(self.method)(self.method.settings, self.context)
        method.load_state(*self.method.state())
        merge = self._make_merge(method)
        merge.take_over(self.merge)
        self.method, self.merge = method, merge
        self._renew_rules()

    def _largest_rms(self) -> float:
        limit = self.context.schedule.max_update_rms
        return limit if self.privacy is None else self.privacy.largest_rms(limit)

    def _make_merge(self, method: Method) -> MergePart:
        own = method.merge()
        if self.privacy is not None:
            own = self.privacy.merge(self.context.config, own)
        return placed(own, self._device)

    def _renew_rules(self) -> None:
        coordinator = self.coordinator
        coordinator.rules = rules_of(self.context, self.method, coordinator.version, coordinator.in_finale)

    def _worth(self, client: str) -> float:
        """How much a client's next task would be worth, where the schedule chooses by that."""
        member = self.context.members[client]
        if self.context.schedule.choose == "speed":
            return member.device.flops / max(1, member.samples)
        blocks = self.method.next_blocks(member, self.coordinator.cycle_of(client))
        return -min(self.trained[block] for block in blocks)

    def trainer(self, order: Order) -> Trainer:
        """Who does the work of this order; the same one for as long as it is open."""
        known = self._trainers.get(order.task)
        if known is None or known.order is not order:
            known = self._newest
            if known is None or known.order is not order:
                known = self._newest = make_trainer(self.context.config, order)
            if order.task in self.orders:
                self._trainers[order.task] = known
        return known

    def task(self, order: Order) -> Task:
        """The order with its tensors, cut from the version it names. Can be made again as long as it is open."""
        weights, trainer = self._asked_of(order), self.trainer(order)
        frozen = trainer.sent_frozen(weights)
        if order.shelved is not None:
            held = tuple(order.shelved.held)
            frozen = {name: tensor for name, tensor in frozen.items() if not name.startswith(held)}
        return Task(order, weights=self._sent(order, trainer), prefix=encode(frozen, order.prefix_precision))

    def _sent(self, order: Order, trainer: Trainer) -> Weights:
        """The trainable part. Of a small model, tasks of a version that are given the same one are given the very
        same."""
        key = order.version, order.spec, order.wire.down
        if self._shared is not None and self._shared[0] == key and type(trainer).sent is Trainer.sent:
            return self._shared[1]
        sent = packed(trainer.sent(self._asked_of(order)), order.wire.down)
        small = tensor_bytes(sent) <= MOST_BYTES
        self._shared = (key, sent) if small and type(trainer).sent is Trainer.sent else None
        return sent

    def _asked_of(self, order: Order) -> Weights:
        """The model that a task is cut from: its version, or, of one that is told about at the end, what is judged."""
        weights = self.versions[order.version]
        if not tells_last(order):
            return weights
        if self._judged is None or self._judged[0] != order.version:
            self._judged = order.version, self.method.evaluated_weights(weights)
        return self._judged[1]

    def write_task(self, order: Order, path: Path) -> None:
        """The same into a file. Of a large model no second copy is made for it."""
        weights, trainer = self._asked_of(order), self.trainer(order)
        held = tuple(order.shelved.held) if order.shelved is not None else ()
        frozen = {name: piece for name, piece in trainer.frozen_pieces(weights).items() if not name.startswith(held)}
        write_task(path, order, pieces_of(packed(trainer.sent(weights), order.wire.down)), frozen)

    # ------------------------------------------------------------ carrying out what the coordinator says

    def _carry_out(self, actions: list[Action], accepted: Merged | None = None) -> list[Effect]:
        effects: list[Effect] = []
        for action in actions:
            if isinstance(action, Merge):
                assert accepted is not None
                effects.append(accepted)
                if self.guard.full:
                    effects += self._release()
            elif isinstance(action, Aggregate):
                effects += self._aggregate(action)
            elif isinstance(action, Dispatch):
                effects += self._give(action)
            elif isinstance(action, StartTimer):
                effects.append(Timer(action.timer, action.seconds))
            elif isinstance(action, Drop):
                effects.append(Dropped(client=action.client, task=action.task, reason=action.reason))
            elif isinstance(action, Bench):
                effects.append(Benched(client=action.client, task="", reason=action.reason))
            elif isinstance(action, Finish):
                effects.append(Done(action.reason))
        return effects

    def _give(self, action: Dispatch) -> list[Effect]:
        """A task, unless the client was benched for the very round that made it ready, or has spent its budget."""
        client = action.client
        if self.coordinator.is_benched(client):
            return self._carry_out(self._decide(ClientLeft(client)))
        if not self._affords(client):
            return self._let_go(client)
        try:
            return [Send(self.order(action))]
        except BudgetError as error:  # it follows from what the client says of itself
            if not self._bench_unfit:
                raise
            benched = self._carry_out(self.coordinator.bar(client, str(error)))
            return benched + self._carry_out(self._decide(ClientLeft(client)))

    def _affords(self, client: str) -> bool:
        return self.privacy is None or self.privacy.account.allows(client)

    def _let_go(self, client: str) -> list[Effect]:
        """The client has spent its privacy budget. When all have, the run is over."""
        effects: list[Effect] = [Left(client=client, reason=BUDGET_SPENT)]
        effects += self._carry_out(self._decide(ClientLeft(client)))
        if not any(map(self._affords, self.context.members)):
            effects += self._carry_out(self._decide(Stop(BUDGET_SPENT)))
        return effects

    def order(self, action: Dispatch) -> Order:
        """What the client shall do, open from now on. BudgetError if it cannot."""
        member, training = self.context.members[action.client], self.context.training
        final = self.coordinator.in_finale
        call = Call(member, action.version, action.cycle, action.attempt, self.weights, final)
        check_last_fit(self.method, call)
        try:
            assignment = self.method.assign(call)
        except BudgetError as error:
            raise BudgetError(f"{member.name}: {error}; {advice(self.method, member)}") from None
        spec = assignment.spec
        if training.embeddings in self.method.embeddings:
            spec = self.context.tables(spec, member)
        lr = learning_rate(training.lr_schedule, training.lr, self.progress, training.lr_floor * training.lr)
        order = Order(
            client=action.client,
            task=action.task,
            version=action.version,
            cycle=action.cycle,
            attempt=action.attempt,
            seed=self.context.seed,
            trainer=assignment.trainer.name,
            settings=assignment.settings.model_dump(mode="json"),
            lr=lr * assignment.lr_factor,
            spec=spec,
            quotas=assignment.quotas,
            prefix_precision=assignment.prefix_precision,
            label_skew=training.label_skew,
            wire=training.wire.of_orders,
        )
        order = saving_as_needed(order, self.trainer(order), member.device.memory, self.needed_memory)
        if assignment.drift is not None:
            order = replace(order, shelved=self.shelves.plan(order, self.weights, assignment.drift))
        if self.privacy is not None:
            check_covered(order, self.context.config, training.embeddings)
        check_fit(self.method, order, self.needed_memory(order))
        self._drop_order(order.client)
        self.orders[order.task], self._task_of[order.client] = order, order.task
        return order

    def dispatched(self, order: Order, size: int, seconds: dict[str, float] | None = None) -> Dispatched:
        """A task of `size` bytes goes out; `seconds` are its phases, where they are known beforehand."""
        return Dispatched(
            client=order.client,
            task=order.task,
            version=order.version,
            cycle=order.cycle,
            window=_trained_blocks(order.trainer, order.spec),
            exits=list(order.spec.exits),
            masks=order.quotas is not None,
            lr=order.lr,
            bytes=size,
            peak_memory=self.needed_memory(order),
            seconds=seconds,
        )

    def needed_memory(self, order: Order) -> int:
        """Bytes to train it, by the ledger."""
        samples = self.context.members[order.client].samples
        return self.trainer(order).memory(samples).total

    def _aggregate(self, action: Aggregate) -> list[Effect]:
        effects = self._release()
        closed = Aggregated(
            round=action.round,
            version=action.version,
            clients=list(action.clients),
            updates=action.updates,
            **self._coverage(),
        )
        before, asked_for = self.weights, self.versions.current in self.coordinator.in_flight_versions()
        try:
            after = self.merge.apply(before)
            check_finite(before, after)
        except Exception as error:  # the door should have seen it; if it did not, the model stays as it was
            reason = f"the round it took part in is undone: {refusal_reason(error)}"
            effects += [Refused(client=client, task="", reason=reason) for client in action.clients]
            after, self.merge = before, self._make_merge(self.method)
        old = self.versions.current
        self.versions.advance(after, keep=asked_for)
        if asked_for:
            self.merge.put_away(before, self.versions[old])
        self.shelves.moved(before, after)
        if self.method.gathers_first or self.method.gathers_last:
            self._renew_rules()
        barred = [effect for client in self._newly_barred() for effect in self._bar(client)]
        return [*effects, closed, *self._spent(), NewVersion(action.version), *barred]

    def _release(self) -> list[Effect]:
        """The guard gives back what it kept of this round."""
        items, doubts = self.guard.release(self.merge, self.weights)
        effects: list[Effect] = []
        for item in items:
            try:
                self.merge.add(item, self.weights)
            except Exception as error:
                effects.append(Refused(client=item.client, task="", reason=refusal_reason(error)))
        return effects + [
            Doubted(
                client=d.client, task=d.task, agreement=round(d.agreement, 4), trust=round(d.trust, 4), reason=str(d)
            )
            for d in doubts
        ]

    def _newly_barred(self) -> list[str]:
        return [client for client in self.guard.barred if not self.coordinator.is_benched(client)]

    def _bar(self, client: str) -> list[Effect]:
        return self._carry_out(self.coordinator.bar(client, self.guard.barred[client]))

    def _spent(self) -> list[Effect]:
        """A round is closed: what the run has cost so far."""
        if self.privacy is None:
            return []
        self.privacy.account.close_round()
        return [spent(self.privacy)]

    def _coverage(self) -> dict[str, Any]:
        """How many of the round's updates held each head, and the units of each block at least, on average."""
        config, holders = self.context.config, self.merge.holders
        heads: list[list[int]] = []
        units: list[list[float]] = []
        least = math.inf
        for block in range(config.depth):
            h, u = holders.get(f"heads.{block}"), holders.get(f"units.{block}")
            heads.append([0] * config.groups if h is None else [int(v) for v in h.tolist()])
            units.append([0, 0] if u is None else [int(u.min()), round(float(u.mean()), 3)])
            least = min(least, *heads[-1], units[-1][0])
        return {"n_star": int(least), "heads": heads, "units": units}

    def _forget(self, client: str) -> None:
        """Drop what no open task needs any more. Only the client that the news was about can have closed one."""
        if self.coordinator.finished is not None:
            for other in list(self._task_of):
                self._drop_order(other)
        elif client in self._task_of and self.coordinator.ticket(client, self._task_of[client]) is None:
            self._drop_order(client)

    def _drop_order(self, client: str) -> None:
        task = self._task_of.pop(client, None)
        if task is not None:
            self._trainers.pop(task, None)
            self._forget_version(self.orders.pop(task).version)

    def _forget_version(self, version: int) -> None:
        if version not in self.coordinator.in_flight_versions() and version not in self.guard.versions:
            self.versions.forget(version)

    # ------------------------------------------------------------ checkpoint

    def state(self) -> tuple[dict[str, Any], dict[str, Weights]]:
        """Everything that is not in the recipe: JSON, and named groups of tensors (shared ones are the same object)."""
        values, tensors = self.method.state()
        groups = {f"version.{v}": self.versions[v] for v in self.versions.held}
        groups |= {f"merge.{name}": group for name, group in self.merge.state().items()}
        groups["method"] = tensors
        guard, kept = self.guard.state()
        groups |= {f"guard.{name}": group for name, group in kept.items()}
        private = {} if self.privacy is None else {"privacy": self.privacy.state()}
        return {
            **private,
            "guard": guard,
            "coordinator": self.coordinator.to_dict(),
            "current": self.versions.current,
            "orders": [order.to_dict() for order in self.orders.values()],
            "method": values,
            "trained": self.trained,
            "shelves": self.shelves.state(),
        }, groups

    def load_state(self, values: Mapping[str, Any], groups: Mapping[str, Weights]) -> None:
        self.coordinator = Coordinator.from_dict(values["coordinator"], tuple(self.context.members), self._worth)
        self._renew_rules()
        self.coordinator.reconsider_finale()
        self._renew_rules()
        if self.privacy is not None:
            self.privacy.load_state(values["privacy"])
            self.merge = self._make_merge(self.method)
        current, self._shared = int(values["current"]), None
        self.versions = Versions(groups[f"version.{current}"], current, self.versions.spool)
        for name, group in groups.items():
            kind, _, rest = name.partition(".")
            if kind == "version" and int(rest) != current:
                self.versions.restore(int(rest), group)
        self.merge.load_state({n.removeprefix("merge."): g for n, g in groups.items() if n.startswith("merge.")})
        if "guard" in values:
            kept = {n.removeprefix("guard."): g for n, g in groups.items() if n.startswith("guard.")}
            self.guard.load_state(values["guard"], kept, self.versions.__getitem__)
        self.orders = {entry["task"]: Order.from_dict(entry) for entry in values["orders"]}
        self._task_of = {order.client: order.task for order in self.orders.values()}
        self.trained = list(values["trained"])
        self.shelves.load_state(values["shelves"])
        self.method.load_state(values["method"], groups.get("method", {}))


def _trained_blocks(trainer: str, spec: SubmodelSpec) -> list[int]:
    """The first block that trains and the one after the last; equal where nothing does."""
    return [spec.frozen if trainers()[trainer].trains else spec.top, spec.top]

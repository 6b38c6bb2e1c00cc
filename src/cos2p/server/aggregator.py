"""`Aggregator`: from accepted updates to the next version of the model, with robust filter and privacy in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cos2p.aggregation.merge import Contribution, Merge
from cos2p.aggregation.privacy.checks import Privacy, check_rounds, holders_per_round
from cos2p.aggregation.privacy.clipping import Draw
from cos2p.aggregation.robust.filter import RobustFilter, credited
from cos2p.errors import ConfigError
from cos2p.messages import Order, Update
from cos2p.methods.base import Method, RunContext
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng
from cos2p.server.update_reader import check_decoded, check_finite, refusal_reason, root_mean_square
from cos2p.tracking.event_kinds import Doubted, Event, Refused, Spent
from cos2p.training.contract import TaskContract
from cos2p.training.shard import steps

FREE_STEPS = 25
"""An update may be so many times as long as the weights, or as its steps if all of them went one way. Honest updates of
all methods are below 5 times either."""
VERSIONS = 64
"""Whose sizes are remembered: an older one may lie on a disk."""
LARGEST_FEATURES = 10.0
"""Root mean square of features that statistics are about."""


class Aggregator:
    def __init__(self, context: RunContext, method: Method, draw: Draw | None) -> None:
        """`draw`: where privacy's noise comes from; by default the run's seed, so that a simulation is repeatable."""
        self.context = context
        draw = draw or partial(torch_rng, context.seed)
        self.privacy, self.robust_filter = privacy_of(context, method, draw), filter_of(context, draw)
        self.merge = self._make_merge(method)
        self._sizes: dict[int, float] = {}
        """Root mean square of the weights, of the versions that updates were trained from last."""

    def take_members(self, context: RunContext, method: Method) -> None:
        """The method is another one, made for other members: its merge goes on with the sums so far."""
        self.context = context
        merge = self._make_merge(method)
        merge.take_over(self.merge)
        self.merge = merge

    def _make_merge(self, method: Method) -> Merge:
        own = method.merge()
        return own if self.privacy is None else self.privacy.merge(self.context.config, own)

    def largest_step(self, order: Order, contract: TaskContract, received: Weights) -> float:
        """The largest root mean square of an answer to this order, and the largest change of any one weight."""
        limit = self.context.schedule.max_update_rms
        if limit is None and not contract.trains:
            limit = LARGEST_FEATURES
        elif limit is None:
            if order.version not in self._sizes:
                self._sizes = {**dict(list(self._sizes.items())[-VERSIONS:]), order.version: root_mean_square(received)}
            local, samples = contract.local, self.context.credited(self.context.members[order.client])
            limit = FREE_STEPS * max(self._sizes[order.version], order.lr * steps(samples, local.batch, local.epochs))
        return limit if self.privacy is None else self.privacy.largest_rms(limit)

    # ------------------------------------------------------------ an update

    def add(
        self, order: Order, update: Update, staleness: int, received: Weights, current: Weights, largest: float
    ) -> dict[str, float] | None:
        """Decode the update, bound it, add it to the running sums or hold it until the round closes.

        Whatever form it came in, it moves no weight by more than `largest`.
        Returns how much it counts, by kind of segment. Raises UpdateRefused, or whatever a method raises over it.
        """
        update = credited(update, self.context.most_credited)
        item = Contribution(
            client=order.client,
            spec=update.spec,
            delta=update.delta,
            samples=update.samples,
            staleness=staleness,
            received=received,
            settings=order.settings,
            extras=update.extras,
            down=order.wire.down,
        )
        decoded = self.merge.decode(item, current)
        if decoded is not item:
            check_decoded(decoded.delta, largest)
        check_decoded(self.merge.products(decoded), largest)
        ready = self.robust_filter.take(decoded, order.task, order.version)
        return self.merge.weigh(decoded, current) if ready is None else self.merge.add(ready, current)

    def release(self, current: Weights) -> list[Event]:
        """Add what the robust filter held of this round."""
        items, doubts = self.robust_filter.release(self.merge, current)
        events: list[Event] = []
        for item in items:
            try:
                self.merge.add(item, current)
            except Exception as error:
                events.append(Refused(client=item.client, task="", reason=refusal_reason(error)))
        return events + [
            Doubted(
                client=d.client, task=d.task, agreement=round(d.agreement, 4), trust=round(d.trust, 4), reason=str(d)
            )
            for d in doubts
        ]

    # ------------------------------------------------------------ a round

    def apply(self, method: Method, before: Weights, clients: tuple[str, ...]) -> tuple[Weights, list[Event]]:
        """The next version. If the sums do not give one, the model stays as it was and events name the clients."""
        try:
            after = self.merge.apply(before)
            check_finite(before, after)
        except Exception as error:  # the reader should have refused the update; if it did not, the model is unchanged
            reason = f"the round it took part in is undone: {refusal_reason(error)}"
            self.merge = self._make_merge(method)
            return before, [Refused(client=client, task="", reason=reason) for client in clients]
        return after, []

    def coverage(self) -> dict[str, Any]:
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

    def spent(self) -> list[Spent]:
        if self.privacy is None:
            return []
        self.privacy.account.close_round()
        return [spent(self.privacy)]

    def affords(self, client: str) -> bool:
        """Whether the client's privacy budget allows one more update."""
        return self.privacy is None or self.privacy.account.allows(client)

    # ------------------------------------------------------------ checkpoint

    def state(self) -> tuple[dict[str, Any], dict[str, Weights]]:
        robust_filter, kept = self.robust_filter.state()
        groups = {f"merge.{name}": group for name, group in self.merge.state().items()}
        groups |= {f"robust_filter.{name}": group for name, group in kept.items()}
        private = {} if self.privacy is None else {"privacy": self.privacy.state()}
        return {**private, "robust_filter": robust_filter}, groups

    def load_state(
        self,
        method: Method,
        values: Mapping[str, Any],
        groups: Mapping[str, Weights],
        version: Callable[[int], Weights],
    ) -> None:
        if self.privacy is not None:
            self.privacy.load_state(values["privacy"])
            self.merge = self._make_merge(method)
        self.merge.load_state(_within(groups, "merge."))
        if "robust_filter" in values:
            self.robust_filter.load_state(values["robust_filter"], _within(groups, "robust_filter."), version)


def _within(groups: Mapping[str, Weights], start: str) -> dict[str, Weights]:
    return {name.removeprefix(start): group for name, group in groups.items() if name.startswith(start)}


def privacy_of(context: RunContext, method: Method, draw: Draw) -> Privacy | None:
    if not context.privacy.on:
        return None
    trigger, redispatch = method.rules()
    check_rounds(context.privacy, trigger, redispatch)
    rates = [member.rate for member in context.members.values()]
    return Privacy(context.privacy, holders_per_round(trigger, context.schedule, rates), draw)


def filter_of(context: RunContext, draw: Draw) -> RobustFilter:
    """A bound depends on the data of others; under privacy the clip alone bounds, which does not."""
    robust = context.robust
    if not context.privacy.on:
        return RobustFilter(context.config, robust, draw("sketch").initial_seed())
    if robust.combine != "mean" or robust.suspicion == "weigh":
        raise ConfigError(
            "robust.suspicion and robust.combine compare devices with each other, so that no clip bounds what one of "
            "them may change; with [privacy] leave both at their defaults"
        )
    return RobustFilter(context.config, robust.model_copy(update={"bound": 0.0, "suspicion": "off"}))


def spent(privacy: Privacy) -> Spent:
    account, settings = privacy.account, privacy.settings
    return Spent(
        epsilon=_finite(account.worst()),
        delta=settings.delta,
        budget=settings.epsilon,
        noise=settings.noise,
        clip=settings.clip,
        multiplier=account.multiplier,
        devices={
            client: {"updates": n, "epsilon": _finite(account.epsilon(client))}
            for client, n in sorted(account.updates.items())
        },
    )


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None

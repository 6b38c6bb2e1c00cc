"""What stands between updates and the model: privacy's clip and noise, the filter against malicious devices."""

from __future__ import annotations

import math

from cos2p.aggregation.privacy.checks import Privacy, check_rounds, holders_per_round
from cos2p.aggregation.privacy.clipping import Draw
from cos2p.aggregation.robust.filter import RobustFilter
from cos2p.errors import ConfigError
from cos2p.methods.base import Method, RunContext
from cos2p.tracking.event_kinds import Spent


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
    """What the run has cost so far, as an event."""
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

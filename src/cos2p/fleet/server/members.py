"""Who a client is to the server, and the rate that follows from what it says of itself."""

from __future__ import annotations

from dataclasses import replace

from cos2p.devices.settings import DeviceGroup
from cos2p.errors import BudgetError, UpdateRefused
from cos2p.fleet.join_request import JoinRequest
from cos2p.memory.task_plan import largest_fitting, ledger_limit, sized_by_rate
from cos2p.memory.tasks import Member
from cos2p.methods import build_method
from cos2p.models.config import ModelConfig
from cos2p.models.spec import from_bits, to_bits
from cos2p.recipe import Recipe
from cos2p.runtime.world import fleet_devices, run_context
from cos2p.submodel.rates import LADDER
from cos2p.units import format_bytes


def member_of(recipe: Recipe, config: ModelConfig, name: str, facts: JoinRequest) -> Member:
    """The member a joining client becomes.

    A device the recipe names keeps the recipe's figures where it measured none of its own; any other is taken as one
    of the recipe's first kind, its rate chosen by its memory.
    """
    group = _group(recipe, name)
    device = group.device(name)
    changes = {"memory": facts.memory or device.memory, "flops": facts.flops or device.flops}
    device = device.model_copy(update={**changes, "joins_at": 0.0, "leaves_at": None, "dies_at": None})
    member = Member(
        name,
        device,
        group.rate or 1.0,
        min(group.batch, facts.samples),
        facts.samples,
        facts.test_samples,
        known_rows(config, facts.rows),
    )
    if group.rate is not None and not recipe.fleet.enforce_memory:
        return member
    return replace(member, rate=fitting_rate(config, member, recipe))


def known_rows(config: ModelConfig, rows: str) -> str:
    """The tokens that a client says its texts have; UpdateRefused if the model does not know them all."""
    if not rows:
        return ""
    held = from_bits(rows)
    if not held or held[-1] >= config.vocab:
        last = f"the token {held[-1]}" if held else "no token"
        raise UpdateRefused(f"its texts have {last}; the model knows 0 to {config.vocab - 1}")
    return to_bits(held)


def _group(recipe: Recipe, name: str) -> DeviceGroup:
    own = next((group for device, group in fleet_devices(recipe) if device.name == name), None)
    return own or recipe.fleet.devices[0].model_copy(update={"rate": None})


def fitting_rate(config: ModelConfig, member: Member, recipe: Recipe) -> float:
    """The member's rate, or the largest of the ladder below it with which the ledger says that its tasks fit."""
    context = run_context(recipe, config, {member.name: member})
    limit, method = ledger_limit(context, member), build_method(recipe.method, context)
    rate = next((rate for rate in (member.rate, *LADDER) if rate <= min(member.rate, limit)), None)
    if rate is not None and not sized_by_rate(method):
        rate = largest_fitting(method, replace(member, rate=rate))
    if rate is None:
        raise BudgetError(
            f"{member.name} has {format_bytes(member.device.memory)}, in which not even {LADDER[-1]:.4f} of the model "
            f"trains with a batch of {member.batch}; give it more memory or a smaller batch"
        )
    return rate

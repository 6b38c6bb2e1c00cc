"""`Plan`: what a device trains and how, what that takes, and why; read off the tasks that it would be given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cos2p.devices.clock import task_phases
from cos2p.errors import BudgetError
from cos2p.memory.parts import HEAD, RANK, WIDE, Part
from cos2p.memory.planning import choose, every_task
from cos2p.memory.tasks import Assignment, Member, Planned
from cos2p.memory.ways import fitted_order, needed_bytes
from cos2p.messages import Order, tensor_bytes
from cos2p.models.layout import Weights
from cos2p.training.contract import TaskContract
from cos2p.training.settings import LocalSettings, MemoryOptimizations
from cos2p.training.statistics import StatisticsTrainer

FULL = 0.9
"""A plan takes so much of the memory, or says why more would bring nothing."""


@dataclass(frozen=True)
class Plan:
    """The plan of the largest task that trains."""

    trains: str
    """The part that trains, in words."""
    held: str
    """How the rest is held, what runs again, parts of a batch, bits of the optimiser's states."""
    memory_optimizations: MemoryOptimizations
    features: str
    """Where features of what is frozen are kept: memory or disk."""
    peak: int
    """Bytes of the largest task of all, by the ledger."""
    memory: int
    """Bytes of the device."""
    seconds: float
    """Virtual time of a task."""
    flops: float
    down: int
    """Bytes of its tensors on the way to the device, where nothing of them is there yet."""
    up: int
    everything: int
    """Bytes that training everything would take, with nothing saved."""
    why: str

    @property
    def fits(self) -> bool:
        return self.peak <= self.memory


def kinds(members: Iterable[Member]) -> list[list[Member]]:
    """Members that have the same plan together, the one with most samples first."""
    found = defaultdict[object, list[Member]](list)
    for member in members:
        device = member.device
        own = device.memory, device.flops, device.down, device.up, member.rate, member.part, member.batch
        found[own].append(member)
    for kind in found.values():
        kind.sort(key=lambda member: (member.samples, int(member.rows or "0", 16).bit_count()), reverse=True)
    return list(found.values())


def planned_words(method: Planned, weights: Weights, most: int = 64) -> dict[str, dict[str, str]]:
    """By member: its `plan` in words, and `why`, for the first so many kinds: each is worked out.

    `weights`: the method's own, whose names and shapes its tasks may be made from."""
    words: dict[str, dict[str, str]] = {}
    for kind in kinds(method.context.members.values())[:most]:
        try:
            peak, task, contract = _largest(method, kind[0], weights)
        except BudgetError:  # its first task is refused, with all that is missing
            continue
        plan = {"plan": f"{takes(task, kind[0])}; {_held(contract.local, contract.order)}"}
        plan["why"] = _why(method, kind[0], task, contract.local, peak)
        words |= {member.name: plan for member in kind}
    return words


def _largest(method: Planned, member: Member, weights: Weights) -> tuple[int, Assignment, TaskContract]:
    """Bytes of the largest task of all; the largest that trains, and its contract."""
    tasks = [(needed_bytes(alone, member, task), alone, task) for alone, task in every_task(method, member, weights)]
    trained = [entry for entry in tasks if entry[2].trainer.contract_type.trains] or tasks
    _, alone, task = max(trained, key=lambda entry: entry[0])
    contract = task.trainer.contract_of(method.context.config, fitted_order(alone, member, task))
    return max(needed for needed, _, _ in tasks), task, contract


def plan_of(method: Planned, member: Member, weights: Weights) -> Plan:
    """`weights`: the first ones of the method. BudgetError if it has no task for the member."""
    peak, task, contract = _largest(method, member, weights)
    frozen = {name: piece.like for name, piece in contract.frozen_pieces(weights).items()}
    size = tensor_bytes(contract.sent(weights), frozen)
    work = contract.flops(member.samples, member.test_samples)
    return Plan(
        trains=takes(task, member),
        held=_held(contract.local, contract.order),
        memory_optimizations=contract.local.memory_optimizations,
        features=contract.local.features,
        peak=peak,
        memory=member.device.memory,
        seconds=task_phases(contract, member.device, member.samples, member.test_samples, size).total,
        flops=work.prefix + work.masks + work.training,
        down=size,
        up=contract.wire_upload(),
        everything=method.context.full_memory([member]) or 0,
        why=_why(method, member, task, contract.local, peak),
    )


def takes(task: Assignment, member: Member) -> str:
    """A task in words: what there is more of where there are more bytes."""
    if task.trainer is StatisticsTrainer:
        return "no training"
    rank = getattr(task.settings, "rank", None)
    if rank is not None:
        return Part("factors", rank).words() if rank else HEAD.words()
    if member.part is not None and member.part.kind == "blocks":
        return member.part.words()
    return Part("window", member.rate).words()


def _held(local: LocalSettings, order: Order) -> str:
    words = []
    bits = {"float32": 32, "float16": 16, "int8": 8}[order.prefix_precision]
    if hasattr(local, "rank"):
        words.append(
            f"base streamed in {bits} bits" if local.memory_optimizations.stream else "base in memory in 32 bits"
        )
    elif order.spec.has_prefix or order.spec.suffix:
        words.append(f"rest streamed in {bits} bits")
    if local.features == "disk" and order.spec.has_prefix:
        words.append("features on disk")
    words += _saved(local)
    return ", ".join(words) or "all in memory"


def _saved(local: LocalSettings) -> Iterable[str]:
    memory_optimizations = local.memory_optimizations
    if memory_optimizations.recompute == "yes" or memory_optimizations.stream is True:
        yield "blocks run again"
    if memory_optimizations.at_once(local.batch) < local.batch:
        yield f"{memory_optimizations.at_once(local.batch)} of {local.batch} samples at a time"
    if memory_optimizations.step_in_backward is True:
        yield "gradients one by one"
    if memory_optimizations.eight_bit is True:
        yield "states in 8 bits"


def _why(method: Planned, member: Member, task: Assignment, local: LocalSettings, peak: int) -> str:
    """One line: why this part and no other, and why no more of the memory is used."""
    rank = getattr(local, "rank", None)
    if not task.trainer.contract_type.trains:
        reason = "the method trains nothing"
    elif rank == 0:
        reason = "no more than the head fits" if member.part == HEAD else "the method trains the head"
    elif rank is not None:
        offered = [part for part in method.parts(member) if part.kind == "factors"]
        if rank >= RANK:
            reason = f"rank {rank} is all: more gained 0.2 points"
        else:
            reason = "the largest rank that fits" if offered else "the rank that the recipe sets"
        if method.parts(member)[0].kind == "window":
            reason += f"; a window below R {WIDE:g} learns less"
    elif member.auto and member.rate < 1:
        reason = "the largest window that fits"
    elif member.part is not None and member.part.kind == "blocks":
        reason = "everything trains, so many blocks at a time as fit"
    elif member.rate == 1 or method.over_budget:
        reason = "everything trains"
    else:
        return "set by the recipe" + _otherwise(method, member)
    if peak < FULL * member.device.memory:
        plain = local.memory_optimizations.settled == local.memory_optimizations and not list(_saved(local))
        reason += "; more memory would bring nothing" if plain else ""
    return reason


def _otherwise(method: Planned, member: Member) -> str:
    """The price of a rate that is set: the part that the device would train without it."""
    try:
        part = choose(method, replace(member, auto=True, part=None))
    except BudgetError:
        return ""
    own = Part("window", member.rate)
    return "" if part == own else f"; left open: {part.words()}"

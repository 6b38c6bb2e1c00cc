"""The part that each device trains: the first that its method offers with which all of its tasks fit.

All of them: a window moves, devices first report statistics of their data, and once more at the end. So the method
itself is asked, turn by turn, what it would give out, and the ledger says what each task takes in its smallest way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from cos2p.costs.fitting import largest_rate
from cos2p.costs.ledger import last_holding, shape_peak
from cos2p.costs.shape import Shape, Workload
from cos2p.errors import BudgetError
from cos2p.memory.parts import Part, runs
from cos2p.memory.tasks import Assignment, Call, Member, Planned, RunContext, make_order
from cos2p.memory.ways import QUARTER, least_bytes, room
from cos2p.messages import Order, Update
from cos2p.models.layout import Weights
from cos2p.training.embeddings import held_tables
from cos2p.training.statistics import StatisticsTrainer
from cos2p.units import format_bytes

SMALLER = 0.75
"""The share that a task may take of the bytes that were foreseen for the one before it, which ran out of memory."""


def turns(method: Planned) -> range:
    """Every place of a window that moves; a schedule of so many rounds is a whole run."""
    return range(max(3, method.context.config.depth) + 1)


def tasks_at(method: Planned, member: Member, turn: int, weights: Weights) -> Iterator[Assignment]:
    """The member's tasks at this turn; where it first has to report statistics, that and the next one; the report at
    the end comes before all others, so that the last task is one that trains.

    Without `weights` the tasks are of the right size, and what they name may be anything.
    """
    call = Call(member, turn, turn, turn, weights)
    if method.statistics_last:
        yield method.assign(replace(call, final=True))
    task = method.assign(call)
    yield task
    if task.trainer is StatisticsTrainer:
        order = make_order(method, member, task)
        method.accepted(order, Update(member.name, "", 0, order.spec, {}, member.samples))
        yield method.assign(call)


def every_task(method: Planned, member: Member, weights: Weights | None = None) -> Iterator[tuple[Planned, Assignment]]:
    """All that the member would be given in the course of a run, by a method of its own."""
    schedule = method.context.schedule.model_copy(update={"rounds": len(turns(method)) - 1, "updates": None})
    alone = method.for_members(replace(method.context, members={member.name: member}, schedule=schedule))
    for turn in turns(alone):
        for task in tasks_at(alone, member, turn, weights or {}):
            yield alone, task


def least_of(method: Planned, member: Member, exact: bool = False) -> int:
    """Bytes that the member needs for the largest of its tasks, in the smallest way."""
    return max(least_bytes(alone, member, task, exact) for alone, task in every_task(method, member))


# ---------------------------------------------------------------- one device


def choose(method: Planned, member: Member) -> Part:
    """The part that learns most of those that fit. BudgetError if none does, with the bytes that would be enough.

    Exact ways to save come first: only where no part fits with them, small windows get small parts of a batch and
    states in 8 bits.
    """
    offered, limit = method.parts(member), room(method, member)
    for exact in (True, False):
        fits = _test(method, member, limit, exact)
        for run in runs(offered):
            upwards = run[::-1]
            if fits(upwards[-1]):
                return upwards[-1]
            if fits(upwards[0]):
                return upwards[last_holding(0, len(upwards) - 1, lambda i: fits(upwards[i]))]  # noqa: B023
    smallest = offered[-1]
    if member.largest:  # it ran out of memory before: the smallest is tried all the same
        return smallest
    needed = (
        _rate_bytes(method, member, smallest.size) if by_rate(method) else least_of(method, member.training(smallest))
    )
    raise BudgetError(
        f"even {smallest.words()} needs {format_bytes(needed)}, the device has {format_bytes(member.device.memory)}"
    )


def by_rate(method: Planned) -> bool:
    """Whether a device's rate says all about the bytes of its tasks, so that the method need not be asked."""
    return method.sized_by_rate and not method.by_memory


def _test(method: Planned, member: Member, limit: float, exact: bool) -> Callable[[Part], bool]:
    """Whether all tasks fit when the member trains a part."""
    highest = rate_limit(method, member, limit, exact) if by_rate(method) else 1.0

    def fits(part: Part) -> bool:
        own = member.training(part)
        if by_rate(method) and part.kind == "window":
            return part.size <= highest
        try:
            return all(least_bytes(alone, own, task, exact) <= limit for alone, task in every_task(method, own))
        except BudgetError:
            return False

    return fits


def _rate_bytes(method: Planned, member: Member, rate: float) -> int:
    """Bytes of a submodel of this rate in the smallest way."""
    tables = held_tables(method.context.config, method.context.training.embeddings, member.rows)
    shape = Shape.at(method.context.config, rate, method.ratio, tables=tables)
    loads = _workloads(method.context, member, exact=False)
    return min(shape_peak(method.context.config, shape, load).total for load in loads)


def rate_limit(method: Planned, member: Member, memory: float, exact: bool = True) -> float:
    """The largest rate by the ledger of plain submodels, wherever the fleet's other devices put their exits; 0 if none
    fits."""
    context = method.context
    tables = held_tables(context.config, context.training.embeddings, member.rows)
    every = tuple(range(1, context.config.depth + 1))
    limit = int(min(memory, 2**60))
    return max(
        largest_rate(context.config, limit, load, method.ratio, tier_blocks=every, tables=tables)
        for load in _workloads(context, member, exact)
    )


def _workloads(context: RunContext, member: Member, exact: bool) -> Iterator[Workload]:
    """Local training with everything that a method may add, in the smallest ways that the recipe leaves open."""
    training, memory_optimizations, batch = (
        context.training,
        context.training.memory_optimizations,
        max(1, min(member.batch, member.samples)),
    )
    least = -(-batch // QUARTER) if exact else 1
    eight = memory_optimizations.eight_bit is True or (memory_optimizations.eight_bit == "auto" and not exact)
    stepper = training.model_copy(
        update={"memory_optimizations": memory_optimizations.model_copy(update={"eight_bit": eight})}
    ).stepper
    load = Workload(
        batch=batch,
        samples=member.samples,
        epochs=training.epochs,
        optimizer=stepper,
        features="disk",
        keep_start=True,
        distill=True,
        rescale=True,
        recompute=memory_optimizations.recompute in ("yes", "auto"),
        tokens=member.texts[0],
        shard_tokens=member.texts[1],
    )
    if memory_optimizations.step_in_backward is not True:
        yield load.with_(
            micro_batch=least if memory_optimizations.micro_batch == "auto" else memory_optimizations.at_once(batch)
        )
    if memory_optimizations.step_in_backward is True:
        yield load.with_(step_in_backward=True)


# ---------------------------------------------------------------- a whole fleet


def with_parts(method: Planned) -> RunContext:
    """The method's context in which every member has its part, as far as that is not the recipe's own word."""
    context, groups = method.context, defaultdict[tuple[object, ...], list[Member]](list)
    for member in context.members.values():
        if (member.auto or method.by_memory) and not method.over_budget:
            groups[member.batch, member.rate, member.auto].append(member)
    members = dict(context.members)
    for group in groups.values():
        found = _by_memory(method, group)
        for member in group:
            part = found.get(member.device.memory) or _own(method, member)
            members[member.name] = member if part is None else member.training(part)
    return replace(context, members=members)


def _own(method: Planned, member: Member) -> Part | None:
    try:
        return choose(method, member)
    except BudgetError as error:
        if method.by_memory:  # its first task is refused, with all that is missing
            return None
        raise BudgetError(f"{member.name}: {error}; give it more memory") from None


def _by_memory(method: Planned, group: list[Member]) -> dict[int, Part]:
    """The part for every memory of a group. Between two memories of one answer nothing has to be searched, so a
    thousand unequal devices cost a few dozen searches."""
    hardest = replace(
        group[0],
        samples=max(member.samples for member in group),
        test_samples=max(member.test_samples for member in group),
        texts=(max(member.texts[0] for member in group), max(member.texts[1] for member in group)),
        rows=max((member.rows for member in group), key=lambda rows: int(rows or "0", 16).bit_count()),
    )
    memories, found = sorted({member.device.memory for member in group}), dict[int, Part]()

    def search(memory: int) -> Part | None:
        try:
            return choose(method, replace(hardest, device=hardest.device.model_copy(update={"memory": memory})))
        except BudgetError:
            return None

    def fill(low: int, high: int, at_low: Part | None, at_high: Part | None) -> None:
        for place, part in ((low, at_low), (high, at_high)):
            if part is not None:
                found[memories[place]] = part
        if at_low == at_high and at_low is not None:
            found.update(dict.fromkeys(memories[low : high + 1], at_low))
        elif high - low > 1:
            middle = (low + high) // 2
            at_middle = search(memories[middle])
            fill(low, middle, at_low, at_middle)
            fill(middle, high, at_middle, at_high)

    first = search(memories[0])
    fill(0, len(memories) - 1, first, first if len(memories) == 1 else search(memories[-1]))
    return found


def lowered(method: Planned, member: Member, needed: int) -> Member:
    """After a task that was to take `needed` bytes ran out of memory: what the next one is cut to."""
    smaller = replace(member, auto=True, part=None, largest=int(SMALLER * needed) or member.largest)
    part = choose(method, smaller)
    if member.part == part or (part.kind == "window" and part.size >= member.rate):  # the ledger was wrong about it
        least = min(part.size, member.rate) if part.kind == "window" else part.size
        below = [other for other in method.parts(smaller) if other.kind == part.kind and other.size < least]
        part = below[0] if below else part
    return replace(member.training(part), largest=smaller.largest)


def keeps_memory(method: Planned) -> bool:
    """Whether tasks that do not fit a device's memory are refused."""
    context = method.context
    return context.enforce_memory and not (context.as_bound and method.over_budget)


def check_fit(method: Planned, order: Order, needed: int) -> None:
    """A task that does not fit its device is not given out."""
    member = method.context.members[order.client]
    if keeps_memory(method) and needed > member.device.memory:
        if method.over_budget:  # all tasks are as large as they are: the largest says what would be enough
            needed = max(needed, least_of(method, member))
        raise BudgetError(
            f"{order.client}: its task needs {format_bytes(needed)}, the device has "
            f"{format_bytes(member.device.memory)}; {advice(method, member)}"
        )


def check_last_fit(method: Planned, call: Call, otherwise: str) -> None:
    """With a client's first task: whether that of the last round will fit. A run shall not find out at its end.

    `otherwise`: what to set where it does not.
    """
    member = call.member
    if call.attempt > 0 or not method.statistics_last or method.over_budget or not keeps_memory(method):
        return
    needed = least_bytes(method, member, method.assign(replace(call, final=True)))
    if needed > member.device.memory:
        raise BudgetError(
            f"{member.name}: statistics of its features at the end need {format_bytes(needed)}, the device has "
            f"{format_bytes(member.device.memory)}; {otherwise}"
        )


def advice(method: Planned, member: Member) -> str:
    """The cheapest change with which a task fits."""
    memory_optimizations = method.context.training.memory_optimizations
    shut = [name for name, value in memory_optimizations if value in (False, "no", 0)]
    if shut:
        opened = ", ".join(f"training.memory_optimizations.{name}" for name in shut)
        less = f'leave {opened} "auto"'
    else:
        less = "give it more memory"
    if method.over_budget:
        return (
            f"{method.title} cannot train less of the model: {less}; or, as a bound to compare with, let it train over "
            "the memory (fleet.enforce_memory = false), or run it in a study (cos2p compare)"
        )
    try:
        part = choose(method, replace(member, auto=True, part=None))
    except BudgetError as error:
        return f"{error}: {less}, or a smaller model"
    return f"{part.words()} fits: leave its rate out (now {member.rate:g})"

"""The one JSON document behind the page, live or frozen: `View`. The page knows nothing else of a run.

It is compact, because a run of 500 rounds × 64 devices has to open at once: whatever grows with the run is a table in
columns (`{"round": [...], "client": [...]}`, all of one length), clients are indices into `Run.devices`, times are
rounded. What is not known is null, never a stand-in. Shares (accuracy, RU, busy) are 0 to 1, sizes are bytes, times are
seconds of the run (virtual in a simulation, the wall's on a fleet) unless a name says `wall`.

Every string may come from a client: names and reasons are text to show, never markup.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict  # typing's own is not enough for pydantic before Python 3.12

SCHEMA = 1

PHASES = ("download", "prefix", "masks", "training", "upload", "idle", "late", "dead", "absent")
"""What a device does; `Lane.phase` has indices into it.

prefix: the pass through the frozen blocks. masks: the mask phase. late: past the server's deadline, or on a fleet at an
open task twice as long as the device's usual. dead: restarting, silent, or known to have died. absent: not here yet,
left, or excluded after failures. A fleet counts prefix and masks as training.
"""

OUTCOMES = ("open", "merged", "refused", "dropped", "failed", "lost")
"""What became of a task; `Lane.outcome` has indices into it.

open: still under way (or when the run ended). refused: the update did not pass the checks. dropped: too stale, or
answered twice. failed: the training came to nothing. lost: the device restarted, left or died with it.
"""

Status = Literal["waiting", "running", "finished", "stopped", "failed"]
"""waiting: the folder or its log is not there yet. stopped: neither over nor at work; it can be resumed."""

# ---------------------------------------------------------------- one run


class BestExit(TypedDict):
    depth: int
    top1: float
    deepest: int
    deepest_top1: float
    perplexity: float | None  # of language models, which are compared by it; likewise the deepest exit's
    deepest_perplexity: float | None
    part: str  # the samples that say so: validation, or test where there are no such


class Header(TypedDict):
    name: str  # the run's folder: what distinguishes runs of one recipe
    recipe: str
    method: str
    title: str  # of the method, for people
    seed: int | None
    kind: Literal["simulation", "fleet"]
    status: Status
    ending: str
    """Why it ended ("rounds", "max_updates", …) or stopped, in the words of who stopped it; empty while it runs."""
    round: int  # rounds closed: the version of the server's model
    rounds: int | None  # planned; null if updates or time decide
    updates: int  # merged
    updates_planned: int | None
    share: float  # done, 0 to 1, by the limit that is nearer
    t: float  # seconds of the run at its last event
    wall: float | None  # seconds on this machine from its last start to its last event
    wall_left: float | None
    """Estimate from the last event to the end; null while there is too little to go by, and when it is over."""
    ru: float | None  # mean over rounds of (busy seconds of those present) / (as many × the busiest one's)
    bytes_up: int
    bytes_down: int
    part: Literal["validation", "test", ""]  # the samples behind `last` and `best`; empty before the first evaluation
    last: float | None
    best: float | None
    best_round: int | None
    test: float | None  # top-1 on the test samples at the last evaluation; on all of them when the run is over
    chance: float | None
    """Top-1 without any training; of `majority` by always naming the most frequent class of the test samples, of
    `client_majority` by each device naming its own."""
    majority: float | None
    client_majority: float | None
    best_exit: BestExit | None
    """Of a shallower exit that is better than the deepest at the last evaluation; null if there is none."""
    verdict: dict[str, str]
    """Did it work: `headline`, `outcome`, `warning`, `reference`, as far as known."""
    full_memory: int | None  # bytes to train the whole model
    base: float | None  # top-1 on the test samples before anything trained; of a language model its perplexity
    clients: float | None  # top-1 of the clients' own submodels on their own test part, averaged over their samples
    privacy: str  # what a private run has cost so far, in words; empty for any other
    n_star: int | None
    """The fewest updates that held any segment, over all rounds. 0: some segment stood still in some round."""
    refused: int
    failed: int  # tasks that failed or were lost


class Model(TypedDict):
    family: str
    task: str
    depth: int
    heads: int  # attention segments of a block that are kept or cut whole (groups, where heads share keys)
    units: int  # MLP units of a block
    dim: int
    parameters: int | None  # scalars of the full model with all exits


class Device(TypedDict):
    name: str
    group: str  # its kind: names that differ in their number alone
    rate: float | None  # R_n: share of the model's parameters it may hold
    memory: int | None  # its budget
    predicted: int | None  # peak memory of its largest task so far, by the ledger
    measured: int | None  # largest peak measured on the device; only fleets have it
    link: list[int] | None  # bytes a second, down and up, measured by it lately; only fleets have it
    samples: int | None
    batch: int | None
    flops: float | None  # FLOP/s, as simulated or profiled
    plan: str | None  # what it trains and how, in words
    why: str | None  # and no other part
    bytes_up: int
    bytes_down: int
    tasks: int
    updates: int  # merged
    refused: int
    failed: int
    doubted: int  # updates that did not count in full, because they pointed elsewhere than those of the others
    staleness: float | None  # mean τ of its merged updates
    busy: float  # share of the run in which it had a task
    weight: float | None  # mean γ̃ of its merged updates
    top1: float | None  # its own submodel's, last


class Rounds(TypedDict):
    """One row for each aggregation; row i closed round i and made version i + 1 (`version`)."""

    version: list[int]
    t: list[float]
    updates: list[int]  # updates merged in it
    clients: list[int]  # different clients among them
    n_star: list[int | None]  # the fewest of its updates that held any segment
    lr: list[float | None]  # learning rate of its tasks; null where nothing trained
    loss: list[float | None]  # mean training loss of its updates, as the devices reported it
    mask_loss: list[float | None]
    client_top1: list[float | None]  # average of the clients' own submodels as known then
    ru: list[float | None]
    bytes_up: list[int]  # in total until then; likewise down
    bytes_down: list[int]


class Evaluations(TypedDict):
    """Scores of the server's model: one entry for each version evaluated. A list is empty if the run has no such part.

    The last entry of a finished run is on all test samples, earlier ones may be on the first few hundred.
    """

    version: list[int]
    t: list[float]  # when that version was made
    validation: dict[str, list[float | None]]
    """"top1", "top5", "f1" at the deepest exit; of a language model also "loss", "perplexity", and those of answers."""
    test: dict[str, list[float | None]]
    exits: list[int]  # depths, ascending
    exits_part: Literal["validation", "test", ""]
    exits_top1: list[list[float | None]]  # [exit][evaluation]


class Updates(TypedDict):
    """One row for each merged update, in order of arrival: windows, weights, staleness."""

    round: list[int]  # the round that merged it, from 0; equal to the number of rounds closed if that one is still open
    client: list[int]
    t: list[float]
    start: list[int]  # first block of its window; `top` is the first block above it
    top: list[int]
    tau: list[int]
    weight: list[float | None]
    """γ̃: its mean share in the segments it held, among the updates of its round that held them; 1 if it was alone.

    The log has γ as its mean over heads and over units, so this is exact for uniform weights and weights by samples,
    and close for those that differ from segment to segment. Null while its round is open.
    """
    loss: list[float | None]


class Lane(TypedDict):
    """One device's time, from 0 to `Lanes.end` without gaps: segment i lasts `length[i]` ticks and follows the last."""

    length: list[int]
    phase: list[int]  # index into `Lanes.phases`
    task: list[int]  # index into the columns below; −1 where there is no task
    version: list[int]  # the version each task was cut from (the round in which it was given)
    tau: list[int | None]
    """Its staleness when it was merged; null if it was not. For an open task: the staleness it has by now."""
    outcome: list[int]  # index into `Lanes.outcomes`


class Lanes(TypedDict):
    tick: float  # seconds of one tick
    end: int  # ticks of the whole run so far
    phases: list[str]
    outcomes: list[str]
    lanes: list[Lane]  # in the order of `Run.devices`. Aggregations are at `Rounds.t`.


class Coverage(TypedDict):
    """Who trained which segment, [block][segment] over the whole run so far."""

    heads: list[list[int]]  # merged updates that trained it
    units: list[list[int]]
    heads_clients: list[list[int]]
    """Different clients that trained it; the smallest number here is the N* of the whole run."""
    units_clients: list[list[int]]
    heads_last: list[list[int]]  # version that trained it last (staleness is `Header.round` minus this); 0: never
    units_last: list[list[int]]


class Mask(TypedDict):
    block: int
    heads: str
    """Kept segments as a bit string in hex, the lowest bit of the first byte is segment 0. May end early: the rest
    are not kept."""
    units: str
    version: int  # the version that the update with it helped to make


class Masks(TypedDict):
    """Of a large fleet only some devices, spread evenly over those that have any: pairs grow with their square."""

    devices: list[int]  # index of each device below, ascending
    kept: list[list[Mask]]
    """[device here]: what it kept of each block it ever trained, at its last visit, blocks ascending."""
    agreement_heads: list[list[float | None]]
    """[device here][device here]: |both| / |either| over the blocks that both have trained; null if there is none."""
    agreement_units: list[list[float | None]]


class Troubles(TypedDict):
    total: int  # there may be more than are listed: the list has the last ones
    t: list[float]
    kind: list[str]  # refused, dropped, failed, lost, died, left, excluded, doubted, lowered, unfit, unevaluated
    client: list[int]  # −1: a client that is not in the table of devices, or none; `name` then has its name
    name: list[str]
    task: list[str]
    reason: list[str]


class Run(TypedDict):
    header: Header
    about: list[tuple[str, str]]  # what the run is of, (what, words): recipe, data, model, devices, baselines
    model: Model | None
    devices: list[Device]
    rounds: Rounds
    evaluations: Evaluations
    by_class: list[tuple[str, int, int, int]]  # of a class: test samples, those named right, how often it was named
    updates: Updates
    lanes: Lanes
    coverage: Coverage | None
    masks: Masks
    troubles: Troubles


# ---------------------------------------------------------------- a study: several runs at equal budget


class Figure(TypedDict):
    mean: float | None
    half: float | None  # half the width of the mean's 95 % interval over seeds; null for fewer than two seeds
    best: bool
    """To be set in bold: clear of all others of its column; in a table of differences, an interval that does not hold
    0."""
    seeds: list[float | None]  # in the order of `Study.seeds`


class Column(TypedDict):
    key: str
    title: str
    unit: str
    scale: float  # from the figure to the unit: shares × 100 are per cent
    digits: int
    better: Literal["more", "less", ""]
    signed: bool  # A difference: written with its sign


RunState = Literal["done", "failed", "waiting"]


class RowRun(TypedDict):
    """One seed of a row."""

    state: RunState
    link: str  # from a frozen page to the run's own page or folder; empty if there is none, or the page is live
    failure: str  # why it failed


class TableRow(TypedDict):
    key: str
    title: str
    marks: str  # behind the title: * does not keep the budget, † not all seeds
    facts: list[str]  # texts in the order of `Table.facts`
    figures: list[Figure]  # in the order of `Table.columns`
    runs: list[RowRun]  # in the order of `Study.seeds`


class Table(TypedDict):
    name: str
    title: str
    facts: list[str]
    columns: list[Column]
    rows: list[TableRow]
    notes: list[str]
    chance: float | None  # top-1 without any training, as far as the runs know it
    majority: float | None  # top-1 of always naming the most frequent class


class Band(TypedDict):
    """Mean over seeds with half its 95 % interval (null for fewer than two seeds), as far as all seeds go."""

    x: list[float]
    mean: list[float]
    half: list[float | None]


class StudyCurve(TypedDict):
    key: str  # of the row
    title: str
    seeds: int  # runs behind it
    top1: dict[str, Band]  # server's test top-1 over "rounds", "updates" and "time" (virtual seconds)
    client_top1: dict[str, Band]


class SweepLine(TypedDict):
    name: str  # the second axis's value; empty if there is one axis
    x: list[float | str]
    mean: list[float]
    half: list[float | None]


class SweepPanel(TypedDict):
    column: Column  # means are figures, not yet in its unit
    axis: str
    log: bool  # the axis spans so much that it is best drawn to a logarithmic scale
    lines: list[SweepLine]


class Study(TypedDict):
    name: str  # its folder
    kind: str  # compare, ablate, sweep, frontier; empty while it only searches and has no study.json
    title: str
    recipe: str
    command: str
    seeds: list[int]
    updates: list[int]  # client updates of a run; several numbers if runs differ
    done: int
    cells: int
    notes: list[str]
    versions: list[str]
    tables: list[Table]
    curves: list[StudyCurve]
    sweep: list[SweepPanel]
    failures: list[tuple[str, str]]  # (cell, reason)


class View(TypedDict):
    schema: int
    live: bool
    version: str  # changes whenever the document does; the live page asks for what is newer: view.json?since=VERSION
    generated_by: str
    runs: list[Run]
    studies: list[Study]

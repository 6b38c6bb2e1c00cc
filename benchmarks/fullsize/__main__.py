"""The paper's sizes on one machine: peak memory, processor seconds and bytes of a device's task, against FedRolex.

    python -m benchmarks.fullsize [--parts vision rounds llama texts] [--recipes e1 e2 e3] [--batch 0]
                                  [--record runs/fullsize.jsonl]

`vision` is the first task of each kind of device of `e1`, `e2`, `e3`: devices of a kind are given tasks of one size.
`--batch N` trains at most N samples at a time where the recipe's batch would take hours. `rounds` is a whole round of
them, all 8 and 16 devices, merged by the server (N = 4 if not said; a record of its own, `--rounds`). `llama` is one
task of TinyLlama-1.1B on its real weights (`make weights`), R = .0625 and .25, in a process capped to 5 GiB. `texts` is
the share of the full model's peak that tasks of MiniLM and the 1.1 B model take, by the ledger (`--predict`) and
measured.
Every task that is measured is a line of the record; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from benchmarks.fullsize import ledger, llama, rounds, texts, vision
from benchmarks.fullsize.tasks import Measured, Record

PAPER = {"memory": -0.22, "time": -0.24}
"""Co-S²P against the best of its rivals, as the paper sums up its vision runs."""
PAPER_LLAMA = {"memory": -0.185, "bytes": -0.42}
PARTS = ("vision", "rounds", "llama", "texts")
COLUMNS = (
    *("method", "device", "n", "R", "batch", "blocks", "predicted MB", "measured MB", "meas/pred"),
    *("CPU s", "down MB", "up MB"),
)


def table(title: str, entries: Iterable[Measured]) -> Table:
    shown = Table(*COLUMNS, box=MARKDOWN, title=title, title_justify="left")
    for e in sorted(entries, key=lambda e: (e.rate, e.tier, e.method)):
        measured = e.failure or f"{e.peak / 1e6:.0f}"
        shown.add_row(
            *(e.method, e.tier, str(e.devices), f"{e.rate:g}", str(e.batch), f"{e.window[0]} to {e.window[1] - 1}"),
            *(f"{e.predicted / 1e6:.0f}", measured, "-" if e.failure else f"{e.peak / e.predicted:.2f}"),
            *(f"{e.cpu_seconds:.1f}", f"{e.down / 1e6:.1f}", f"{e.up / 1e6:.1f}"),
        )
    return shown


def ratios(entries: list[Measured]) -> dict[str, float]:
    """Co-S²P against FedRolex over the fleet, less one: means of the devices' peaks, sums of seconds and bytes."""
    both = [
        (ours, theirs)
        for ours in entries
        for theirs in entries
        if (ours.method, theirs.method) == ("cos2p", "fedrolex") and ours.key[2:] == theirs.key[2:]
        and not ours.failure and not theirs.failure
    ]  # fmt: skip
    if not both:
        return {}

    def ratio(field: str) -> float:
        ours, theirs = (sum(pair[i].devices * getattr(pair[i], field) for pair in both) for i in (0, 1))
        return ours / theirs - 1 if theirs else 0.0

    return {
        name: ratio(field)
        for name, field in (("memory", "peak"), ("time", "cpu_seconds"), ("down", "down"), ("up", "up"))
    }


def show(record: Record, console: Console) -> None:
    own = {text.name for text in texts.MODELS}
    for part in dict.fromkeys(entry.part for entry in record.known if entry.part not in own):
        entries = [entry for entry in record.known if entry.part == part]
        console.print(table(part, entries))
        paper = PAPER_LLAMA if part == llama.PART else PAPER
        if found := ratios(entries):
            ours = ", ".join(f"{name} {value:+.0%}" for name, value in found.items())
            console.print(
                f"Co-S²P against FedRolex: {ours}; the paper: {', '.join(f'{n} {v:+.1%}' for n, v in paper.items())}\n"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--recipes", nargs="+", choices=("e1", "e2", "e3"), default=["e1", "e2", "e3"])
    parser.add_argument("--methods", nargs="+", default=list(vision.METHODS))
    parser.add_argument("--batch", type=int, default=0, help="at most so many samples at a time; 0: the recipe's")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0625, 0.25], help="of the language model")
    parser.add_argument("--weights", type=Path, default=Path("weights/tinyllama-1.1b"))
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/twitter_financial_news/train.csv.gz"))
    parser.add_argument("--samples", type=int, default=4, help="texts of the language model's task")
    parser.add_argument("--cap", type=float, default=5.0, help="GiB of the language model's process")
    parser.add_argument("--predict", action="store_true", help="the ledger alone; nothing is measured")
    parser.add_argument("--record", type=Path, default=Path("runs/fullsize.jsonl"))
    parser.add_argument("--rounds", type=Path, default=Path("runs/fullsize-rounds.jsonl"), help="record of the rounds")
    chosen = parser.parse_args()
    record = Record(chosen.record)
    console = Console(width=180)
    if "vision" in chosen.parts:
        for name in chosen.recipes:
            console.print(ledger.table(name))
    if "vision" in chosen.parts and not chosen.predict:
        with tempfile.TemporaryDirectory() as folder:
            vision.run(record, chosen.recipes, chosen.methods, Path(folder), chosen.batch)
    if "rounds" in chosen.parts and not chosen.predict:
        played = rounds.Rounds(chosen.rounds)
        rounds.run(played, chosen.recipes, chosen.batch or rounds.SAMPLES)
        for shown in rounds.tables(played):
            console.print(shown)
    if "llama" in chosen.parts and not chosen.predict:
        cap = int(chosen.cap * 2**30)
        llama.run(record, chosen.weights, chosen.texts, chosen.rates, chosen.methods, chosen.samples, cap)
    if "texts" in chosen.parts:
        if not chosen.predict:
            texts.run(record)
        for text in texts.MODELS:
            console.print(texts.table(text, record))
    show(record, console)


if __name__ == "__main__":
    main()

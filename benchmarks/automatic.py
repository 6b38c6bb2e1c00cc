"""What the automatic choices reach: plans from nothing but a device's memory, and learning rates that devices find.

    COS2P_DATA=<folder with the weights and data> python -m benchmarks.automatic plans --records docs/results/automatic
    python -m benchmarks.automatic tables --records docs/results/automatic        writes the page's tables and picture

One small file for each run; a run that has its file is not run again, so the list can be stopped and continued.
`rates` runs a grid with one seed, then the grid's best rate and `auto` with two more.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from cos2p.numerics.metrics import mean_interval

SEEDS = (0, 1, 2)
DINO = ("schedule.updates=40", "data.test_samples=600")
"""As in the records of docs/results/pretrained.md that the plans are compared with."""
PLANS = (
    ("minilm-trec", ("30MB", "58MB", "120MB"), ()),
    ("dino-caltech101", ("80MB", "120MB", "160MB"), DINO),
)
PRETRAINED, FRESH = ("1e-4", "3e-4", "1e-3", "2e-3"), ("5e-4", "1e-3", "2e-3", "4e-3", "8e-3")
GRIDS = {
    "demo": (FRESH, ()),
    "fashion-mini": (FRESH, ()),
    "minilm-trec": (PRETRAINED, ()),
    "minilm-banking77": (PRETRAINED, ()),
    "dino-caltech101": (("3e-5", "1e-4", "3e-4", "1e-3"), DINO),
}
METHODS = ("cos2p", "fedlora", "fedavg")
BY_HAND = {
    ("minilm-trec", "30MB"): "minilm-trec-told-head-30-factors",
    ("minilm-trec", "58MB"): "minilm-trec-told-head-frontier",
    ("minilm-trec", "120MB"): "minilm-trec-told-head",
    ("dino-caltech101", "80MB"): "dino-caltech101-frontier-80",
    ("dino-caltech101", "120MB"): "dino-caltech101-frontier-factors",
    ("dino-caltech101", "160MB"): "dino-caltech101-frontier",
}
"""Records of docs/results/pretrained with rates, form and learning rate set by hand, in so much memory or less."""
WHOLE = {"minilm-trec": "minilm-trec-told-head", "dino-caltech101": "dino-caltech101"}
"""Those with full fine-tuning."""


@dataclass(frozen=True)
class Job:
    name: str
    recipe: str
    seed: int
    changes: tuple[str, ...]
    method: str = "cos2p"


def plans(only: str) -> Iterator[Job]:
    for recipe, memories, changes in PLANS:
        for seed in SEEDS:
            for memory in memories:
                own = [f"fleet.devices.{n}.{field}" for n in range(3) for field in (f"memory={memory}", "rate=auto")]
                if only in recipe:
                    yield Job(f"plan-{recipe}-{memory}-{seed}", recipe, seed, (*changes, *own))


def rates(only: str, records: Path) -> Iterator[Job]:
    for recipe, (grid, changes) in GRIDS.items():
        for method in METHODS:
            if only not in f"{recipe}-{method}":
                continue
            for lr in ("auto", *grid):
                yield _rate(recipe, method, lr, 0, changes)
            best = max(grid, key=lambda lr: _score(records, recipe, method, lr))
            for seed in SEEDS[1:]:
                for lr in ("auto", best):
                    yield _rate(recipe, method, lr, seed, changes)


def _rate(recipe: str, method: str, lr: str, seed: int, changes: tuple[str, ...]) -> Job:
    return Job(f"rate-{recipe}-{method}-{lr}-{seed}", recipe, seed, (*changes, f"training.lr={lr}"), method)


def _score(records: Path, recipe: str, method: str, lr: str) -> float:
    found = json.loads((records / f"rate-{recipe}-{method}-{lr}-0.json").read_text())["result"]
    return float(found.get("top1") or 0.0)


def run(job: Job, records: Path, work: Path, look: Callable[[Path], dict[str, object]] = lambda _: {}) -> None:
    """Run it and keep its figures, and what `look` finds in its folder."""
    out, began = work / job.name, time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    changes = [word for change in ("schedule.evaluate_every=1000", *job.changes) for word in ("--set", change)]
    go_on = ["--resume"] if (out / "checkpoint.safetensors").exists() else ["--overwrite"]
    command = [sys.executable, "-m", "cos2p", "run", job.recipe, "--method", job.method, "--out", str(out)]
    command += ["--seed", str(job.seed), "--workers", "1", "--quiet", *changes, *go_on]
    print(f"{time.strftime('%H:%M')} {job.name}", flush=True)
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    found: dict[str, object] = {"name": job.name, "recipe": job.recipe, "method": job.method, "seed": job.seed}
    found |= {"changes": list(job.changes), "seconds": round(time.monotonic() - began)}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["processor_seconds"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    if done.returncode == 0:
        result = json.loads((out / "result.json").read_text())
        found["result"] = {name: value for name, value in result.items() if isinstance(value, int | float | str)}
        log = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        found["rated"] = [entry for entry in log if "rated" in entry.values()]
        found |= look(out)
    else:  # a diverged run is a result: it counts as nothing learnt
        found["result"], found["error"] = {}, done.stderr[-2000:]
    (records / f"{job.name}.json").write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    print(f"      {found['seconds']} s, {json.dumps(found['result'])[:200]}", flush=True)


def plans_tables(records: Path) -> str:
    """Plans from memory alone beside runs set by hand and full fine-tuning, of the same seeds; then what travelled."""
    scores = _head("recipe, memory", "seeds", "rate found", "by memory alone", "set by hand", "full fine-tuning")
    bytes_sent = _head("recipe, memory", "down", "up", "down, by hand", "up, by hand")
    for recipe, memories, _ in PLANS:
        for memory in memories:
            found = _read(records, f"plan-{recipe}-{memory}")
            if not found:
                continue
            hand = _pretrained(records, BY_HAND[recipe, memory], "cos2p", found)
            whole = _pretrained(records, WHOLE[recipe], "fedavg", found)
            title, own = f"{recipe}, {memory.replace('MB', ' MB')}", [run["result"] for run in found.values()]
            scores.append(_row(title, len(found), _rates(found), *map(_top1, (own, hand, whole))))
            sent = (f"{mean(run[way] for run in runs) / 1e6:,.0f} MB" for runs in (own, hand) for way in WAYS)
            bytes_sent.append(_row(title, *sent))
    return "\n".join([*scores, "", *bytes_sent])


WAYS = ("bytes_down", "bytes_up")


def rates_tables(records: Path) -> str:
    """The rate that devices find beside the best of a grid; then the grids that are whole."""
    scores = _head("recipe, method", "seeds", "rate found", "auto", "best of the grid", "its rate")
    grids = []
    for recipe, (grid, _) in GRIDS.items():
        lines = _head(f"{recipe}, seed 0", *grid)
        for method in METHODS:
            title, found = f"rate-{recipe}-{method}", _read(records, f"rate-{recipe}-{method}-auto")
            own = [_read(records, f"{title}-{lr}").get(0) for lr in grid]
            if not found or None in own:
                continue
            best = max(grid, key=lambda lr: _score(records, recipe, method, lr))
            tried = [run["result"] for seed, run in _read(records, f"{title}-{best}").items() if seed in found]
            auto = _top1([run["result"] for run in found.values()])
            scores.append(_row(f"{recipe}, {method}", len(found), _rates(found), auto, _top1(tried), best))
            lines.append(_row(method, *(_top1([run["result"]]) for run in own if run)))
        grids += ["", *lines] if len(lines) > 2 else []
    return "\n".join([*scores, *grids])


def _head(*titles: str) -> list[str]:
    return [_row(*titles), "|" + "---|" * len(titles)]


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _read(records: Path, start: str) -> dict[int, dict[str, Any]]:
    """Runs by their seed."""
    files = ((seed, records / f"{start}-{seed}.json") for seed in SEEDS)
    return {seed: json.loads(file.read_text()) for seed, file in files if file.is_file()}


def _pretrained(records: Path, study: str, method: str, seeds: dict[int, Any]) -> list[dict[str, Any]]:
    lines = (records.parent / "pretrained" / study / "runs.jsonl").read_text().splitlines()
    head, *runs = map(json.loads, lines)
    of_it = (run for run in runs if (run["method"], run["updates"]) == (method, head["updates"]))
    return [run["result"] for run in of_it if run["result"]["seed"] in seeds]


def _rates(found: dict[int, dict[str, Any]]) -> str:
    return ", ".join(
        sorted({re.sub("e-0", "e-", f"{one['lr']:.0e}") for run in found.values() for one in run["rated"]})
    )


def _top1(results: list[dict[str, Any]]) -> str:
    """With an interval where there are three seeds; one that diverged counts as nothing learnt."""
    middle, half = mean_interval(100 * (result.get("top1") or 0.0) for result in results)
    return f"{middle:.1f} ± {half:.1f}" if len(results) == len(SEEDS) else f"{middle:.1f}"


def write_page(records: Path, tables: Mapping[str, Callable[[Path], str]]) -> None:
    """The tables between their marks on the page next to the records, and the picture of them."""
    from tools.result_pictures import PICTURES, SHOWN, draw

    page = records.with_suffix(".md")
    text = page.read_text(encoding="utf-8")
    for mark, table in tables.items():
        text = re.sub(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", rf"\1\n{table(records)}\n\n\2", text, flags=re.DOTALL)
    page.write_text(text, encoding="utf-8")
    (PICTURES / f"{page.stem}.svg").write_text(draw(page, SHOWN[page.stem]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plans", "rates", "tables"))
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/automatic"))
    parser.add_argument("--only", default="", help="recipes (of rates: recipe-method) that contain this")
    options = parser.parse_args()
    if options.what == "tables":
        write_page(options.records, {"plans": plans_tables, "rates": rates_tables})
        return
    options.records.mkdir(parents=True, exist_ok=True)
    todo = plans(options.only) if options.what == "plans" else rates(options.only, options.records)
    for job in todo:
        if not (options.records / f"{job.name}.json").is_file():
            run(job, options.records, options.work)


if __name__ == "__main__":
    main()

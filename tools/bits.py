"""A refactoring proves itself by bits: two rounds of every method, one line each.

python -m tools.bits > before.txt     on the commit before
python -m tools.bits > after.txt      on the commit after; `diff` says which methods changed
python -m tools.bits fedavg cos2p:    only the cases whose name begins with one of the words

A line is a case, its number of workers, a hash of the weights and a hash of the figures of result.json. Hashes hold for
one processor and one version of torch.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cos2p.errors import Cos2pError
from cos2p.methods import methods
from cos2p.recipe import Recipe
from cos2p.runtime.run_folder import WALL_CLOCK_FIELDS
from cos2p.runtime.simulation import run

SHORT = ("data.train_samples=400", "schedule.rounds=2", "schedule.evaluate_every=1", "schedule.updates=")
FORMS = {
    "growing": ("method.form=growing",),
    "cheap": ("method.form=cheap",),
    "balanced": ("method.window.schedule=balanced", "method.rescale=true"),
    "pretrained": ("method.form=pretrained", "schedule.rounds=3"),
    "factors": ("method.form=pretrained", "method.factors.below=0.1", "schedule.rounds=3"),
    "wire": ("training.wire.down=float16", "training.wire.up=int8"),
    "median": ("robust.combine=median", "robust.suspicion=weigh"),
}
"""Forms of Co-S²P whose code no method runs by default."""


def main(words: list[str]) -> None:
    for case, changes, method in cases():
        if words and not case.startswith(tuple(words)):
            continue
        for workers in (1, 2):
            print(f"{case:24} {workers} {_hashes(method, changes, workers)}", flush=True)


def cases() -> Iterator[tuple[str, tuple[str, ...], str]]:
    for name in sorted(methods()):
        yield name, (), name
    for form, changes in FORMS.items():
        yield f"cos2p:{form}", changes, "cos2p"


def _hashes(method: str, changes: tuple[str, ...], workers: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            recipe = Recipe.load("quickstart", [*SHORT, *changes, f"run.workers={workers}"], method)
            result = run(recipe, folder, overwrite=True)
        except Cos2pError as error:
            return str(error)
        weights = hashlib.sha256(Path(folder, "weights.safetensors").read_bytes())
        figures = {name: value for name, value in result.items() if name not in WALL_CLOCK_FIELDS}
        return f"{weights.hexdigest()[:16]} {_hash(figures)}"


def _hash(figures: object) -> str:
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main(sys.argv[1:])

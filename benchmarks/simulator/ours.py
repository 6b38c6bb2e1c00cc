"""One run of cos2p on the workload, for `benchmarks.simulator` to measure.

python -m benchmarks.simulator.ours FOLDER --devices 100 --per-round 100 --workers 1 --rounds 6
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.simulator.workload import Workload
from cos2p.runtime.simulation import run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    for name in ("devices", "per-round", "workers", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    recipe = Workload(options.devices, options.per_round).recipe(options.rounds, options.workers, options.folder)
    with tempfile.TemporaryDirectory() as out:
        run(recipe, Path(out) / "run")


if __name__ == "__main__":
    main()

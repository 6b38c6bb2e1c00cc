"""Adding one update to the running sums against a plain copy of the same bytes.

    python -m benchmarks.merge [--model vit-base] [--rates 0.25 1.0] [--repeats 9] [--threads 1]

Everything takes turns within one run, so that a noisy machine treats all alike; times are medians of CPU time, which
a neighbour on the same core disturbs less. The copy writes the update's tensors into tensors of the same shapes that
exist already: the least that any server does with an update.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from cos2p.aggregation.admission import check_update
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.costs.fitting import make_spec
from cos2p.messages import Order, Update
from cos2p.methods import make_trainer
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, init_weights, layout
from cos2p.models.sizes import model
from cos2p.models.spec import SubmodelSpec
from cos2p.processes.pages import keep_freed_pages
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import compact_shapes

COPY = "copy of the same bytes"


def random_delta(config: ModelConfig, spec: SubmodelSpec) -> Weights:
    rng = torch_rng(0, "benchmark merge")
    return {name: torch.randn(shape, generator=rng) * 1e-3 for name, shape in compact_shapes(config, spec).items()}


def jobs(
    config: ModelConfig, spec: SubmodelSpec, current: Weights, received: Weights
) -> dict[str, Callable[[], object]]:
    """What is measured, by the name it has in the table, in the order of a round."""
    delta = random_delta(config, spec)
    target = {name: torch.empty_like(tensor) for name, tensor in delta.items()}
    order = Order("pi-1", "pi-1#0", 0, 0, 0, 0, "submodel", {}, 1e-3, spec)
    update = Update("pi-1", "pi-1#0", 0, spec, delta, samples=100)
    fresh = Contribution("pi-1", spec, delta, 100, 0, received=current)
    stale = Contribution("pi-1", spec, delta, 100, 1, received=received)
    merge = SegmentMerge(config)
    return {
        COPY: lambda: [target[name].copy_(tensor) for name, tensor in delta.items()],
        "check at the door": lambda: check_update(update, order, config, make_trainer(config, order), max_rms=10.0),
        "add, first of its round": lambda: merge.add(fresh, current),
        "add, τ = 0": lambda: merge.add(fresh, current),
        "add, τ = 1, every tensor moved": lambda: merge.add(stale, current),
        "close the round": lambda: merge.apply(current),
    }


def measure(entries: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(repeats):
        for name, job in entries.items():
            start = time.process_time()
            job()
            seconds[name].append(time.process_time() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="vit-base")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.25, 1.0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_pages()  # as a simulation does
    config = model(arguments.model)
    current = init_weights(config, seed=0)
    received = {name: current[name] + 1e-3 for name in layout(config)}
    for rate in arguments.rates:
        spec = make_spec(config, rate, seed=0)
        entries = jobs(config, spec, current, received)
        measure(entries, 1)  # first touch of every page
        seconds = measure(entries, arguments.repeats)
        numbers = sum(torch.Size(shape).numel() for shape in compact_shapes(config, spec).values())
        print(
            f"{arguments.model}, R = {rate:g}: {numbers / 1e6:.1f} M scalars ({numbers * 4 / 1e6:.0f} MB), "
            f"{arguments.threads} thread(s), {arguments.repeats} turns, torch {torch.__version__}"
        )
        print(f"  {'':<34}{'CPU ms':>9}{'ratio':>8}{'ratio in turns':>18}")
        for name, times in seconds.items():
            ratios = sorted(own / copy for own, copy in zip(times, seconds[COPY], strict=True))
            ratio = statistics.median(times) / statistics.median(seconds[COPY])
            spread = f"{ratios[0]:.1f} to {ratios[-1]:.1f}"
            print(f"  {name:<34}{statistics.median(times) * 1e3:>9.1f}{ratio:>8.2f}{spread:>18}")


if __name__ == "__main__":
    main()

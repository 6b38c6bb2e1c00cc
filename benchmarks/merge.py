"""Adding one update to the running sums against a plain copy of the same bytes.

    python -m benchmarks.merge [--model vit-base] [--rates 0.25 1.0] [--repeats 9] [--threads 1]

Everything takes turns within one run, with torch alone and with the passes in C (`submodel.native`), so that a noisy
machine treats all alike; times are medians of CPU time, which a neighbour on the same core disturbs less. The copy
writes the update's tensors into tensors of the same shapes that exist already: the least that any server does with an
update.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.costs.fitting import make_spec
from cos2p.messages import Order, Update
from cos2p.methods import make_contract
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, init_weights, layout
from cos2p.models.sizes import model_config
from cos2p.models.spec import SubmodelSpec
from cos2p.processes.children import keep_freed_pages
from cos2p.seeding import torch_rng
from cos2p.server.update_reader import UpdateReader
from cos2p.submodel import native
from cos2p.submodel.slicing import trained_shapes

COPY = "copy of the same bytes"


def random_delta(config: ModelConfig, spec: SubmodelSpec) -> Weights:
    rng = torch_rng(0, "benchmark merge")
    return {name: torch.randn(shape, generator=rng) * 1e-3 for name, shape in trained_shapes(config, spec).items()}


class Rounds:
    """A server's rounds, one after the other: every turn closes one, in which every tensor of the update moves."""

    def __init__(self, config: ModelConfig, spec: SubmodelSpec, start: Weights) -> None:
        self.spec, self.delta, self.merge = spec, random_delta(config, spec), SegmentMerge(config)
        self.versions = [start, *({name: start[name] + way for name in layout(config)} for way in (1e-3, 2e-3))]
        """Of two rounds ago, of one, and of today."""

    def add(self, staleness: int) -> None:
        received = self.versions[2 - staleness]
        self.merge.add(Contribution("pi-1", self.spec, self.delta, 100, staleness, received), self.versions[2])

    def close(self) -> None:
        self.versions = [*self.versions[1:], self.merge.apply(self.versions[2])]


def jobs(config: ModelConfig, spec: SubmodelSpec, start: Weights) -> dict[str, Callable[[], object]]:
    """What is measured, by the name it has in the table, in the order of a round."""
    rounds = Rounds(config, spec, start)
    target = {name: torch.empty_like(tensor) for name, tensor in rounds.delta.items()}
    order = Order("pi-1", "pi-1#0", 0, 0, 0, 0, "submodel", {}, 1e-3, spec)
    reader = UpdateReader(order, config, make_contract(config, order), max_rms=10.0)
    message = bytes(Update("pi-1", "pi-1#0", 0, spec, rounds.delta, samples=100).packet())
    return {
        COPY: lambda: [target[name].copy_(tensor) for name, tensor in rounds.delta.items()],
        "check at the update reader": lambda: reader.read(reader.open(message)),
        "add, first of its round": lambda: rounds.add(0),
        "add, τ = 0": lambda: rounds.add(0),
        "add, first with τ = 1": lambda: rounds.add(1),
        "add, first with τ = 2": lambda: rounds.add(2),
        "add, another with τ = 2": lambda: rounds.add(2),
        "close the round": lambda: rounds.close(),
    }


Seconds = dict[tuple[str, bool], list[float]]
"""By the job, and whether the passes in C were used."""


def measure(entries: dict[bool, dict[str, Callable[[], object]]], repeats: int) -> Seconds:
    seconds: Seconds = {(name, own): [] for own in entries for name in entries[own]}
    for _ in range(repeats):
        for own, named in entries.items():
            for name, job in named.items():
                with native.using(native.found() if own else None):
                    start = time.process_time()
                    job()
                    seconds[name, own].append(time.process_time() - start)
    return seconds


def line(seconds: Seconds, name: str, own: bool) -> str:
    times, copies = seconds[name, own], seconds[COPY, own]
    ratios = sorted(time / copy for time, copy in zip(times, copies, strict=True))
    ratio = statistics.median(times) / statistics.median(copies)
    return f"{statistics.median(times) * 1e3:>9.1f}{ratio:>8.2f}{f'{ratios[0]:.1f} to {ratios[-1]:.1f}':>16}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="vit-base")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.25, 1.0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_pages()  # as a simulation does
    config = model_config(arguments.model)
    start = init_weights(config, seed=0)
    ways = [False] if native.found() is None else [False, True]
    for rate in arguments.rates:
        spec = make_spec(config, rate, seed=0)
        entries = {own: jobs(config, spec, start) for own in ways}
        measure(entries, 2)  # first touch of every page; and versions that were made by closing a round
        seconds = measure(entries, arguments.repeats)
        numbers = sum(torch.Size(shape).numel() for shape in trained_shapes(config, spec).values())
        print(
            f"{arguments.model}, R = {rate:g}: {numbers / 1e6:.1f} M scalars ({numbers * 4 / 1e6:.0f} MB), "
            f"{arguments.threads} thread(s), {arguments.repeats} turns, torch {torch.__version__}"
        )
        heads = {False: "torch alone", True: "with the passes in C"}
        print(f"  {'':<26}" + "".join(f"{heads[own]:>33}" for own in ways))
        print(f"  {'':<26}" + f"{'CPU ms':>9}{'ratio':>8}{'in turns':>16}" * len(ways))
        for name in entries[False]:
            print(f"  {name:<26}" + "".join(line(seconds, name, own) for own in ways))


if __name__ == "__main__":
    main()

"""The floor: a plain loop over the same shards, with the same model, the same batches and the same average.

    python -m benchmarks.simulator.floor work-100.pt --rounds 3 --per-round 100 [--workers 2]

One model is made and used for every device. With two workers, each process trains every other device of a round and
they add their sums up: what a loop costs that uses both cores.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing as processes
from torch import Tensor

from benchmarks.peers.work import BATCH, RATE, Work, arguments, load
from cos2p.seeding import torch_rng


def play(work: Work, names: list[str], rank: int = 0, shared: Any = None) -> list[Tensor]:
    """All rounds. Returns the weights in the end, in the order of the model's parameters."""
    parameters = list(work.model.parameters())
    optimizer = torch.optim.SGD(parameters, RATE, fused=True)
    current = [p.detach().clone() for p in parameters]
    for played in range(work.rounds):
        chosen = range(len(names))
        if work.per_round < len(names):
            draw = torch.randperm(len(names), generator=torch_rng(0, "floor", played))
            chosen = draw[: work.per_round].tolist()
        total = [torch.zeros_like(p) for p in parameters]
        for number in chosen[rank :: work.workers]:
            with torch.no_grad():
                torch._foreach_copy_(parameters, current)
            train(work, number, torch_rng(0, "device", names[number], played), optimizer)
            with torch.no_grad():
                torch._foreach_add_(total, parameters)
        total = total if shared is None else shared(total)
        current = torch._foreach_div(total, float(work.per_round))
    return current


def train(work: Work, number: int, rng: torch.Generator, optimizer: torch.optim.Optimizer) -> None:
    """One device's epoch, in the order in which cos2p's device draws its rows."""
    images, labels = work.shards[number]
    for rows in torch.randperm(len(labels), generator=rng).split(BATCH):
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(work.model(images[rows]), labels[rows]).backward()
        optimizer.step()


def _member(rank: int, options: Any, names: list[str]) -> None:
    torch.distributed.init_process_group("gloo", rank=rank, world_size=options.workers)

    def shared(total: list[Tensor]) -> list[Tensor]:
        flat = torch.cat([t.flatten() for t in total])
        torch.distributed.all_reduce(flat)
        return [part.view_as(t) for part, t in zip(flat.split([t.numel() for t in total]), total, strict=True)]

    play(load(options), names, rank, shared)
    torch.distributed.destroy_process_group()


def main() -> None:
    options = arguments()
    names = torch.load(options.file, weights_only=True)["names"]
    if options.workers == 1:
        play(load(options), names)
        return
    import os

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519"}
    processes.spawn(_member, (options, names), options.workers)


if __name__ == "__main__":
    main()

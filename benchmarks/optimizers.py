"""Adan's step against torch's AdamW, in time and in memory, on the parameters of vit-base; and what fits a device.

    python -m benchmarks.optimizers [--blocks 12] [--repeats 9] [--threads 1]
    python -m benchmarks.optimizers --fit 600MB [--batch 8]

The optimisers take turns within one run, so that a noisy machine treats them alike; times are medians, CPU
time is that of all threads. Memory is the growth of the resident set's peak during a step, each optimiser in
a process of its own, with the allocator told to give freed blocks back at once.

`--fit` asks what part of vit-base a device of so much memory can train, plainly and with one saving more at a time: the
largest rate that the ledger promises at every window position, and its real training at the bottom, in its own process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import measure
from cos2p import model_config
from cos2p.costs.fitting import largest_rate, make_spec
from cos2p.costs.flops import shape_flops
from cos2p.costs.ledger import peak
from cos2p.costs.shape import Shape, Workload
from cos2p.numerics.adan import TEMPORARY_BYTES
from cos2p.numerics.optimizers import eight_bit, make_optimizer
from cos2p.seeding import torch_rng

MIB = 1024 * 1024
RIVAL = "AdamW foreach"
ENTRIES = {
    "Adan": ("adan", {"weight_decay": 0.02}),
    "Adan, 8-bit states": ("adan-8bit", {"weight_decay": 0.02}),
    RIVAL: ("adamw", {"weight_decay": 0.02, "foreach": True}),
    "AdamW (ours: fused)": ("adamw", {"weight_decay": 0.02}),
    "AdamW, 8-bit states": ("adamw-8bit", {"weight_decay": 0.02}),
    "SGD momentum (ours: fused)": ("sgd", {"momentum": 0.9}),
}


def memory_optimizations(workload: Workload) -> Iterator[tuple[str, Workload]]:
    """The workload as it is, and with one saving more at a time, the cheapest first."""
    yield "plain", workload
    workload = workload.with_(step_in_backward=workload.micro == workload.batch)
    yield "step in backward", workload
    workload = workload.with_(optimizer=eight_bit(workload.optimizer))
    yield "8-bit states", workload
    yield "recomputation", workload.with_(recompute=True)


def vit_parameters(blocks: int, dim: int = 768, mlp: int = 3072) -> list[Tensor]:
    """The block parameters of a ViT with separate q, k, v, o, each with a random gradient."""
    attention = [(dim, dim), (dim,)] * 4
    units = [(mlp, dim), (mlp,), (dim, mlp), (dim,)]
    norms = [(dim,)] * 4
    rng = torch_rng(0, "benchmark optimizers")
    parameters = []
    for shape in (attention + units + norms) * blocks:
        parameter = torch.empty(shape).normal_(generator=rng).requires_grad_()
        parameter.grad = torch.empty(shape).normal_(generator=rng)
        parameters.append(parameter)
    return parameters


def build(entry: str, parameters: list[Tensor]) -> torch.optim.Optimizer:
    name, options = ENTRIES[entry]
    return make_optimizer(name, parameters, lr=1e-4, **options)


def measure_times(blocks: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, CPU) seconds of each step of each optimiser, taken in turns."""
    parameters = vit_parameters(blocks)
    optimizers = {entry: build(entry, parameters) for entry in ENTRIES}
    for optimizer in optimizers.values():
        optimizer.step()  # makes the state
    times: dict[str, list[tuple[float, float]]] = {entry: [] for entry in ENTRIES}
    for _ in range(repeats):
        for entry, optimizer in optimizers.items():
            wall, cpu = time.perf_counter(), time.process_time()
            optimizer.step()
            times[entry].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def step_peak(entry: str, blocks: int) -> int:
    """Bytes by which one step of this process's optimiser raises the peak of the resident set (Linux)."""
    optimizer = build(entry, vit_parameters(blocks))
    optimizer.step()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    optimizer.step()
    return max(0, _status("VmHWM") - before)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {field}")


def step_peak_in_own_process(entry: str, blocks: int, threads: int) -> int:
    # A fixed threshold: otherwise the allocator keeps what the first step freed, and the second seems free.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "benchmarks.optimizers", "--peak", entry]
    command += ["--blocks", str(blocks), "--threads", str(threads)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return int(done.stdout)


def print_what_fits(memory: str, batch: int, threads: int) -> None:
    """The largest part of vit-base that trains in `memory`, with one saving more in every line."""
    config, plain = model_config("vit-base"), Workload(batch=batch, threads=threads)
    print(
        f"vit-base, batch {batch}, {memory}, {threads} thread(s), torch {torch.__version__}; each line adds to the last"
    )
    print("| saving | R | blocks | predicted MB | measured MB | meas/pred | CPU s a step | CPU s / TFLOP |")
    print("|---|---|---|---|---|---|---|---|")
    for name, workload in memory_optimizations(plain):
        rate = largest_rate(config, memory, workload)
        spec = make_spec(config, rate)
        predicted, measured = peak(config, spec, workload).total, measure(config, spec, workload, steps=3)
        seconds = measured.cpu_seconds
        useful = shape_flops(config, Shape.of(config, spec), plain) / 1e12  # what is computed twice counts once
        print(
            f"| {name} | {rate:.3f} | {len(spec.window)} | {predicted / 1e6:.1f} | {measured.peak_bytes / 1e6:.1f} "
            f"| {measured.peak_bytes / predicted:.3f} | {seconds:.2f} | {seconds / useful:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12, help="transformer blocks of width 768 (12: vit-base)")
    parser.add_argument("--repeats", type=int, default=9, help="steps of each optimiser")
    parser.add_argument("--threads", type=int, default=1, help="1 is least disturbed by others on the machine")
    parser.add_argument("--fit", metavar="MEMORY", help="what part of vit-base trains in so much, such as 600MB")
    parser.add_argument("--batch", type=int, default=8, help="samples of a step, with --fit")
    parser.add_argument("--peak", choices=list(ENTRIES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.fit:
        print_what_fits(arguments.fit, arguments.batch, arguments.threads)
        return
    if arguments.peak:
        print(step_peak(arguments.peak, arguments.blocks))
        return

    numbers = sum(parameter.numel() for parameter in vit_parameters(arguments.blocks))
    print(
        f"{arguments.blocks} blocks of vit-base, {numbers / 1e6:.1f} M parameters ({numbers * 4 / MIB:.0f} MiB), "
        f"{arguments.threads} thread(s), {arguments.repeats} interleaved steps, torch {torch.__version__}"
    )
    times = measure_times(arguments.blocks, arguments.repeats)
    rival_wall, rival_cpu = (statistics.median(column) for column in zip(*times[RIVAL], strict=True))
    print(f"{'step of':<28}{'wall s':>8}{'ratio':>7}{'CPU s':>9}{'ratio':>7}{'ratio in turns':>18}{'peak MiB':>10}")
    for entry, pairs in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios = sorted(ours[0] / theirs[0] for ours, theirs in zip(pairs, times[RIVAL], strict=True))
        peak = step_peak_in_own_process(entry, arguments.blocks, arguments.threads)
        print(
            f"{entry:<28}{wall:>8.3f}{wall / rival_wall:>7.2f}{cpu:>9.3f}{cpu / rival_cpu:>7.2f}"
            f"{f'{ratios[0]:.2f} to {ratios[-1]:.2f}':>18}{peak / MIB:>10.1f}"
        )
    ratio = statistics.median(wall for wall, _ in times["Adan"]) / rival_wall
    print(f"Adan takes {ratio:.2f}x the time of {RIVAL} (limit 2.00x)")
    print(f"and at most {TEMPORARY_BYTES / MIB:.0f} MiB of temporaries (TEMPORARY_BYTES)")


if __name__ == "__main__":
    main()

"""Where tensors are computed with: the processor, or a GPU. The one place that knows of more than the processor.

    device = resolve("auto")                 # the GPU if there is one, else the processor
    batch = place(batch, device)             # through pinned memory, without waiting for the copy

Whatever decides (masks, shuffles, noise, seeds) is drawn on the host and copied: decisions are the same everywhere.
Sums are not: a GPU adds in another order, and results differ in their last bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from cos2p.errors import ConfigError

CPU = torch.device("cpu")

Accelerator = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")]
"""`auto`, `cpu`, `mps`, `cuda` or one GPU of several, `cuda:1`."""


def resolve(name: str) -> torch.device:
    """The device of this name. ConfigError, with what is there, for one that this machine does not have.

    >>> resolve("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device(available()[-1])
    match = re.fullmatch(r"(cpu|mps|cuda)(?::(\d+))?", name)
    if match is None or (match[2] and match[1] != "cuda"):
        raise ConfigError(f"accelerator {name!r} is unknown; write auto, cpu, mps, cuda or cuda:1")
    wanted = f"cuda:{match[2] or 0}" if match[1] == "cuda" else name
    if wanted not in available():
        raise ConfigError(f"accelerator {name!r} is not on this machine ({_why_not(match[1])}); {_there()}")
    return torch.device(wanted)


def available() -> list[str]:
    """The devices that this machine can compute with; the last is what `auto` takes."""
    found = ["cpu"]
    if torch.backends.mps.is_available():
        found.append("mps")
    if torch.cuda.is_available():
        found += [f"cuda:{number}" for number in reversed(range(torch.cuda.device_count()))]
    return found


def _there() -> str:
    return f"there is {', '.join(available())}"


def _why_not(kind: str) -> str:
    if kind == "cuda" and not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA"
    if kind == "cuda":
        return f"torch sees {torch.cuda.device_count()} of them" if torch.cuda.is_available() else "no driver, no GPU"
    return "that is Apple's"


def place(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; itself if it is there. A copy to a GPU goes through pinned memory, and is not waited
    for: what is computed with it comes after it in the GPU's own order."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu" and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def place_all(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: place(tensor, device) for name, tensor in tensors.items()}


# ---------------------------------------------------------------- memory

MIB = 2**20
TENSOR_ROUNDING = 512
"""torch's CUDA allocator rounds every tensor up to a multiple of so many bytes."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 * MIB, 20 * MIB
"""It asks the driver for so much at a time: for tensors below 1 MiB, and for those below 10 MiB."""
WORKSPACE = 8 * MIB + 128 * 1024
"""Bytes that torch keeps for cuBLAS after the first product (2 × 4 MiB and 8 × 16 KiB), ..."""
WORKSPACE_LT = 4 * MIB
"""... and for cublasLt: 1 MiB, 4 on a large Ampere. 32 on a Hopper, which has the memory."""
TENSORS = 4096
"""More than a task has alive at once."""


def overhead(device: torch.device) -> int:
    """Bytes of an accelerator that training takes next to its tensors: what is rounded up, the part of a segment of
    each kind that is left over, and the libraries' workspaces, in segments of their own. 0 on the processor, whose
    ledger has all of it. The driver's own (some hundred megabytes of context) is not counted: no cap can reach it.
    """
    if device.type != "cuda":
        return 0
    workspaces = -(-(WORKSPACE + WORKSPACE_LT) // LARGE_SEGMENT) * LARGE_SEGMENT
    return TENSORS * TENSOR_ROUNDING + SMALL_SEGMENT + LARGE_SEGMENT + workspaces


def for_tensors(memory: int, device: torch.device) -> int:
    """The part of so many bytes on the device that tensors may take: what a task is cut to. At least 1."""
    return max(1, memory - overhead(device))


@contextmanager
def capped(device: torch.device, memory: int) -> Iterator[None]:
    """Inside, this process takes at most so many bytes of a GPU: one more is a `torch.OutOfMemoryError`. 0: no cap.

    Several processes, each a device with a cap of its own, share one GPU that way. The processor has other means
    (`fleet.device.cap`).
    """
    if device.type != "cuda":
        yield
        return
    whole = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()  # what an earlier task has left would count
    torch.cuda.set_per_process_memory_fraction(min(1.0, memory / whole) if memory else 1.0, device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def peak_bytes(device: torch.device) -> int:
    """Most bytes of tensors on the accelerator at once since `capped` was entered; 0 where nobody counts them."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def synchronize(device: torch.device) -> None:
    """Wait for what was begun there: before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def free_bytes(device: torch.device) -> int | None:
    """Bytes that nobody has taken of an accelerator's own memory; None where it has none of its own."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an accelerator has refused an allocation. (`torch.OutOfMemoryError` is new in torch 2.5.)"""
    return isinstance(error, torch.cuda.OutOfMemoryError) or "MPS backend out of memory" in str(error)


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums depend on the number of threads in their last bit; what a run decides must not. Merging is quick, and the
    cores are the devices' where all run on one machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

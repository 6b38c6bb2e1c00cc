"""Which device a name means, what it takes next to the tensors, and a real one where it is (make test-gpu)."""

from __future__ import annotations

import pytest
import torch

from cos2p.accelerator import (
    CPU,
    available,
    capped,
    for_tensors,
    is_out_of_memory,
    overhead,
    peak_bytes,
    place,
    place_all,
    resolve,
)
from cos2p.errors import ConfigError

GPU = torch.device("cuda:0")


def test_the_processor_is_always_there() -> None:
    assert resolve("cpu") == CPU
    assert available()[0] == "cpu"


def test_auto_takes_the_first_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve("auto") == resolve("cuda") == GPU
    assert resolve("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="there is cpu, cuda:1, cuda:0"):
        resolve("cuda:2")


def test_auto_is_the_processor_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve("auto") == CPU
    for name in ("cuda", "cuda:1", "mps"):
        with pytest.raises(ConfigError, match=rf"accelerator '{name}' is not on this machine .*there is cpu"):
            resolve(name)


@pytest.mark.parametrize("name", ["gpu", "mps:1", "cuda:", "", "cpu:0"])
def test_a_name_that_means_nothing(name: str) -> None:
    with pytest.raises(ConfigError, match="write auto, cpu, mps, cuda or cuda:1"):
        resolve(name)


def test_what_is_there_is_not_copied() -> None:
    tensor = torch.ones(2)
    assert place(tensor, CPU) is tensor
    assert place_all({"a": tensor}, CPU)["a"] is tensor


def test_a_gpu_takes_more_than_its_tensors() -> None:
    """Rounding 2 MiB, segments of 2 and 20 MiB that are partly used, workspaces in one of 20 MiB."""
    assert overhead(GPU) == 44 * 2**20
    assert for_tensors(2**30, GPU) == 2**30 - 44 * 2**20
    assert (overhead(CPU), for_tensors(1000, CPU)) == (0, 1000)


def test_only_memory_is_out_of_memory() -> None:
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.gpu
def test_a_cap_is_kept() -> None:
    with capped(GPU, 64 * 2**20), pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(2**30, device=GPU)
    with capped(GPU, 2**30):
        torch.empty(100 * 2**20, dtype=torch.uint8, device=GPU)
        assert 100 * 2**20 <= peak_bytes(GPU) < 101 * 2**20


@pytest.mark.gpu
def test_a_copy_through_pinned_memory_is_the_same() -> None:
    tensor = torch.randn(1000, 1000)
    assert torch.equal(place(place(tensor, GPU), CPU), tensor)

"""A GPU that is not there: for tests of where tensors are, on a machine without one.

    with stand_in_gpu() as gpu:
        run_task(config, task, shard, {}, device=gpu.device)
    assert gpu.asked == ...

On `gpu.device` tensors have a shape, a type and a place, but no values. Every operation on them is done by torch's own
`FakeTensorMode` on fake `cuda` tensors, which refuses a tensor that was left on the host, as a real GPU does; what is
computed on the host alone is computed for real. `asked` counts how often the host waited for a value of the GPU: that
must not grow with the steps of a task. A draw on the GPU is refused: whatever decides is drawn on the host.

Two things it cannot show: values, and autocast, which torch leaves out where there is no real GPU. It builds on inner
parts of torch: it works with torch 2.13 and not with 2.4.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_GPU = torch.device("cuda:0")
_aten = torch.ops.aten


class _OnGpu(Tensor):
    """Autograd, which has no GPU to order its work by, takes it for a tensor without values; inside is the fake."""

    fake: FakeTensor

    @staticmethod
    def __new__(cls, fake: FakeTensor) -> _OnGpu:
        made: _OnGpu = Tensor._make_wrapper_subclass(
            cls, fake.shape, fake.stride(), fake.storage_offset(), dtype=fake.dtype, device=torch.device("meta")
        )
        made.fake = fake
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def tolist(self) -> Any:
        return self.cpu().tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func}: a tensor of a stand-in GPU is used after the GPU is gone")


class StandInGpu(TorchDispatchMode):
    """Does what happens on the GPU with fakes, and what happens on the host for real."""

    device = _GPU

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = 0
        """Values or tensors that the host has waited for."""
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        on_gpu: dict[int, _OnGpu] = {}
        drawn_from: list[torch.Generator] = []

        def fake(value: Any) -> Any:
            if isinstance(value, _OnGpu):
                on_gpu[id(value.fake)] = value
                return value.fake
            if isinstance(value, torch.Generator):
                drawn_from.append(value)
            if isinstance(value, Tensor) and value.is_meta:  # made by torch itself next to what autograd takes for meta
                with self._fakes:
                    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_GPU)
            return value

        fake_args, fake_kwargs = tree_map(fake, args), tree_map(fake, kwargs)
        wanted = kwargs.get("device")
        to_gpu = wanted is not None and torch.device(wanted).type == "cuda"
        if on_gpu and wanted is not None and torch.device(wanted).type == "meta":  # autograd means: next to the others
            to_gpu = True
        if not on_gpu and not to_gpu:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if drawn_from:
            raise RuntimeError(f"{func}: drawn on the GPU, from a generator of the host; draw on the host and place it")
        if func is _aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in fake_args[1]):
            self.asked += 1
            fake_args = (fake_args[0], [self._all_places(i) for i in fake_args[1]])
        if func in _ANSWERS:
            self.asked += 1
            with unset_fake_temporarily():
                return _ANSWERS[func](self, *fake_args, **fake_kwargs)
        if func is _aten.copy_.default and not isinstance(args[0], _OnGpu):
            self.asked += 1
            with unset_fake_temporarily():
                return args[0].copy_(_made_up(args[0].shape, args[0].dtype))
        if wanted is not None and not to_gpu:
            self.asked += 1
            with unset_fake_temporarily():
                return _made_up(fake_args[0].shape, kwargs.get("dtype") or fake_args[0].dtype)
        if to_gpu:
            fake_kwargs["device"] = _GPU
        with self._fakes:
            result = func(*fake_args, **fake_kwargs)
        return tree_map(lambda value: _wrapped(value, on_gpu), result)

    def _all_places(self, index: Any) -> Any:
        """Where a mask is true only its values say: here everywhere. (Masks of one axis.)"""
        if index is None or index.dtype != torch.bool:
            return index
        with self._fakes:
            return torch.empty(index.shape, dtype=torch.int64, device=_GPU)


def _wrapped(value: Any, on_gpu: dict[int, _OnGpu]) -> Any:
    if not isinstance(value, FakeTensor):
        return value
    return on_gpu[id(value)] if id(value) in on_gpu else _OnGpu(value)


def _made_up(shape: Any, dtype: torch.dtype) -> Tensor:
    """The host's answer when it asks: halves, yes, and zeros where they are places or codes."""
    return torch.full(tuple(shape), 0.5 if dtype.is_floating_point else dtype == torch.bool, dtype=dtype)


def _scalar(gpu: StandInGpu, tensor: FakeTensor) -> float | int | bool:
    if tensor.dtype == torch.bool:
        return True
    return 0.5 if tensor.dtype.is_floating_point else 0


def _nonzero(gpu: StandInGpu, tensor: FakeTensor) -> Tensor:
    """How many there are only the values say: here all."""
    with gpu._fakes:
        return _OnGpu(torch.empty(tensor.numel(), tensor.ndim, dtype=torch.int64, device=_GPU))  # type: ignore[arg-type]


def _bincount(gpu: StandInGpu, tensor: FakeTensor, weights: Any = None, minlength: int = 0) -> Tensor:
    with gpu._fakes:
        return _OnGpu(torch.empty(max(1, minlength), dtype=torch.int64, device=_GPU))  # type: ignore[arg-type]


_ANSWERS: dict[Any, Callable[..., Any]] = {
    _aten._local_scalar_dense.default: _scalar,
    _aten.nonzero.default: _nonzero,
    _aten.bincount.default: _bincount,
}
"""Operations that need values of the GPU, and what a stand-in says instead."""


@contextmanager
def stand_in_gpu() -> Iterator[StandInGpu]:
    """A GPU without values, for the time of the block. Its tensors are of no use behind it."""
    gpu = StandInGpu()
    with gpu._fakes, gpu:
        yield gpu


def peak_allocated(function: Callable[[], object]) -> int:
    """Most bytes of tensors alive at once that were made inside `function`."""
    gc.collect()  # a cycle of an earlier call would end inside
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    # torch remembers the sizes of blocks across profiles: the end of a block that began outside may be reported with
    # the size of another one that had its address. Only blocks that began inside count.
    made: dict[int, int] = {}
    alive = most = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        change, address = event["args"]["Bytes"], event["args"]["Addr"]
        if change > 0:
            made[address] = change
        else:
            change = -made.pop(address, 0)
        alive += change
        most = max(most, alive)
    return most

"""Peak memory and time of a submodel, measured in a process of its own. Tests compare the ledger with it.

    python -m benchmarks.measure < request.json

The child does what a device does: load the weights, stream the frozen prefix block by block into the feature cache,
train a few steps. Its peak is counted over its idle state: interpreter, torch, thread pool, and what the kernels keep
for good once they have run.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from cos2p.accelerator import CPU, peak_bytes, place, place_all, resolve, synchronize
from cos2p.costs.ledger import prefix_batch
from cos2p.costs.shape import Shape, Workload
from cos2p.errors import Cos2pError, TrainingError
from cos2p.messages import Precision
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.sizes import model_config
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.backward_step import recompute, stepping_in_backward
from cos2p.numerics.optimizers import make_optimizer
from cos2p.processes.children import CHILD_ENV, forget_peak, status_bytes
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import compact_shape, frozen_slices, trained_shapes, window_slices
from cos2p.training.losses import exits_loss
from cos2p.training.prefix import Features, PrefixFile, Store, prefix_features

Form = Literal["cut", "zeros"]
"""`cut`: the compact submodel. `zeros`: the whole model with everything outside the submodel masked by zeros."""


@dataclass(frozen=True)
class Measurement:
    peak_bytes: int
    """Highest resident memory over the idle state, in any phase."""
    phase_bytes: dict[str, int]
    """The same for `prefix` and for `weight` or `mask`."""
    idle_bytes: int
    seconds: float
    """Wall time of the fastest step after the first (which allocates)."""
    cpu_seconds: float
    """Processor time of the step with the least of it, summed over threads."""
    prefix_seconds: float
    """Wall time of the one pass through the frozen prefix."""


def measure(
    config: ModelConfig,
    spec: SubmodelSpec,
    workload: Workload,
    steps: int = 3,
    phase: Literal["mask", "weight"] = "weight",
    form: Form = "cut",
    threads: int = 0,
    accelerator: str = "cpu",
) -> Measurement:
    """Run a task of `steps` steps in a child process. In the mask phase `spec` names the candidates.

    `threads`: of torch in the child; 0 means as many as the workload says. `accelerator`: on which it computes; on a
    GPU the peak is that of its tensors.
    """
    request = {
        "config": config.to_dict(),
        "spec": spec.to_dict(),
        "workload": asdict(workload),
        "steps": steps,
        "phase": phase,
        "form": form,
        "accelerator": accelerator,
    }
    environment = os.environ | CHILD_ENV | {"OMP_NUM_THREADS": str(threads or workload.threads)}
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if child.returncode:
        reason = child.stderr.strip().splitlines()[-1:] or ["no message; killed for want of memory?"]
        raise TrainingError(f"the measuring process ended with code {child.returncode}: {reason[0]}")
    return Measurement(**json.loads(child.stdout.splitlines()[-1]))


# What runs in the child


def main() -> None:
    request = json.load(sys.stdin)
    config = ModelConfig.from_dict(request["config"])
    spec = SubmodelSpec.from_dict(request["spec"]).check(config)
    workload = Workload(**request["workload"])
    device = resolve(request["accelerator"])
    _warm_up(config, workload, device)
    task = _Task(config, spec, workload, request["phase"], request["form"], device)
    print(json.dumps(asdict(task.run(request["steps"]))))


def _warm_up(config: ModelConfig, workload: Workload, device: torch.device) -> None:
    """One-time costs, so that they are in the idle state: thread pool, code of the kernels, and the buffers they keep.

    A step of a single wide block, a step of the smallest model of the family, and a product as large as that of logits.
    """
    light = Workload(batch=2, recompute=workload.recompute)
    wide, family = model_config("vit-base", depth=1), model_config(f"{config.family}-nano", task=config.task)
    for warming in (wide, family):
        _Task(warming, SubmodelSpec.full(warming), light, "weight", "cut", device).run(1)
    features, table = torch.ones(512, 1024, requires_grad=True), torch.ones(8192, 1024, requires_grad=True)
    (features @ table.T).sum().backward()


class _Peak:
    """Highest resident memory of each phase over the state at the beginning, by the kernel's own counter."""

    def __init__(self, device: torch.device) -> None:
        if not Path("/proc/self/status").exists():
            raise Cos2pError("measuring memory needs Linux, which counts it in /proc/self/status")
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self.device = device
        self.idle = torch.cuda.memory_allocated(device) if device.type == "cuda" else status_bytes("VmRSS")
        self.phases: dict[str, int] = {}
        self._restart()

    def record(self, phase: str) -> None:
        most = peak_bytes(self.device) if self.device.type == "cuda" else status_bytes("VmHWM")
        self.phases[phase] = most - self.idle
        self._restart()

    def _restart(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            forget_peak()


_Batches = Iterator[tuple[Tensor, Tensor | None, Tensor]]


class _Task:
    """A device's task on random weights and data."""

    def __init__(
        self,
        config: ModelConfig,
        spec: SubmodelSpec,
        workload: Workload,
        phase: str,
        form: str,
        device: torch.device = CPU,
    ) -> None:
        self.config, self.workload, self.phase, self.form, self.device = config, workload, phase, form, device
        self.cut = spec
        self.spec = SubmodelSpec.full(config) if form == "zeros" else spec
        self.tokens = workload.length(config)
        self.rng = torch_rng(0, "measure")

    def run(self, steps: int) -> Measurement:
        peak = _Peak(self.device)
        held = self._load()
        started = time.perf_counter()
        cache = self._features(self.workload.shard) if self.spec.has_prefix else None
        synchronize(self.device)
        prefix_seconds = time.perf_counter() - started
        peak.record("prefix")
        step = self._mask_step(held) if self.phase == "mask" else self._weight_step(held)
        wall, cpu = [], []
        for _ in range(steps):
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            step(self._micro_batches(cache))
            synchronize(self.device)
            wall.append(time.perf_counter() - wall_start)
            cpu.append(time.process_time() - cpu_start)
        peak.record(self.phase)
        return Measurement(
            peak_bytes=max(peak.phases.values()),
            phase_bytes=peak.phases,
            idle_bytes=peak.idle,
            seconds=min(wall[1:] or wall),
            cpu_seconds=min(cpu[1:] or cpu),
            prefix_seconds=prefix_seconds,
        )

    def _random(self, *shape: int) -> Tensor:
        """Filled in place: the tensor is made once, as if it were read from a file."""
        return torch.empty(shape).normal_(std=0.02, generator=self.rng)

    def _part(self, start: str, without: str = "") -> Weights:
        """One part of the prefix: the embeddings or a block."""
        slices = frozen_slices(self.config, self.spec)
        return {
            name.removeprefix(start): self._random(*compact_shape(self.config, name, cut))
            for name, cut in slices.items()
            if name.startswith(start) and name != without
        }

    def _streamed_part(self, start: str) -> Weights:
        """The same as it is streamed. A token table stays in its file, of which rows are read: one stands for all."""
        part = self._part(start, without="embed.tokens")
        if start == "embed." and self.config.family != "vit":
            rows = self.config.vocab if self.spec.rows is None else len(self.spec.rows)
            part["tokens"] = torch.zeros(1, self.config.dim, dtype=torch.float16).expand(rows, -1)
        return part

    def _load(self) -> ElasticTransformer:
        weights = {name: self._random(*shape) for name, shape in trained_shapes(self.config, self.spec).items()}
        if self.config.task == "language-modeling" and "embed.tokens" not in weights:
            rows = self.config.vocab if self.spec.rows is None else len(self.spec.rows)
            weights["embed.tokens"] = self._random(rows, self.config.dim)
        model = ElasticTransformer(self.config, self.spec, rescale=self.workload.rescale)
        if self.phase == "weight" and self.workload.recompute:
            recompute(model.blocks[str(i)] for i in range(self.spec.frozen, self.spec.top))
        return model.load(place_all(weights, self.device)).train(self.phase == "weight")

    def _inputs(self, samples: int) -> Tensor:
        if self.config.family == "vit":
            return self._random(samples, self.config.channels, self.config.image, self.config.image)
        return self._ids(samples, self.tokens)

    def _labels(self, samples: int) -> Tensor:
        if self.config.task == "language-modeling":
            return self._ids(samples, self.tokens)
        return torch.randint(0, self.config.outputs, (samples,), generator=self.rng)

    def _ids(self, *shape: int) -> Tensor:
        """Tokens whose rows the device has."""
        if self.spec.rows is None:
            return torch.randint(1, self.config.vocab, shape, generator=self.rng)
        return torch.tensor(self.spec.rows)[torch.randint(len(self.spec.rows), shape, generator=self.rng)]

    def _features(self, samples: int) -> Features:
        """The shard behind the frozen prefix, block by block, as a device computes it."""
        precision: Precision = "float32" if self.workload.feature_bytes == 4 else "float16"
        store: Store = "disk" if self.workload.features == "disk" else "memory"
        batch = prefix_batch(self.config, Shape.of(self.config, self.spec), self.workload)
        prefix = _RandomPrefix(self._streamed_part, self.device)
        return prefix_features(self.config, self.spec, prefix, self._rows, samples, batch, store, precision)

    def _rows(self, rows: slice) -> Tensor:
        return self._inputs(rows.stop - rows.start)

    def _micro_batches(self, cache: Features | None) -> _Batches:
        """Inputs, features and labels of one step."""
        for rows in torch.arange(self.workload.batch).split(self.workload.micro):
            features = None if cache is None else cache[rows % self.workload.shard]
            inputs, labels = self._inputs(len(rows)), self._labels(len(rows))
            yield place(inputs, self.device), features, place(labels, self.device)

    def _weight_step(self, held: ElasticTransformer) -> Callable[[_Batches], None]:
        trainable: list[Tensor] = [p for p in held.parameters() if p.requires_grad]
        optimizer = self._optimizer(trainable)
        zeros = self._zero_masks(held) if self.form == "zeros" else {}
        lambda2 = 0.2 if self.workload.distill else 0.0

        def step(batches: _Batches) -> None:
            optimizer.zero_grad()
            if self.workload.step_in_backward:
                for inputs, features, labels in batches:
                    loss = exits_loss(held(inputs, features), held.targets(labels), lambda2)
                    with stepping_in_backward(optimizer):
                        loss.backward()
                return
            for inputs, features, labels in batches:
                exits_loss(held(inputs, features), held.targets(labels), lambda2).backward()
            for parameter, mask in zeros.items():
                if parameter.grad is not None:
                    parameter.grad.mul_(mask)
            optimizer.step()

        return step

    def _mask_step(self, held: ElasticTransformer) -> Callable[[_Batches], None]:
        held.requires_grad_(False)
        gates = {
            i: (self._gate(len(keep.heads)), self._gate(len(keep.units)))
            for i, keep in enumerate(self.spec.window, self.spec.frozen)
        }
        optimizer = self._optimizer([gate for pair in gates.values() for gate in pair])

        def step(batches: _Batches) -> None:
            optimizer.zero_grad()
            for inputs, features, labels in batches:
                exits_loss(held(inputs, features, gates)[-1:], held.targets(labels), 0.0).backward()
            optimizer.step()

        return step

    def _gate(self, segments: int) -> Tensor:
        return torch.ones(segments, device=self.device, requires_grad=True)

    def _optimizer(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        name, _, momentum = self.workload.optimizer.partition("+")
        return make_optimizer(name, parameters, lr=1e-4, **({"momentum": 0.9} if momentum else {}))

    def _zero_masks(self, held: ElasticTransformer) -> dict[nn.Parameter, Tensor]:
        """For every tensor of the whole model: true inside the submodel; outside it weights and gradients are zero."""
        slices = window_slices(self.config, self.cut)
        masks = {}
        for name, parameter in held.named_parameters():
            mask = torch.zeros(parameter.shape, dtype=torch.bool)
            if name in slices:
                cut = slices[name]
                mask = torch.ones_like(mask) if cut is None else mask.index_fill_(*cut, True)
            parameter.data.mul_(mask)
            masks[parameter] = mask
        return masks


class _RandomPrefix(PrefixFile):
    """A prefix file whose parts are made up when they are asked for."""

    def __init__(self, part: Callable[[str], Weights], device: torch.device) -> None:
        super().__init__({}, device=device)
        self._make = part

    def encoded(self, start: str) -> Weights:
        return {start + name: tensor for name, tensor in self._make(start).items()}


if __name__ == "__main__":
    main()

"""The training process of a device: a child of the executor, so that running out of memory kills nothing else.

    python -m cos2p.fleet.device.worker < requests > answers          one JSON object per line each

The first request says what the device is; the answer how many samples it has. Every further request is a task: a file
with the task, a file for the update, a file for what the device remembers. Payloads never pass the pipe.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import shutil
import sys
import time
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors import SafetensorError
from torch import Tensor

from cos2p import accelerator
from cos2p.accelerator import CPU, for_tensors, resolve
from cos2p.aggregation.privacy.clipping import as_it_leaves, fresh_draw
from cos2p.aggregation.settings import PrivacySettings
from cos2p.costs.fitting import make_spec
from cos2p.data import paths
from cos2p.data.examples import Examples, Normalize
from cos2p.errors import Cos2pError, TrainingError
from cos2p.fleet.device.cap import (
    bytes_asked,
    data_bytes,
    is_out_of_memory,
    mapped_bytes,
    own_bytes,
    peak_bytes,
    set_cap,
)
from cos2p.fleet.device.jobs import Job, Setup, outward
from cos2p.fleet.device.owner import OwnerFile, remembered_file
from cos2p.fleet.device.shards import dealt_shard, own_shard
from cos2p.fleet.device.task_check import PrivacyAccount, check_task, with_defaults
from cos2p.messages import Order, Task
from cos2p.messages.envelope import mapped
from cos2p.methods import Trainer, make_trainer, method_class, method_settings, run_task
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, init_weights
from cos2p.models.sizes import model_config
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.numerics.optimizers import leave_compiler_out
from cos2p.processes.children import die_with_parent, forget_peak
from cos2p.recipe import Recipe
from cos2p.runtime.own_models import own_facts
from cos2p.runtime.run_setup import private_settings
from cos2p.runtime.workers import pack_memory, unpack_memory
from cos2p.submodel.rates import cut
from cos2p.submodel.slicing import extract, extract_prefix, part_key
from cos2p.tracking.files import write_atomic
from cos2p.training.client_cache import CacheMiss, ClientCache, disk_limit, part_name
from cos2p.training.contract import as_it_travels
from cos2p.training.embeddings import token_rows
from cos2p.training.own_base import own_parts, table_rows
from cos2p.training.settings import LocalSettings, MaskPhase
from cos2p.training.shard import Shard


def main() -> None:
    answers = _claim_stdout()
    die_with_parent()
    leave_compiler_out()
    requests = map(json.loads, sys.stdin)
    device = _Device(Setup(**next(requests)))
    with _confined(device.setup):
        answers.write(json.dumps(device.prepare()) + "\n")
        answers.flush()
        for request in requests:
            answers.write(json.dumps(device.work(Job(**request))) + "\n")
            answers.flush()


def _confined(setup: Setup) -> AbstractContextManager[None]:
    """The recipe is a stranger's: its paths are followed in the device's folder alone, for the life of the process."""
    if setup.trust_paths and not setup.data:
        return nullcontext()
    return paths.confined_to(setup.data or setup.root or os.devnull)


class _Device:
    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config = ModelConfig.from_dict(setup.config)
        self.owner = OwnerFile.model_validate(setup.owner)
        self.device = CPU
        self.shard: Shard
        self.recipe: Recipe
        self.privacy: PrivacySettings
        self.account: PrivacyAccount | None = None
        """With local privacy."""
        self.idle = 0
        self.mapped = 0
        """Bytes of files in memory when the last task was done, and ..."""
        self.mapped_before = 0
        """... when it began."""

    def prepare(self) -> dict[str, Any]:
        """Load the data, warm up, and only then set the cap: it counts over the idle state, as the ledger does."""
        setup = self.setup
        if setup.threads:
            torch.set_num_threads(setup.threads)
        try:
            recipe = self.recipe = Recipe.parse(setup.recipe)
            self.owner.check_recipe(with_defaults(recipe))
            self.privacy = private_settings(recipe)
            if self.privacy.noise == "local":
                self.account = PrivacyAccount(Path(setup.kit), setup.run, self.privacy, self.owner)
                self.account.check()
            self.device = resolve(setup.accelerator)
            if setup.data:
                self.shard = own_shard(recipe, setup.data, setup.classes, self.config)
            else:
                self.shard = dealt_shard(recipe, setup.name)
        except Cos2pError as error:
            return {"unfit": str(error), "kind": type(error).__name__, "public": error.public}
        # Which tokens occur is no noise's to cover: a private run does not report it.
        rows = "" if self.privacy.on else token_rows(self.shard, recipe.embeddings, self.config.pad_token)
        base, no_base = self._own_base(rows) if setup.base else ({}, "")
        warm_up(self.device)
        self.idle = peak_bytes()
        limit = set_cap(setup.memory) if setup.memory and self.device.type == "cpu" else None
        return {
            "samples": len(self.shard.train),
            "test_samples": len(self.shard.test),
            "rows": rows,
            "texts": (0, 0) if self.privacy.on else self.shard.text_tokens,
            "base": base,
            "no_base": no_base,
            "idle": own_bytes(os.getpid()),
            "limit": limit,
            "device": self.device.type,
            # Tasks are cut to this: a GPU needs some of it besides the tensors.
            "memory": for_tensors(setup.memory, self.device) if setup.memory else 0,
        }

    def _own_base(self, rows: str) -> tuple[dict[str, str], str]:
        """Keep the parts of the checkpoint that the owner named as if they had been sent; their names, or why none."""
        setup, recipe = self.setup, self.recipe
        precision = method_class(str(recipe.method["name"])).frozen_precision(method_settings(recipe.method))
        cache = _client_cache_of(remembered_file(Path(setup.kit), setup.run), self.owner.spend.disk)
        kept: dict[str, str] = {}
        try:
            held = table_rows(self.config, recipe.embeddings, rows)
            for part in own_parts(Path(setup.base), self.config, precision, held):
                if cache.put(part):
                    kept[part_key(next(iter(part)))] = part_name(part)
        except (Cos2pError, OSError, SafetensorError) as error:
            return {}, str(error)
        return kept, "" if kept else "no room on its disk"

    def work(self, job: Job) -> dict[str, Any]:
        forget_peak()
        self.mapped = self.mapped_before = mapped_bytes()
        began, cpu = time.monotonic(), time.process_time()
        try:
            self._train(job)
        except Cos2pError as error:
            print(f"task failed: {error}", file=sys.stderr, flush=True)  # the device's own log
            return {"failed": outward(error), "cache_miss": isinstance(error, CacheMiss)}
        except (OSError, SafetensorError) as error:
            print(f"task failed: {error}", file=sys.stderr, flush=True)
            return {"failed": outward(OSError())}
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return {"out_of_memory": self._shortage(error)}
        wall, used = time.monotonic() - began, time.process_time() - cpu
        pause = max(0.0, self.setup.slowdown * used - wall) if self.setup.slowdown > 1 else 0.0
        time.sleep(pause)
        return {"done": {"seconds": wall + pause, "cpu_seconds": used, "peak": self._peak()}}

    def _peak(self) -> int:
        """Bytes over the idle state, without the pages of the task's file: they are the system's to take back. On a
        GPU those of its tensors."""
        if self.device.type == "cuda":
            return accelerator.peak_bytes(self.device)
        return max(0, peak_bytes() - self.idle - max(0, self.mapped - self.mapped_before))

    def _train(self, job: Job) -> None:
        remembered = Path(job.remembered)
        memory = unpack_memory(remembered.read_bytes() if remembered.exists() else b"")
        task = read_task(Path(job.task))
        self.owner.check_order(task.order.settings)
        check_task(task.order, self.setup.name, self.recipe, self.privacy, self.config)
        if self.account is not None:
            self.account.check()
        client_cache = _client_cache_of(remembered, self.owner.spend.disk)
        if not self._tries_rates:
            task = replace(task, order=replace(task.order, rates=()))
        trainer = make_trainer(self.config, task.order)
        with accelerator.capped(self.device, self.setup.memory):
            update, memory = trainer.run(task, self.shard, memory, client_cache, self.device)
        # The recipe's word, not the task's: a server that leaves it out of a task changes nothing.
        update = as_it_leaves(update, self.privacy, fresh_draw)
        update = update if self.setup.report else update.without_figures()
        self.mapped = mapped_bytes()  # now, while the task is still there
        self._keep_own(trainer, remembered.parent.parent / "own-models" / remembered.name)
        del trainer
        if self.account is not None:
            self.account.add()
        as_it_travels(update, task.order).write(Path(job.update))
        # Last, and whole: a device killed before this line has neither answered nor learned.
        write_atomic(remembered, pack_memory(memory))

    @property
    def _tries_rates(self) -> bool:
        """Whether it may report losses of rates: recipe, privacy and owner say so, whatever a task asks for."""
        asked = self.setup.recipe.get("training", {}).get("lr") == "auto"
        return asked and not self.privacy.on and self.owner.send.report != "none"

    def _keep_own(self, trainer: Trainer, file: Path) -> None:
        """The device's own submodel, for its owner. A task that is done does not fail by that."""
        limit = min(int(self.setup.recipe.get("run", {}).get("device_models", 0)), self.owner.spend.disk or 2**63)
        if not limit:
            return
        unfinished = file.with_suffix(".part")
        with suppress(OSError, RuntimeError, MemoryError, Cos2pError):
            file.parent.mkdir(exist_ok=True, mode=0o700)
            if trainer.keep_personal(unfinished, limit, own_facts(self.setup.recipe, self.setup.classes)):
                unfinished.chmod(0o600)  # it was trained on what is nobody else's, as all of the kit
                unfinished.replace(file)

    def _shortage(self, error: BaseException) -> dict[str, Any]:
        if self.device.type == "cuda":
            peak, cap = self._peak(), self.setup.memory
            return {"memory": cap, "peak": peak, "asked": bytes_asked(error), "left": max(0, cap - peak)}
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        self.mapped = mapped_bytes()  # what the error was raised in still holds the task
        return {
            "memory": self.setup.memory,
            "peak": self._peak(),
            "asked": bytes_asked(error),
            "left": max(0, limit - data_bytes()) if limit != resource.RLIM_INFINITY else None,
        }


def _client_cache_of(remembered: Path, disk: int) -> ClientCache:
    """The run's cache, next to what is remembered of it. Those of other runs are of no use any more."""
    own = remembered.with_suffix(".cache")
    for other in remembered.parent.glob("*.cache"):
        if other != own:
            shutil.rmtree(other, ignore_errors=True)
    return ClientCache(own, disk_limit(own, disk))


def warm_up(device: torch.device) -> None:
    """One task of a small model through all phases: modules that are loaded late, thread pools and what kernels keep
    for good belong to the idle state."""
    config = model_config("vit-nano", image=8, patch=4, channels=1, classes=2)
    spec = replace(make_spec(config, 0.1, start=1), window=(BlockKeep.full(config),) * cut(config, 0.1).blocks)
    weights = init_weights(config, 0)
    settings = LocalSettings(epochs=1, batch=4, mask=MaskPhase(epochs=1))
    order = Order(
        "",
        "",
        0,
        0,
        0,
        0,
        "submodel",
        settings.model_dump(mode="json"),
        1e-3,
        spec,
        (BlockSize(1, 1),) * len(spec.window),
    )
    examples = Examples(torch.zeros(8, 1, 8, 8), torch.arange(8) % 2, ("0", "1"))
    task = Task(order, extract(weights, config, spec), extract_prefix(weights, config, spec))
    update, _ = run_task(config, task, Shard(examples, examples, Normalize()), {}, device=device)
    update.to_bytes()


def _claim_stdout() -> TextIO:
    """The answers' own stream; whatever a library prints goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


# ---------------------------------------------------------------- the task's file


_TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}


def read_task(path: Path) -> Task:
    """The task in a safetensors file: trainable tensors in memory, those of the prefix mapped.

    Candidates of a mask phase are mapped too: when it is over a part of them trains, and all of them next to that part
    would be more than the budget has. So are weights that came in fewer bits, from which others are made.
    """
    with mapped(path, mmap.ACCESS_READ) as data:
        size = int.from_bytes(data[:8], "little")
        try:
            header = json.loads(data[8 : 8 + size])
            meta = json.loads(header.pop("__metadata__")["cos2p"])
        except (ValueError, KeyError, TypeError) as error:
            raise TrainingError(f"the task that came cannot be read: {error!r}") from None
    view = mapped(path, mmap.ACCESS_READ)
    order, parts = Order.from_dict(meta), dict[str, Weights](w={}, p={})
    for key, entry in header.items():
        label, _, name = key.partition("/")
        tensor = _tensor(view, 8 + size, entry)
        stays = label == "p" or order.quotas is not None or order.wire.down != "float32"
        parts[label][name] = tensor if stays else tensor.clone()
    return Task(order, weights=parts["w"], prefix=parts["p"])


def _tensor(view: mmap.mmap, start: int, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    dtype = _TYPES[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that nobody must write here; nobody does
        flat = torch.frombuffer(view, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=start + begin)
    return flat.view(entry["shape"])


if __name__ == "__main__":
    main()

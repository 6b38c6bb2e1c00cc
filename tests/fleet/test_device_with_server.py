"""A device's training, as its process does it, and the fleet's server: what each says the other understands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from cos2p.fleet.device.jobs import Job, Setup
from cos2p.fleet.device.worker import _Device
from cos2p.fleet.server.inbox import Answered
from cos2p.messages import Task
from tests.fleet.bench import Bench
from tests.fleet.lab import small_recipe


class Kit:
    """A device's files, and a training process that may be another one every time."""

    def __init__(self, folder: Path, bench: Bench) -> None:
        self.folder, self.bench = folder, bench
        self.restart()

    def restart(self) -> None:
        run_setup = self.bench.run_setup
        setup = Setup(
            name="dev-1",
            recipe=run_setup.recipe.model_dump(mode="json"),
            config=run_setup.config.to_dict(),
            classes=[],
            trust_paths=True,
        )
        self.device = _Device(setup)
        self.device.prepare()

    def work(self, task: Task) -> dict[str, Any]:
        job = Job(*(str(self.folder / name) for name in ("task", "update", "remembered")))
        Path(job.task).write_bytes(task.to_bytes())
        return self.device.work(job)

    def answer(self, task: Task) -> None:
        """Do it, and tell the server how it went."""
        outcome, name = self.work(task), task.order.task
        self.bench.take_offer("dev-1")
        if "done" in outcome:
            notice = self.bench.push("dev-1", name, (self.folder / "update").read_bytes())
            self.bench.driver.answered(Answered("dev-1", name, notice))
        else:
            self.bench.driver.answered(
                Answered("dev-1", name, None, outcome["failed"], cache_miss=outcome["cache_miss"])
            )

    def until_it_counts_on_parts(self) -> Task:
        """Answer until a task comes without parts that the device has."""
        while True:
            task = self.bench.fetch("dev-1")
            if task.order.cached is not None and task.order.cached.held:
                return task
            self.answer(task)


@pytest.mark.slow  # 2 s
def test_parts_outlive_the_process_and_a_damaged_one_is_fetched_again(tmp_path: Path) -> None:
    method = {"name": "cos2p", "window": {"schedule": "top"}}
    recipe = small_recipe(1, rounds=40, method=method, schedule__t_clk=0.0)
    bench = Bench(tmp_path, recipe)
    bench.start()
    bench.join("dev-1")
    kit = Kit(tmp_path, bench)
    task = kit.until_it_counts_on_parts()
    kit.restart()
    kit.answer(task)
    bench.wait(lambda: bench.events("merged", "dev-1")[-1]["task"] == task.order.task)  # with parts of before

    task = kit.until_it_counts_on_parts()
    assert task.order.cached is not None
    key = sorted(task.order.cached.held)[0]
    kept = tmp_path / "remembered.cache" / f"{task.order.cached.parts[key]}.part"
    for features in kept.parent.glob("*-*.part"):  # with them nobody would look at the part
        features.unlink()
    damaged = bytearray(kept.read_bytes())
    damaged[-1] ^= 1
    kept.write_bytes(damaged)
    kit.answer(task)
    bench.wait(lambda: bench.events("failed", "dev-1"))
    again = bench.fetch("dev-1")
    assert again.order.cached is not None
    assert not again.order.cached.held  # all of it comes
    assert not kept.exists()
    kit.answer(again)
    bench.wait(lambda: bench.events("merged", "dev-1")[-1]["task"] == again.order.task)
    bench.stop()


@pytest.mark.slow  # 2 s
def test_what_trains_travels_in_fewer_bits(tmp_path: Path) -> None:
    recipe = small_recipe(1, rounds=2, training__wire={"down": "float16", "up": "int8"}, schedule__t_clk=0.0)
    bench = Bench(tmp_path, recipe)
    bench.start()
    bench.join("dev-1")
    kit = Kit(tmp_path, bench)
    for _ in range(2):  # with masks to train and without: of candidates a part is unpacked
        task = bench.fetch("dev-1")
        assert {tensor.dtype for tensor in task.weights.values()} == {torch.float16, torch.float32}
        kit.answer(task)
        sent = safetensors.torch.load_file(tmp_path / "update")
        assert torch.int8 in {tensor.dtype for tensor in sent.values()}
        bench.wait(lambda task=task: task.order.task in {event["task"] for event in bench.events("merged")})
    bench.wait(lambda: bench.events("finished"))
    bench.stop()

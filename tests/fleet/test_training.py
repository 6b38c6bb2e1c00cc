"""The training process with a real cap and real kills. No network. About 20 s on an idle core."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cos2p.accelerator import overhead, resolve
from cos2p.aggregation.privacy.account import multiplier_for
from cos2p.aggregation.settings import PrivacySettings
from cos2p.costs.fitting import make_spec
from cos2p.errors import DataError, OwnerRefused
from cos2p.fleet.device.cap import SLACK_BYTES, bytes_asked
from cos2p.fleet.device.jobs import Job, Setup
from cos2p.fleet.device.owner import Accept, OwnerFile
from cos2p.fleet.device.training import TrainingProcess
from cos2p.fleet.device.worker import read_task
from cos2p.messages import Order, Task, Update
from cos2p.methods import Call, build_method, make_contract, run_task
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.runtime.workers import unpack_memory
from cos2p.submodel.slicing import extract, extract_prefix
from cos2p.training.prefix import encode
from tests.fleet.lab import small_recipe
from tests.tiny import read_update

pytestmark = pytest.mark.fleet

MB = 10**6


def wide_recipe() -> Recipe:
    """A model of which the whole needs some hundred megabytes in training, on a handful of samples."""
    return small_recipe(1, model__dim=320, model__mlp=1280, data__train_samples=16)


class Transfers:
    """A device's files and its training process."""

    def __init__(self, folder: Path, recipe: Recipe, **setup: object) -> None:
        self.folder, self.run_setup = folder, build_run_setup(recipe)
        own = {"name": "dev-1", "recipe": recipe.model_dump(mode="json"), "config": self.run_setup.config.to_dict()}
        values = own | {"classes": list(self.run_setup.bundle.class_names), "threads": 1} | setup
        self.process = TrainingProcess(
            Setup(**values),  # type: ignore[arg-type]
            folder / "training.log",
        )

    def job(self, rate: float, start: int = 0) -> tuple[Job, Order]:
        task = make_task(self.run_setup, rate, start)
        (self.folder / "task").write_bytes(task.to_bytes())
        return Job(*(str(self.folder / name) for name in ("task", "update", "remembered"))), task.order

    @property
    def update(self) -> Update:
        return read_update((self.folder / "update").read_bytes())


def make_task(run_setup: RunSetup, rate: float, start: int = 0) -> Task:
    member = run_setup.context.members["dev-1"]
    spec, weights = make_spec(run_setup.config, rate, start), first_weights(run_setup.recipe, run_setup.config)
    settings = run_setup.context.local(member).model_dump(mode="json")
    order = Order("dev-1", "dev-1#0", 0, 0, 0, 0, "submodel", settings, 1e-3, spec, prefix_precision="float16")
    prefix = encode(extract_prefix(weights, run_setup.config, spec), "float16")
    return Task(order, extract(weights, run_setup.config, spec), prefix)


def test_a_mapped_task_is_the_task(tmp_path: Path) -> None:
    task = make_task(build_run_setup(small_recipe(1)), 0.25, start=2)
    (tmp_path / "task").write_bytes(task.to_bytes())
    read = read_task(tmp_path / "task")
    assert read.order == task.order
    for part in ("weights", "prefix"):
        ours, theirs = getattr(read, part), getattr(task, part)
        assert ours.keys() == theirs.keys()
        assert all(bool((ours[name] == theirs[name]).all()) for name in ours)
    (tmp_path / "task").unlink()  # what is mapped stays readable
    assert all(tensor.isfinite().all() for tensor in read.prefix.values())


def test_it_trains_what_the_simulator_trains_and_remembers(tmp_path: Path) -> None:
    transfers = Transfers(tmp_path, small_recipe(1))
    try:
        found = transfers.process.start()
        assert (found["samples"], found["test_samples"]) == tuple(
            len(part) for part in (transfers.run_setup.shards["dev-1"].train, transfers.run_setup.shards["dev-1"].test)
        )
        job, _ = transfers.job(0.25, start=2)
        outcome = transfers.process.train(job)
        assert not outcome.failure
        assert outcome.numbers["seconds"] > 0
        expected, _ = run_task(
            transfers.run_setup.config, make_task(transfers.run_setup, 0.25, 2), transfers.run_setup.shards["dev-1"], {}
        )
        assert transfers.update.delta.keys() == expected.delta.keys()
        assert all(transfers.update.delta[n].allclose(expected.delta[n], atol=1e-6) for n in expected.delta)
        assert unpack_memory((tmp_path / "remembered").read_bytes()) == {}
        pid = transfers.process.pid
        assert not transfers.process.train(job).failure
        assert transfers.process.pid == pid  # warm: the same process does the next task
        its_process_is_killed(transfers, job)
    finally:
        transfers.process.stop()


def test_it_trains_a_method_of_an_installed_package_that_its_owner_accepts(tmp_path: Path) -> None:
    recipe = small_recipe(1, method={"name": "fedpm"})
    owner = OwnerFile(accept=Accept(methods=("fedpm",)))
    owner.check_recipe(recipe.model_dump(mode="json"))
    with pytest.raises(OwnerRefused, match=r"method\.name = 'prunefl' is not accepted"):
        owner.check_recipe({"method": {"name": "prunefl"}})
    transfers = Transfers(tmp_path, recipe, owner=owner.model_dump(mode="json"))
    run_setup, weights = transfers.run_setup, first_weights(recipe, transfers.run_setup.config)
    method = build_method(recipe.method, run_setup.context)
    given = method.initial_weights(weights)
    asked = method.assign(Call(run_setup.context.members["dev-1"], 0, 0, 0, given))
    settings = asked.settings.model_dump(mode="json")
    order = Order("dev-1", "dev-1#0", 0, 0, 0, 0, asked.trainer.name, settings, 1e-3, asked.spec)
    task = Task(order, make_contract(run_setup.config, order).sent(given))
    (tmp_path / "task").write_bytes(task.to_bytes())
    try:
        transfers.process.start()
        assert not transfers.process.train(
            Job(*(str(tmp_path / name) for name in ("task", "update", "remembered")))
        ).failure
        expected, _ = run_task(run_setup.config, task, run_setup.shards["dev-1"], {})
        assert (transfers.update.extras["mask"] == expected.extras["mask"]).all()
    finally:
        transfers.process.stop()


def its_process_is_killed(transfers: Transfers, job: Job) -> None:
    """Told with the signal, and replaced for the next task."""
    pid = transfers.process.pid
    assert pid is not None
    victim = psutil.Process(pid)
    victim.suspend()  # so that it cannot be done before it is killed
    threading.Timer(0.5, victim.kill).start()
    outcome = transfers.process.train(job)
    assert outcome.failure
    assert not outcome.out_of_memory
    assert "killed by signal 9 (SIGKILL)" in outcome.failure
    assert not transfers.process.train(job).failure
    assert transfers.process.pid != pid


def test_the_system_keeps_the_cap_and_the_ledger_says_what_fits(tmp_path: Path) -> None:
    recipe = wide_recipe()
    run_setup = build_run_setup(recipe)
    whole = make_contract(run_setup.config, make_task(run_setup, 1.0).order).memory(12).total
    cap = whole // 3
    transfers = Transfers(tmp_path, recipe, memory=cap)
    try:
        transfers.process.start()
        job, _ = transfers.job(1.0)
        outcome = transfers.process.train(job)
        assert outcome.failure
        assert outcome.out_of_memory
        assert outcome.numbers["memory"] == cap
        assert 0 < outcome.numbers["peak"] < cap + 1.25 * SLACK_BYTES
        assert "out of memory: the cap is" in outcome.failure
        assert not (tmp_path / "update").exists()
        rate = next(
            rate
            for rate in (0.5625, 0.25, 0.0625)
            if make_contract(run_setup.config, make_task(run_setup, rate, 0).order).memory(12).total <= cap
        )
        smaller, order = transfers.job(
            rate, start=run_setup.config.depth - len(make_task(run_setup, rate).order.spec.window)
        )
        outcome = transfers.process.train(smaller)
        assert not outcome.failure
        assert outcome.numbers["peak"] <= make_contract(run_setup.config, order).memory(12).total + SLACK_BYTES
    finally:
        transfers.process.stop()


def test_one_task_after_the_other_keeps_the_cap(tmp_path: Path) -> None:
    """Windows at every height, in one process: what a task leaves behind must not count against the next."""
    recipe = wide_recipe()
    orders = [make_task(build_run_setup(recipe), 0.375, start).order for start in (0, 1, 2)]
    cap = max(make_contract(build_run_setup(recipe).config, order).memory(12).total for order in orders)
    transfers = Transfers(tmp_path, recipe, memory=cap)
    try:
        transfers.process.start()
        pid = transfers.process.pid
        for start in (0, 1, 2, 0, 1, 2):
            job, _ = transfers.job(0.375, start)
            outcome = transfers.process.train(job)
            assert not outcome.failure
            assert outcome.numbers["peak"] <= cap + SLACK_BYTES // 2
        assert transfers.process.pid == pid
    finally:
        transfers.process.stop()


def test_the_first_task_with_torchs_own_optimiser_keeps_the_ledger(tmp_path: Path) -> None:
    """Whose step imports tens of megabytes if it may; few samples at a time, so that nothing hides behind them."""
    recipe = small_recipe(
        1,
        model__dim=320,
        model__mlp=1280,
        data__train_samples=16,
        training__optimizer="adamw",
        training__memory_optimizations={"micro_batch": 2},
    )
    transfers = Transfers(tmp_path, recipe)
    try:
        transfers.process.start()
        for start in (2, 0):
            job, order = transfers.job(0.1, start)
            outcome = transfers.process.train(job)
            assert not outcome.failure
            assert outcome.numbers["peak"] <= make_contract(transfers.run_setup.config, order).memory(12).total
    finally:
        transfers.process.stop()


@pytest.mark.gpu
def test_a_gpu_keeps_the_cap_and_what_fits_trains(tmp_path: Path) -> None:
    gpu, recipe = resolve("cuda"), wide_recipe()
    run_setup = build_run_setup(recipe)
    whole = make_contract(run_setup.config, make_task(run_setup, 1.0).order).memory(12).total
    for cap, fits in ((whole // 3 + overhead(gpu), False), (whole + overhead(gpu), True)):
        transfers = Transfers(tmp_path, recipe, memory=cap, accelerator="cuda")
        try:
            assert transfers.process.start()["memory"] == cap - overhead(gpu)
            outcome = transfers.process.train(transfers.job(1.0)[0])
            assert (not outcome.failure, outcome.out_of_memory) == (fits, not fits), outcome.failure
            assert 0 < outcome.numbers["peak"] <= cap
        finally:
            transfers.process.stop()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes.", 4096),
        ("CUDA out of memory. Tried to allocate 20.50 MiB. GPU 0 has a total capacity of 8 GiB", 21_495_808),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", 2**31),
        ("no number", None),
    ],
)
def test_what_was_asked_for_is_read_from_the_error(text: str, count: int | None) -> None:
    assert bytes_asked(RuntimeError(text)) == count


def test_whoever_is_over_the_cap_is_killed_where_the_system_has_none(tmp_path: Path) -> None:
    """The parent's watch: the second line of defence, and the only one outside Linux."""
    transfers = Transfers(tmp_path, wide_recipe())
    try:
        transfers.process.start()
        transfers.process.setup = Setup(
            **(transfers.process.setup.to_dict() | {"memory": 10 * MB})
        )  # the child knows of no cap
        job, _ = transfers.job(1.0)
        outcome = transfers.process.train(job)
        assert outcome.failure
        assert outcome.out_of_memory
        assert outcome.numbers["peak"] > 10 * MB
        assert "killed" in outcome.failure
    finally:
        transfers.process.stop()


def test_data_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    transfers = Transfers(tmp_path, small_recipe(1), data=str(tmp_path / "nowhere"))
    elsewhere = small_recipe(1, data__source="folder", data__path="x").model_dump(mode="json")
    transfers.process.setup = Setup(**(transfers.process.setup.to_dict() | {"recipe": elsewhere}))
    with pytest.raises(DataError, match="nowhere"):
        transfers.process.start()


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cos2p.fleet.device.worker"]
    code = (
        f"import subprocess, time; p = subprocess.Popen({command!r}, stdin=subprocess.PIPE); print(p.pid, flush=True)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code + "; time.sleep(600)"], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    child.wait(timeout=60)


@pytest.mark.parametrize(
    ("lr", "owner", "tries"),
    [("auto", {}, True), ("auto", {"send": {"report": "none"}}, False), (1e-3, {}, False)],
    ids=["asked", "the owner reports nothing", "the recipe does not ask"],
)
def test_rates_are_tried_where_recipe_and_owner_say_so(
    tmp_path: Path, lr: object, owner: dict[str, object], tries: bool
) -> None:
    """Reports are off by default: what comes back is the losses alone, and only of a run that searches its rate."""
    transfers = Transfers(tmp_path, small_recipe(1, training__lr=lr), owner=owner)
    try:
        transfers.process.start()
        task = make_task(transfers.run_setup, 0.25)
        asked = replace(task, order=replace(task.order, rates=(1e-4, 1e-3)))
        job, _ = transfers.job(0.25)
        (tmp_path / "task").write_bytes(asked.to_bytes())
        assert not transfers.process.train(job).failure
        assert sorted(transfers.update.report) == (["trial_0", "trial_1"] if tries else [])
    finally:
        transfers.process.stop()


def test_local_privacy_is_the_devices_own(tmp_path: Path) -> None:
    """A server that never counts: the device answers as often as its budget allows, with a new process too."""
    pytest.importorskip("dp_accounting")
    method = {"name": "cos2p", "weighting": "uniform", "masks": {"heads": "fixed", "units": "fixed"}}
    private = PrivacySettings(noise="local", epsilon=2.0, multiplier=multiplier_for(2.0, 1e-5, 2))
    recipe = small_recipe(1, method=method).model_copy(update={"privacy": private})
    transfers = Transfers(tmp_path, recipe, kit=str(tmp_path), run="lab-1")
    job, order = transfers.job(0.25)
    try:
        assert not transfers.process.train(job).failure
        transfers.process.stop()
        assert not transfers.process.train(job).failure
        (tmp_path / "update").unlink()
        third = transfers.process.train(job)
        assert third.failure
        assert "one more update is too much" in third.failure
        assert not (tmp_path / "update").exists()
        statistics = replace(order, trainer="statistics", settings={**order.settings, "depths": [4]})
        task = make_task(transfers.run_setup, 0.25)
        (tmp_path / "task").write_bytes(replace(task, order=statistics).to_bytes())
        assert "statistics of the device's features, in a task" in transfers.process.train(job).failure
        transfers.process.stop()
        with pytest.raises(OwnerRefused, match="too much"):  # a device that joins again
            transfers.process.start()
    finally:
        transfers.process.stop()

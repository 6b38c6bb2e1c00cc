"""Workers on a Ray cluster of several nodes, all on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cos2p.errors import ConfigError
from cos2p.processes.pool import WorkerDied
from cos2p.processes.ray_pool import RayPool
from cos2p.runtime.run_folder import WALL_CLOCK_FIELDS
from cos2p.runtime.simulation import run
from tests.runtime.small import small

pytest.importorskip("ray", reason="Ray is not installed: pip install 'cos2p[ray]'")
pytestmark = pytest.mark.slow  # nodes are processes of their own: 60 s, also on a busy core


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without processors, and two nodes that can die."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # its habit is 15, with which a busy machine lets them starve
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd() / "src"), str(Path.cwd())]))
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes.add_node(num_cpus=1)
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


_started = ""


def _start(name: str) -> None:
    global _started
    _started = name


def _add(a: int, b: int) -> tuple[str, int]:
    return _started, a + b


def _fail() -> None:
    raise ValueError("no good")


def _node_after(seconds: float) -> str:
    import ray

    time.sleep(seconds)
    return str(ray.get_runtime_context().get_node_id())


def _die() -> None:
    os._exit(3)


def test_jobs_their_errors_and_their_deaths(cluster: Any) -> None:
    pool = RayPool(cluster.address, 0, _start, "ready")
    try:
        assert pool.count == 2
        assert pool.submit(_add, 2, 3).result() == ("ready", 5)
        with pytest.raises(ValueError, match="no good"):
            pool.submit(_fail).result()
        with pytest.raises(WorkerDied, match="died of it"):
            pool.submit(_die).result()
        assert pool.submit(_add, 1, 1).result() == ("ready", 2)
        # More jobs than processors; a node dies in the middle, and the other does its jobs too: nobody waits for a
        # worker that has no room any more.
        jobs = [pool.submit(_node_after, 2.0) for _ in range(4)]
        time.sleep(3.0)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        assert len([job.result() for job in jobs]) == 4
        assert len({pool.submit(_node_after, 0.0).result() for _ in range(3)}) == 1
    finally:
        pool.close()


def figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in WALL_CLOCK_FIELDS}


def test_a_run_is_the_same_bit_for_bit_though_a_node_dies(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    recipe = small(schedule={"rounds": 3})
    here = run(recipe, tmp_path / "here")
    killed: list[int] = []

    def kill_one(event: Any) -> None:
        if event.kind == "aggregated" and not killed:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            killed.append(1)

    there = run(
        small(schedule={"rounds": 3}, run={"engine": "ray", "workers": 2}),
        tmp_path / "there",
        listener=kill_one,
    )
    assert killed
    assert figures(here) == figures(there)
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("here", "there")]
    assert weights[0] == weights[1]


def _gpus() -> list[Any]:
    import ray

    return list(ray.get_gpu_ids())


def test_a_worker_gets_a_gpu_where_one_is_wanted(cluster: Any) -> None:
    """A node may say that it has one; whether it does is not Ray's business."""
    with pytest.raises(ConfigError, match="no machine of the cluster has reported a GPU"):
        RayPool(cluster.address, 1, _start, "never", gpus="needed")
    cluster.add_node(num_cpus=1, num_gpus=1)
    cluster.wait_for_nodes()
    for wish, found in (("needed", 1), ("none", 0)):
        pool = RayPool(cluster.address, 1, _start, "ready", gpus=wish)  # type: ignore[arg-type]
        try:
            assert len(pool.submit(_gpus).result()) == found
        finally:
            pool.close()


def test_no_cluster_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"no Ray cluster answers.*ray start --head"):
        RayPool("127.0.0.1:1", 1, _start, "never")

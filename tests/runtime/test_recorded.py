"""Runs of before are runs of today: two rounds on digits give the figures and the weights that were recorded.

Kernels round differently on other processors. So the record says what a probe of the same operations gave where it was
taken; where the probe comes out otherwise, bits cannot be compared, and the test is skipped with that reason.

    python -m tests.runtime.test_recorded        records anew, after a change that is meant to change results
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cos2p.recipe import Recipe
from cos2p.runtime.run_folder import WALL_CLOCK_FIELDS
from cos2p.runtime.simulation import run
from cos2p.seeding import torch_rng

RECORD = Path(__file__).parent / "recorded" / "digits.json"
METHODS: dict[str, dict[str, Any]] = {
    "cos2p": {"masks": {"rounds": 1, "epochs": 1, "lr": 0.05}},
    "fedavg-platon": {},
    "fedbuff": {},
    "heterofl": {},
}


def recipe(method: str, workers: int) -> Recipe:
    values = Recipe.load("quickstart").model_dump(mode="json")
    values["method"] = {"name": method, **METHODS[method]}
    values["model"]["depth"] = 4
    values["schedule"]["rounds"] = 2
    values["data"] |= {"train_samples": 500, "test_samples": 100}
    values["training"]["epochs"] = 1
    values["run"]["workers"] = workers
    return Recipe.parse(values)


def outcome(method: str, folder: Path, workers: int = 1) -> dict[str, Any]:
    result = run(recipe(method, workers), folder)
    weights = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
    return {"result": {k: v for k, v in result.items() if k not in WALL_CLOCK_FIELDS}, "weights": weights}


def probe() -> str:
    """What a few of the model's operations give here, forward and backward, to the last bit."""
    rng, threads = torch_rng(0, "probe"), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x = torch.randn(32, 17, 64, generator=rng, requires_grad=True)
        w = torch.randn(256, 64, generator=rng, requires_grad=True)
        y = F.gelu(F.linear(F.layer_norm(x, (64,)), w))
        z = F.scaled_dot_product_attention(*(y[..., i * 64 : (i + 1) * 64].unflatten(-1, (8, 8)) for i in range(3)))
        (z.square().sum() + F.cross_entropy(y[:, 0, :10], torch.arange(32) % 10)).backward()
        assert x.grad is not None
        assert w.grad is not None
        parts = (y.detach(), z.detach(), x.grad, w.grad)
        return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_is_the_recorded_one(method: str, tmp_path: Path) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    here = {"probe": probe(), "torch": torch.__version__}
    if here != record["where"]:
        pytest.skip("this processor or torch rounds otherwise than where the record was taken")
    assert outcome(method, tmp_path / method, workers=2 if method == "cos2p" else 1) == record["runs"][method]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        runs = {method: outcome(method, Path(place) / method) for method in METHODS}
    where = {"probe": probe(), "torch": torch.__version__}
    RECORD.write_text(json.dumps({"where": where, "runs": runs}, indent=1, sort_keys=True) + "\n", encoding="utf-8")

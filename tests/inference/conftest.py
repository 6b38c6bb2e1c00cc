from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cos2p.runtime.run_setup import build_run_setup
from cos2p.runtime.simulation import run
from tests.runtime.small import small


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four devices that is over."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(small(schedule={"rounds": 3}, training={"epochs": 3, "lr": 4e-3}), folder)
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's test samples as files: CLASS/NUMBER.png."""
    folder, test = tmp_path_factory.mktemp("pictures"), build_run_setup(small()).bundle.test
    for number, (image, label) in enumerate(zip(test.inputs[:], test.labels.tolist(), strict=True)):
        place = folder / str(label)
        place.mkdir(exist_ok=True)
        Image.fromarray(np.asarray(image[0])).save(place / f"{number}.png")
    return folder


@pytest.fixture(scope="session")
def small_pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """In the size of a small model, larger, not square; grey and in colour."""
    folder, rng = tmp_path_factory.mktemp("small"), np.random.default_rng(0)
    for number, shape in enumerate(((8, 8), (8, 8, 3), (16, 16), (12, 20), (31, 10, 3))):
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return sorted(map(str, folder.iterdir()))

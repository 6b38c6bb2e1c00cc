from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# No deadlines: the first example of a property pays for torch's warm-up, and the tests share their cores.
# The same examples in every run: a red suite is red for everybody, not once in a while for one.
settings.register_profile("cos2p", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("cos2p")

# As a worker has it: sums depend on the number of threads in their last bit, on some processors even for small tensors,
# and a test that trains in its own process does so within a run's loop (one thread) and outside it.
torch.set_num_threads(1)

_REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no CUDA GPU on this machine; make test-gpu where there is one")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor fill the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with real data sets and weights: $COS2P_DATA, or shared/data next to the checkout."""
    folder = Path(os.environ.get("COS2P_DATA") or _REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; set COS2P_DATA to the folder that holds it")
    return folder

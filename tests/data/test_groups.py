from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.data import DataConfig, load
from cos2p.data.partition import partition, sizes_by_weight
from cos2p.data.select import Groups


@given(st.lists(st.text(alphabet="abß", max_size=2), min_size=1, max_size=20), st.data())
def test_groups_read_like_their_names(names: list[str], data: st.DataObject) -> None:
    groups = Groups.of(names)
    assert list(groups) == names
    assert [groups[i] for i in range(len(groups))] == names
    assert groups.names == tuple(sorted(set(names)))
    rows = data.draw(st.lists(st.integers(0, len(names) - 1)))
    assert list(groups.subset(np.asarray(rows, dtype=np.int64))) == [names[i] for i in rows]
    assert Groups.of(groups) is groups


def test_thousands_of_owners_are_dealt_in_a_moment() -> None:
    """200,000 samples of 5,000 writers to 2,000 devices; every writer whole, on one device. Limit 20 times the time."""
    writers = np.random.default_rng(0).integers(0, 5000, 200_000)
    groups = Groups.of([f"writer {i}" for i in writers])
    started = time.process_time()
    parts = partition(np.zeros(200_000, dtype=np.int64), sizes_by_weight(200_000, [1] * 2000), "natural", groups=groups)
    own = [groups.subset(part) for part in parts]
    assert time.process_time() - started < 5
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(200_000))
    owners = np.concatenate([np.full(len(np.unique(g.codes)), i) for i, g in enumerate(own)])
    assert len(owners) == 5000
    assert len(np.unique(owners)) == 2000


@pytest.mark.parametrize(
    ("config", "owners"),
    [
        (DataConfig(source="csv", path="shakespeare", train="by_role.csv.gz", text_column="text", group_column="role",
                    task="language-modeling", max_tokens=80), 200),
        (DataConfig(source="parquet", path="omniglot", train="images.parquet", group_column="client", image_size=28,
                    train_samples=3000, test_samples=100), 40),
    ],
    ids=["shakespeare", "omniglot"],
)  # fmt: skip
def test_real_owners(shared_data: Path, config: DataConfig, owners: int) -> None:
    train = load(config, seed=0).train
    assert train.groups is not None
    assert len(np.unique(train.groups.codes)) >= owners
    parts = partition(train.strata(), sizes_by_weight(len(train), [1] * owners), "natural", groups=train.groups)
    seen = [set(train.subset(part).groups or ()) for part in parts]
    assert sum(len(own) for own in seen) == len(set.union(*seen))  # nobody's samples are on two devices

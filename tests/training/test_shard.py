from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.seeding import torch_rng
from cos2p.training.shard import READY_BYTES, shuffled, steps
from tests.tiny import VIT, shard

counts = st.integers(1, 40)


@given(counts, counts, st.integers(1, 4))
def test_every_epoch_sees_every_sample_once(samples: int, batch: int, epochs: int) -> None:
    batches = list(shuffled(samples, batch, epochs, torch_rng(0, "test")))
    assert len(batches) == steps(samples, batch, epochs)
    assert all(1 <= len(rows) <= batch for rows in batches)
    rows = torch.cat(batches).view(epochs, samples)
    assert torch.equal(rows.sort(1).values, torch.arange(samples).expand(epochs, -1))


def test_every_epoch_has_an_order_of_its_own_and_a_seed_repeats_them() -> None:
    first, second = torch.cat(list(shuffled(30, 7, 2, torch_rng(1, "test")))).view(2, 30)
    assert not torch.equal(first, second)
    again = torch.cat(list(shuffled(30, 7, 2, torch_rng(1, "test"))))
    assert torch.equal(again, torch.cat((first, second)))


def test_steps_by_hand() -> None:
    assert steps(samples=10, batch=4, epochs=3) == 9


def test_inputs_by_slice_and_by_rows_are_the_same_and_normalised() -> None:
    own = shard(VIT, train=6)
    by_slice, by_rows = own.inputs(own.train, slice(2, 5)), own.inputs(own.train, torch.tensor([2, 3, 4]))
    assert torch.equal(by_slice, by_rows)
    torch.testing.assert_close(by_rows, (own.train.inputs[2:5].float() / 255 - 0.5) / 0.5)


@pytest.mark.parametrize("most", [0, READY_BYTES])
def test_a_batch_is_the_same_whether_all_images_are_ready_or_not(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("cos2p.training.shard.READY_BYTES", most)
    own, rows = shard(VIT, train=9), torch.tensor([7, 0, 3])
    inputs, labels = own.batch(rows)
    expected = own.train.batch(rows, own.normalize)
    assert torch.equal(inputs, expected[0])
    assert torch.equal(labels, expected[1])


def test_images_that_change_are_never_ready() -> None:
    own = replace(shard(VIT, train=9), augment=("flip",))
    rows = torch.arange(9)
    first, second = (own.for_task(0, "pi", attempt).batch(rows)[0] for attempt in (0, 1))
    assert not torch.equal(first, second)

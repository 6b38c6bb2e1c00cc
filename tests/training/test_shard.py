from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.seeding import torch_rng
from cos2p.training.shard import shuffled, steps
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

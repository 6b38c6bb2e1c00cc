"""Texts at their real lengths."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from cos2p.data.examples import IGNORE, Examples
from cos2p.data.ragged import Ragged, from_flat, length_batches
from cos2p.seeding import torch_rng

texts = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=20), min_size=1, max_size=12)


def ragged(ids: list[list[int]], longest: int = 20) -> Ragged:
    flat = torch.tensor([i for own in ids for i in own], dtype=torch.int32)
    return from_flat(flat, torch.tensor([len(own) for own in ids]), fill=0, longest=longest)


def test_by_hand() -> None:
    """Lengths 2 and 9: alone 8 and 16 wide, but never wider than 12."""
    ids = ragged([[5, 6], list(range(1, 10))], longest=12)
    assert ids.widths.tolist() == [8, 12]
    assert ids[torch.tensor([0])].tolist() == [[5, 6, 0, 0, 0, 0, 0, 0]]
    assert ids[torch.tensor([1, 0])].tolist() == [[*range(1, 10), 0, 0, 0], [5, 6, *[0] * 10]]
    assert ids.next_tokens(torch.tensor([0])).tolist() == [[6, *[IGNORE] * 7]]
    assert ids.shape == (2, 12)
    assert ids.nbytes == 4 * 11


@given(texts, st.data())
def test_a_batch_is_the_padded_table_as_far_as_it_needs(ids: list[list[int]], data: st.DataObject) -> None:
    """The same ids and labels as at full width, cut behind the longest text; also of a part, in any order."""
    table = torch.zeros((len(ids), 20), dtype=torch.int64)
    following = torch.full((len(ids), 20), IGNORE)
    for i, own in enumerate(ids):
        table[i, : len(own)] = torch.tensor(own)
        following[i, : len(own) - 1] = torch.tensor(own[1:], dtype=torch.int64)
    part = torch.tensor(data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1)))
    examples = Examples(ragged(ids), torch.empty((len(ids), 0), dtype=torch.int64), (), pad_id=0, vocabulary=51)
    inputs, labels = examples.subset(part).batch(torch.arange(len(part)))
    longest = max(len(ids[i]) for i in part)
    assert inputs.shape[1] == min(-(-longest // 8) * 8, 20)
    assert torch.equal(inputs, table[part][:, : inputs.shape[1]])
    assert torch.equal(labels, following[part][:, : inputs.shape[1]])
    dense = examples.dense()
    assert torch.equal(dense.batch(part)[0], table[part])
    assert torch.equal(dense.batch(part)[1], following[part])


def test_nothing_is_a_batch_of_nothing() -> None:
    empty = ragged([[1, 2]]).subset(torch.empty(0, dtype=torch.int64))
    assert len(empty) == 0
    assert empty[:].shape == (0, 0)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 5))
def test_every_text_once_in_as_many_batches_as_without_buckets(lengths: list[int], batch: int, seed: int) -> None:
    widths = torch.tensor(lengths)
    batches = list(length_batches(widths, batch, torch_rng(seed, "test")))
    assert len(batches) == -(-len(lengths) // batch)
    assert max(map(len, batches)) <= batch
    assert torch.cat(batches).sort().values.tolist() == list(range(len(lengths)))
    again = list(length_batches(widths, batch, torch_rng(seed, "test")))
    assert all(torch.equal(a, b) for a, b in zip(batches, again, strict=True))
    # Together by width: sorted by their narrowest text, no batch reaches into the next.
    spans = sorted((int(widths[rows].min()), int(widths[rows].max())) for rows in batches)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_passes_differ_and_little_is_padded() -> None:
    """1,000 texts of 10 to 100 tokens: in drawn batches of 16 nearly half would be padding."""
    lengths = torch.randint(10, 101, (1000,), generator=torch_rng(0, "lengths"))
    ids = from_flat(torch.ones(int(lengths.sum()), dtype=torch.int32), lengths, 0, 128)
    rng = torch_rng(0, "test")
    first, second = (list(length_batches(ids.widths, 16, rng)) for _ in range(2))
    together = {tuple(sorted(rows.tolist())) for rows in first}
    assert sum(tuple(sorted(rows.tolist())) in together for rows in second) == 0

    def padding(batches: list[torch.Tensor]) -> float:
        return 1 - int(lengths.sum()) / sum(ids[rows].numel() for rows in batches)

    assert padding(first) < 0.08
    assert padding(list(torch.randperm(1000, generator=rng).split(16))) > 0.4
    assert [int(ids.widths[rows].max()) for rows in first] != sorted(int(ids.widths[rows].max()) for rows in first)


def test_a_pass_without_order_goes_from_narrow_to_wide() -> None:
    examples = Examples(ragged([[1] * 20, [1], [1] * 9]), torch.zeros(3, dtype=torch.int64), ("a",), pad_id=0)
    assert [rows.tolist() for rows in examples.batches(2)] == [[1, 2], [0]]
    assert [rows.tolist() for rows in examples.dense().batches(2)] == [[0, 1], [2]]

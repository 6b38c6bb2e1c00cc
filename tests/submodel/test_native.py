from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cos2p.aggregation.merge import SegmentMerge
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng
from cos2p.submodel import kernels, native
from cos2p.submodel.kernels import Scratch, absolute_differences, absolute_sums, add_scaled, step
from cos2p.submodel.native import passes as library
from cos2p.submodel.native.passes import Passes
from tests.aggregation.brute import rounds
from tests.submodel.native import built, counting
from tests.submodel.strategies import configs
from tests.submodel.test_kernels import cuts

sizes = st.integers(1, 90)
shapes = st.one_of(st.tuples(sizes), st.tuples(sizes, sizes))
matrices = st.tuples(sizes, sizes)
expands = st.booleans()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Of all sizes, with zeros of both signs, and some so small that products vanish."""
    rng = torch_rng(seed, "test native", *shape)
    values = torch.randn(shape, generator=rng) * 10.0 ** torch.randint(-6, 6, shape, generator=rng)
    kinds = torch.randint(0, 12, shape, generator=rng)
    values[kinds == 0], values[kinds == 1] = 0.0, -0.0
    values[kinds == 2] *= 1e-35
    return values


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


def with_and_without(work: Callable[[], Tensor], expand: bool = True) -> tuple[Tensor, Tensor]:
    passes = built()
    with native.using(replace(passes, expand=expand and passes.expand)):
        own = work()
    with native.using(None):
        return own, work()


def refuse(*_: object) -> Tensor:
    raise AssertionError("torch was asked")


# ---------------------------------------------------------------- the bits are torch's


@given(st.data(), shapes, expands, st.booleans(), st.booleans())
def test_parts_are_added(data: st.DataObject, shape: tuple[int, ...], expand: bool, first: bool, even: bool) -> None:
    dim, index = data.draw(cuts(shape))
    part = numbers(*(len(index) if d == dim else size for d, size in enumerate(shape)), seed=1)
    factor = torch.tensor(0.3) if even else numbers(len(index), seed=2)
    factor = factor if even or len(shape) == 1 else factor.unsqueeze(1 - dim)

    def work() -> Tensor:
        total = torch.full(shape, torch.nan) if first else numbers(*shape)
        add_scaled(total, part, factor, (dim, index), Scratch(), first=first)
        return total

    assert same_bits(*with_and_without(work, expand))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("dim", "width"), [(0, 1024), (0, 1021), (1, 1024), (1, 1021)])
def test_large_ones_too_which_go_past_the_cache(dim: int, width: int, first: bool) -> None:
    shape = [300, width]
    index = torch.randperm(shape[dim], generator=torch_rng(0, "test"))[: shape[dim] // 2].sort().values
    part = numbers(*shape).index_select(dim, index)
    factor = numbers(len(index)).unsqueeze(1 - dim)

    def work() -> Tensor:
        total = torch.full(shape, torch.nan) if first else numbers(*shape, seed=1)
        add_scaled(total, part, factor, (dim, index), Scratch(), first=first)
        return total

    assert same_bits(*with_and_without(work))


wide = st.one_of(matrices, st.tuples(st.integers(1, 6), st.integers(1, 9000)), st.tuples(st.integers(1, 3000), sizes))


@settings(max_examples=200)
@given(wide, st.sampled_from([1, 100, 2000, 128 * 1024]), st.integers(0, 1))
def test_sums_and_differences(shape: tuple[int, int], piece: int, dim: int) -> None:
    a, b = numbers(*shape), numbers(*shape, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "SCRATCH", piece)
        assert same_bits(*with_and_without(lambda: absolute_sums(a, dim, Scratch())))
        assert same_bits(*with_and_without(lambda: absolute_differences(a, b, dim, Scratch())))


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_whatever_the_number_of_threads(dim: int) -> None:
    a, before = numbers(1537, 1801), torch.get_num_threads()
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found += with_and_without(lambda: absolute_sums(a, dim, Scratch()))
    torch.set_num_threads(before)
    assert all(same_bits(found[0], other) for other in found)


@given(wide, st.sampled_from([100, 128 * 1024]), st.integers(0, 1))
def test_steps_and_how_far_they_went(shape: tuple[int, int], piece: int, dim: int) -> None:
    current, inverse = numbers(*shape), numbers(shape[dim], seed=1).unsqueeze(1 - dim)

    def work(look: Scratch) -> Tensor:
        return step(numbers(*shape, seed=2), current, inverse, dim, look)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "SCRATCH", piece)
        own, plain = with_and_without(lambda: work(Scratch()))
        assert same_bits(own, plain)
        with native.using(built()):
            look = Scratch()
            stepped = work(look)
            known = look.differences(stepped, current, dim)
        with native.using(None):
            assert same_bits(known, absolute_differences(stepped, current, dim, Scratch()))


@settings(max_examples=40, deadline=None)
@given(st.data(), configs, st.sampled_from(["paper", "relative", "uniform"]))
def test_whole_rounds(data: st.DataObject, config: ModelConfig, rule: str) -> None:
    """Three of them, the later ones with updates from the version before and from the one before that."""
    start, items = data.draw(rounds(config))

    def play() -> list[Weights]:
        merge, versions = SegmentMerge(config, rule), [start]
        for _ in range(3):
            for number, item in enumerate(items):
                staleness = min(number, len(versions) - 1)
                merge.add(replace(item, staleness=staleness, received=versions[-1 - staleness]), versions[-1])
            versions.append(merge.apply(versions[-1]))
        return versions

    with native.using(built()):
        own = play()
    with native.using(None):
        plain = play()
    for a, b in zip(own, plain, strict=True):
        assert all(same_bits(a[name], b[name]) for name in b)


# ---------------------------------------------------------------- what is known is not worked out again


def test_rows_are_compared_once_whichever_are_asked_for() -> None:
    now, then, room, passes = numbers(8, 40), numbers(8, 40, seed=1), Scratch(), counting()
    expected = absolute_differences(now, then, 0, Scratch())
    with native.using(passes):
        for index in ([1, 5], [1, 2, 5, 7], [2, 7], None):
            wanted = None if index is None else torch.tensor(index)
            found = room.differences(now, then, 0, wanted)
            assert same_bits(found, expected if wanted is None else expected[wanted])
    assert passes.compared == [list(range(8))]


def test_other_types_are_compared_as_exactly_as_ever() -> None:
    now, then, index = numbers(8, 40).double(), numbers(8, 40, seed=1).double() / 3, torch.tensor([1, 5])
    with native.using(built()):
        found = Scratch().differences(now, then, 0, index)
    assert torch.equal(found, (now - then).abs().sum(1)[index])


def test_a_step_that_was_closed_needs_no_comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    room, current = Scratch(), numbers(6, 33)
    passes = built()
    with native.using(passes):
        stepped = step(numbers(6, 33, seed=1), current, numbers(6, 1, seed=2), 0, room)
        monkeypatch.setattr(kernels, "absolute_differences", refuse)
        known = room.differences(stepped, current, 0, torch.tensor([2, 4]))
        stepped += 1.0  # another version
        with pytest.raises(AssertionError, match="torch was asked"):
            room.differences(stepped, current, 0)
    assert known.shape == (2,)


# ---------------------------------------------------------------- nothing is written where it should not be

TOTAL, PART = (6, 9), (2, 9)


@pytest.mark.parametrize(
    ("part", "factor", "index"),
    [
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([1, 6])),
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([-1, 2])),
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([2**62, 2**62 + 1])),
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([3, 3])),
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([4, 1])),
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([1, 2, 3])),
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([[1, 2]])),
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.ones(PART), torch.ones(2, 1), torch.tensor([1, 0, 2])[::2]),
        (torch.ones(PART), torch.ones(3, 1), torch.tensor([1, 2])),
        (torch.ones(PART), torch.ones(1, 9), torch.tensor([1, 2])),
        (torch.ones(PART), torch.ones(2, 1, dtype=torch.float64), torch.tensor([1, 2])),
        (torch.ones(2, 8), torch.ones(2, 1), torch.tensor([1, 2])),
        (torch.ones(9, 2).t(), torch.ones(2, 1), torch.tensor([1, 2])),
        (torch.ones(PART, dtype=torch.float64), torch.ones(2, 1), torch.tensor([1, 2])),
        (torch.nn.Parameter(torch.ones(PART)), torch.ones(2, 1), torch.tensor([1, 2])),
        (torch.ones(PART).to_sparse(), torch.ones(2, 1), torch.tensor([1, 2])),
        (torch.ones(PART, device="meta"), torch.ones(2, 1), torch.tensor([1, 2])),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_as_it_should_be_is_left_alone(part: Tensor, factor: Tensor, index: Tensor, first: bool) -> None:
    total = numbers(*TOTAL)
    assert not built().add_part(total, part, factor, 0, index, worth=16, first=first)
    assert same_bits(total, numbers(*TOTAL))


@pytest.mark.parametrize("dim", [0, 1])
def test_an_index_outside_is_torchs_to_refuse(dim: int) -> None:
    part = torch.ones(PART) if dim == 0 else torch.ones(6, 2)
    with native.using(built()), pytest.raises((IndexError, RuntimeError), match="out of"):
        add_scaled(torch.zeros(TOTAL), part, torch.tensor(1.0), (dim, torch.tensor([1, 9])), Scratch())


def test_other_sums_and_steps_are_refused() -> None:
    passes, a = built(), numbers(*TOTAL)
    assert passes.row_sums(a.t()) is None
    assert passes.row_sums(a.double()) is None
    assert passes.row_sums(a[0]) is None
    assert passes.row_sums(torch.tensor(1.0)) is None
    assert passes.row_sums(a, a[:3]) is None
    assert passes.column_sums(a, piece=0) is None
    assert passes.column_sums(a[:0], piece=3) is None
    assert passes.step(a, a[:3], torch.ones(6, 1), 0, piece=3) is None
    assert passes.step(a, numbers(*TOTAL), torch.ones(5, 1), 0, piece=3) is None
    assert passes.step(a, numbers(*TOTAL), torch.tensor(1.0), 0, piece=3) is None
    assert same_bits(a, numbers(*TOTAL))


@settings(max_examples=200)
@given(st.data(), matrices, expands, st.booleans())
def test_memory_around_is_not_touched(data: st.DataObject, shape: tuple[int, int], expand: bool, first: bool) -> None:
    """Indices of all kinds, also wrong ones; the tensors lie between guards."""
    dim = data.draw(st.integers(0, 1))
    index = torch.tensor(
        data.draw(st.lists(st.integers(-3, shape[dim] + 3), max_size=shape[dim] + 2)), dtype=torch.int64
    )
    if data.draw(st.booleans()):
        index = index.unique()  # sorted
    part_shape = [len(index) if d == dim else size for d, size in enumerate(shape)]
    memory = torch.full((shape[0] * shape[1] + 128,), 7.0)
    total = memory[64:-64].view(shape)
    passes = built()
    done = replace(passes, expand=expand and passes.expand).add_part(
        total, torch.ones(part_shape), torch.tensor(1.0), dim, index, worth=16, first=first
    )
    ascends = index.unique().tolist() == index.tolist() and all(0 <= i < shape[dim] for i in index.tolist())
    assert done == ascends
    assert bool((memory[:64] == 7.0).all() and (memory[-64:] == 7.0).all())
    if not done:
        assert bool((total == 7.0).all())


def test_what_was_written_counts_as_another_version_of_the_tensor() -> None:
    total, before = numbers(*TOTAL), numbers(*TOTAL)
    versions = [total._version]
    assert built().add_part(total, torch.ones(PART), torch.tensor(1.0), 0, torch.tensor([1, 2]), worth=16, first=False)
    versions.append(total._version)
    assert built().step(total, before, torch.ones(6, 1), 0, piece=6) is not None
    assert versions[0] < versions[1] < total._version


# ---------------------------------------------------------------- when it is used


def test_only_what_rounds_as_torch_does_is_trusted() -> None:
    class OtherOrder(Passes):
        def row_sums(self, a: Tensor, b: Tensor | None = None) -> Tensor | None:
            return a.double().abs().sum(1).float()

    class OtherRounding(Passes):
        def step(self, total: Tensor, current: Tensor, inverse: Tensor, dim: int, *, piece: int) -> Tensor | None:
            total.copy_(current - total * inverse)
            return torch.empty(0)

    passes = built()
    alike = native.trusted(passes)
    assert native.trusted(OtherOrder(passes.library, passes.expand)).sums is False
    assert native.trusted(OtherOrder(passes.library, passes.expand)).adds == alike.adds
    if alike.adds:  # then torch rounds a product and its sum at once
        assert native.trusted(OtherRounding(passes.library, passes.expand)).adds is False


def test_without_trust_it_is_torchs_to_do() -> None:
    passes, total = replace(built(), adds=False, sums=False), numbers(*TOTAL)
    assert not passes.add_part(
        total, torch.ones(PART), torch.tensor(1.0), 0, torch.tensor([1, 2]), worth=1, first=False
    )
    assert passes.row_sums(total) is None
    assert passes.column_sums(total, piece=6) is None
    assert passes.step(total, numbers(*TOTAL), torch.ones(6, 1), 0, piece=6) is None


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="other machines may differ")
def test_here_all_of_it_is_trusted() -> None:
    """A torch that adds in another order would leave the passes unused: correct, slow, and to be known."""
    trusted = native.trusted(built())
    assert (trusted.adds, trusted.sums) == (True, True)


def test_the_environment_switches_it_off() -> None:
    code = "from cos2p.submodel import native; print(native.in_use())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"COS2P_NATIVE": "0"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "None", done.stderr


def test_nothing_is_loaded_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.load(tmp_path) is None
    (tmp_path / "_library.abi3.so").write_bytes(b"of another machine")
    assert library.load(tmp_path) is None
    if (found := sorted(Path(library.__file__).parent.glob("_library*.so"))) and library.load() is not None:
        monkeypatch.setattr(library, "VERSION", -1)
        assert found
        assert library.load() is None

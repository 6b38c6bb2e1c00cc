from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import TrainingError
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.models.transformer import ElasticTransformer
from cos2p.seeding import torch_rng
from cos2p.submodel.rates import segment_costs
from cos2p.submodel.slicing import extract
from cos2p.training.masks import (
    MaskTrainer,
    MicroBatch,
    Remembered,
    Trained,
    choose,
    fresh_importance,
    random_keep,
    recall,
    sample,
    top,
)
from tests.submodel.strategies import CONFIGS, random_weights
from tests.tiny import VIT, copy, examples, same, window

families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
QUOTAS = (BlockSize(1, 3), BlockSize(2, 4))


def two_blocks(config: ModelConfig, weights: Weights | None = None) -> ElasticTransformer:
    """Blocks 0 and 1 at full width, as candidates."""
    spec = window(config, 0)
    return ElasticTransformer(config, spec).load(extract(weights or random_weights(config, 1), config, spec))


def trainer(
    model: ElasticTransformer,
    memory: Remembered | None = None,
    quotas: tuple[BlockSize, ...] = QUOTAS,
    trained: Trained = Trained(),  # noqa: B008  a frozen value
    lambda1: float = 0.0,
) -> MaskTrainer:
    return MaskTrainer(model, {} if memory is None else memory, quotas, trained, lambda1, torch_rng(0, "test masks"))


def micro_batches(config: ModelConfig, samples: int, size: int) -> list[MicroBatch]:
    data = examples(config, samples)
    return [(*_inputs_first(data.batch(rows)),) for rows in torch.arange(samples).split(size)]


def _inputs_first(batch: tuple[Tensor, Tensor]) -> MicroBatch:
    return batch[0], None, batch[1]


def endless(config: ModelConfig, steps: int) -> Iterator[list[MicroBatch]]:
    for _ in range(steps):
        yield micro_batches(config, 6, 6)


# ---------------------------------------------------------------- the draw


def test_a_draw_is_binary_and_its_gradient_that_of_the_probability() -> None:
    importance = torch.linspace(-4, 4, 400, requires_grad=True)
    mask = sample(importance, torch_rng(0, "test"))
    assert set(mask.tolist()) == {0.0, 1.0}
    weights = torch.randn(400, generator=torch_rng(1, "test"))
    (weights * mask).sum().backward()
    p = torch.sigmoid(importance.detach())
    torch.testing.assert_close(importance.grad, weights * p * (1 - p))


def test_a_draw_keeps_a_segment_as_often_as_its_probability_says() -> None:
    importance = torch.tensor([-2.0, 0.0, 1.5])
    rng = torch_rng(0, "test")
    share = sum(sample(importance, rng) for _ in range(4000)) / 4000
    torch.testing.assert_close(share, torch.sigmoid(importance), atol=0.03, rtol=0)


@families
def test_the_importances_gradient_is_that_of_the_mask_times_the_sigmoids(config: ModelConfig) -> None:
    """Against finite differences of the loss in the gates themselves, one after the other, in double precision."""
    weights = {name: tensor.double() for name, tensor in random_weights(config, 1).items()}
    masks = trainer(two_blocks(config, weights), quotas=(BlockSize(1, 3), BlockSize(1, 3)))
    data = [(x.double() if x.is_floating_point() else x, features, y) for x, features, y in micro_batches(config, 5, 5)]
    state = masks.rng.get_state()
    masks.accumulate(data)
    masks.rng.set_state(state)
    drawn = {name: mask.detach().double() for name, mask in masks.draw().items()}

    def loss(gates: dict[str, Tensor]) -> float:
        ((inputs, _, labels),) = data
        output = masks.model(inputs, None, masks.by_block(gates))[-1]
        flat = (output, labels) if output.ndim == 2 else (output.flatten(0, 1), labels.flatten())
        return F.cross_entropy(*flat).item()  # torch itself leaves out what has no target

    step = 1e-6
    for name, importance in masks.parameters.items():
        slope = torch.empty(len(importance), dtype=torch.float64)
        for i in range(len(importance)):
            nudge = torch.zeros(len(importance), dtype=torch.float64)
            nudge[i] = step
            slope[i] = loss(drawn | {name: drawn[name] + nudge}) - loss(drawn | {name: drawn[name] - nudge})
        p = torch.sigmoid(importance.detach().double())
        expected = (slope / (2 * step) * p * (1 - p)).float()
        assert importance.grad is not None
        torch.testing.assert_close(importance.grad, expected, atol=1e-6, rtol=1e-4)


@families
def test_micro_batches_give_the_gradient_of_the_whole_batch(config: ModelConfig) -> None:
    found = []
    for size in (7, 3, 1):
        masks = trainer(two_blocks(config), lambda1=0.7)
        loss = float(masks.accumulate(micro_batches(config, 7, size)))
        found.append((loss, {name: p.grad for name, p in masks.parameters.items()}))
    for loss, gradients in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-5)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][1][name], atol=1e-6, rtol=1e-4)


# ---------------------------------------------------------------- the size


def test_penalty_by_hand() -> None:
    """Every importance 0: half of the candidates is kept on average, whatever a head and a unit cost."""
    memory = {f"{kind}.{block}": torch.zeros(n) for block in (0, 1) for kind, n in (("heads", 4), ("units", 10))}
    masks = trainer(two_blocks(VIT), memory, lambda1=2.0)
    head, unit = segment_costs(VIT)
    target = (3 * head + 7 * unit) / (8 * head + 20 * unit)
    assert masks.expected_share().item() == pytest.approx(0.5)
    assert masks.target == pytest.approx(target)
    assert masks.penalty().item() == pytest.approx(2.0 * abs(0.5 - target), rel=1e-5)


@pytest.mark.parametrize("start", [-3.0, 3.0])
def test_a_large_lambda1_drives_the_expected_size_to_the_target(start: float) -> None:
    memory = {
        f"{kind}.{block}": torch.full((n,), start) for block in (0, 1) for kind, n in (("heads", 4), ("units", 10))
    }
    for lr in (0.05, 0.005):  # a penalty with a kink is circled at the distance of a step
        masks = trainer(two_blocks(VIT), memory, lambda1=100.0)
        masks.train(endless(VIT, 100), lr)
    assert masks.expected_share().item() == pytest.approx(masks.target, abs=0.02)


@given(st.floats(0.02, 0.98), st.integers(0, 99))
def test_fresh_importance_starts_at_the_right_size_without_ties(share: float, seed: int) -> None:
    importance = fresh_importance(200, share, torch_rng(seed, "test"))
    assert importance.sigmoid().mean().item() == pytest.approx(share, abs=0.002)
    assert len(importance.unique()) > 190


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_fresh_importance_of_nothing_and_everything_is_finite(share: float) -> None:
    assert fresh_importance(5, share, torch_rng(0, "test")).isfinite().all()


# ---------------------------------------------------------------- the final mask


@pytest.mark.parametrize(
    ("candidates", "count", "expected"),
    [
        ((0, 1, 2, 3), 0, ()),
        ((0, 1, 2, 3), 1, (1,)),  # of the equal ones the lower index
        ((0, 1, 2, 3), 2, (1, 2)),
        ((0, 1, 2, 3), 3, (1, 2, 3)),
        ((0, 3), 1, (3,)),  # only candidates count
        ((0, 3), 5, (0, 3)),
    ],
)
def test_top_by_hand(candidates: tuple[int, ...], count: int, expected: tuple[int, ...]) -> None:
    assert top(torch.tensor([1.0, 3.0, 3.0, 2.0]), candidates, count) == expected


@given(st.data())
def test_top_is_the_sorted_list_cut_off(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=12))
    candidates = tuple(sorted(data.draw(st.sets(st.integers(0, len(values) - 1)))))
    count = data.draw(st.integers(0, len(values)))
    expected = sorted(sorted(candidates, key=lambda i: (-values[i], i))[:count])
    assert top(torch.tensor(values), candidates, count) == tuple(expected)


@given(st.integers(0, 4), st.integers(0, 10), st.integers(0, 99))
def test_the_final_mask_has_exactly_the_quotas_size(heads: int, units: int, seed: int) -> None:
    spec = window(VIT, 1)
    chosen = choose({}, VIT, spec, (BlockSize(heads, units),) * 2, torch_rng(seed, "test"))
    assert [(len(keep.heads), len(keep.units)) for keep in chosen.window] == [(heads, units)] * 2
    assert (chosen.frozen, chosen.exits) == (spec.frozen, spec.exits)
    chosen.check(VIT)


def test_the_final_mask_follows_the_importance() -> None:
    memory = {
        "heads.1": torch.tensor([0.0, 5.0, 1.0, 4.0]),
        "units.1": torch.arange(10).float(),
        "heads.2": torch.tensor([9.0, 5.0, 1.0, 4.0]),
        "units.2": -torch.arange(10).float(),
    }
    chosen = choose(memory, VIT, window(VIT, 1), QUOTAS, torch_rng(0, "test"))
    assert chosen.window == (BlockKeep((1,), (7, 8, 9)), BlockKeep((0, 1), (0, 1, 2, 3)))


# ---------------------------------------------------------------- what a device remembers


def test_recall_makes_a_block_up_once() -> None:
    memory: Remembered = {}
    first = recall(memory, VIT, 2, BlockSize(1, 3), torch_rng(0, "test"))
    second = recall(memory, VIT, 2, BlockSize(1, 3), torch_rng(1, "another"))
    assert [len(part) for part in first] == [4, 10]
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert sorted(memory) == ["heads.2", "units.2"]


@families
def test_training_changes_importances_and_no_weight(config: ModelConfig) -> None:
    weights = random_weights(config, 1)
    model = two_blocks(config, weights)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    memory: Remembered = {}
    masks = trainer(model, memory, lambda1=0.5)
    fresh = copy(memory)
    masks.train(endless(config, 3), lr=0.05)
    assert same({name: p.detach() for name, p in model.named_parameters()}, before)
    assert all(p.grad is None for p in model.parameters())
    assert memory.keys() == fresh.keys() == {"heads.0", "units.0", "heads.1", "units.1"}
    changed = {name for name in memory if not torch.equal(memory[name], fresh[name])}
    nothing_to_choose = {f"heads.{i}" for i, quota in enumerate(QUOTAS) if quota.heads >= config.groups}
    assert changed == set(memory) - nothing_to_choose


@pytest.mark.parametrize("kind", ["heads", "units"])
def test_only_the_trained_kind_changes(kind: str) -> None:
    memory: Remembered = {}
    masks = trainer(two_blocks(VIT), memory, trained=Trained(heads=kind == "heads", units=kind == "units"))
    before = copy(memory)
    masks.train(endless(VIT, 2), lr=0.05)
    assert {name for name in memory if not torch.equal(memory[name], before[name])} == {f"{kind}.0", f"{kind}.1"}


def test_the_next_task_goes_on_where_the_last_one_stopped() -> None:
    memory: Remembered = {}
    trainer(two_blocks(VIT), memory).train(endless(VIT, 2), lr=0.05)
    again = trainer(two_blocks(VIT), memory)
    assert all(torch.equal(p.detach(), memory[name]) for name, p in again.parameters.items())


def test_training_does_not_write_into_tensors_it_was_given() -> None:
    memory: Remembered = {}
    masks = trainer(two_blocks(VIT), memory)
    held = dict(memory)
    before = copy(held)
    masks.train(endless(VIT, 2), lr=0.05)
    assert same(held, before)


def test_candidates_may_be_a_part_of_the_block() -> None:
    spec = SubmodelSpec(1, (BlockKeep((0, 2, 3), (1, 4, 5, 9)), BlockKeep((1,), (0, 7))), (3,)).check(VIT)
    model = ElasticTransformer(VIT, spec).load(extract(random_weights(VIT, 1), VIT, spec))
    memory: Remembered = {}
    quotas = (BlockSize(2, 2), BlockSize(1, 2))
    masks = trainer(model, memory, quotas)
    before = copy(memory)
    assert {name: len(p) for name, p in masks.parameters.items()} == {"heads.1": 3, "units.1": 4}  # block 2 is decided
    features = torch.randn(6, VIT.tokens, VIT.dim, generator=torch_rng(0, "test"))
    batches = [[(inputs, features, labels) for inputs, _, labels in micro] for micro in endless(VIT, 2)]
    masks.train(iter(batches), lr=0.05)
    moved = {name: (memory[name] != before[name]).nonzero().flatten().tolist() for name in memory}
    assert moved == {"heads.1": [0, 2, 3], "units.1": [1, 4, 5, 9], "heads.2": [], "units.2": []}
    chosen = choose(memory, VIT, spec, quotas, torch_rng(0, "test"))
    assert set(chosen.window[0].heads) < {0, 2, 3}
    assert set(chosen.window[0].units) < {1, 4, 5, 9}
    assert chosen.window[1] == spec.window[1]


def test_nothing_to_choose_is_no_training() -> None:
    masks = trainer(two_blocks(VIT), quotas=(BlockSize(4, 10), BlockSize(4, 10)))
    assert masks.train(endless(VIT, 1), lr=0.05) == 0.0


def test_a_loss_that_is_not_finite_names_the_way_out_and_forgets_nothing() -> None:
    weights = random_weights(VIT, 1)
    weights["exits.2.linear.bias"].fill_(float("nan"))
    memory: Remembered = {}
    masks = trainer(two_blocks(VIT, weights), memory)
    before = copy(memory)
    with pytest.raises(TrainingError, match=r"mask phase became nan; lower masks\.lr \(now 0\.05\)"):
        masks.train(endless(VIT, 1), lr=0.05)
    assert same(memory, before)


# ---------------------------------------------------------------- masks that are not trained


@settings(max_examples=30)
@given(st.integers(0, 4), st.integers(0, 10), st.integers(0, 99))
def test_random_masks_have_the_quotas_size(heads: int, units: int, seed: int) -> None:
    keep = random_keep(VIT, BlockSize(heads, units), torch_rng(seed, "test"))
    assert (len(keep.heads), len(keep.units)) == (heads, units)
    SubmodelSpec(0, (keep,), (1,)).check(VIT)

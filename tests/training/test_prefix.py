from __future__ import annotations

import errno
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.data.examples import Examples
from cos2p.errors import TrainingError
from cos2p.messages import Precision, Task, tensor_bytes
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockSize
from cos2p.models.transformer import ElasticTransformer, make_context
from cos2p.submodel.slicing import extract, extract_prefix
from cos2p.training import prefix as prefix_module
from cos2p.training.prefix import Features, PrefixFile, decode, encode, prefix_features, rows_of
from cos2p.training.settings import LocalSettings
from cos2p.training.trainer import Batch, SubmodelTrainer
from tests.submodel.strategies import CONFIGS, random_inputs, random_weights, submodels
from tests.tiny import VIT, order, same, shard, task, window

families = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
Case = tuple[ModelConfig, SubmodelSpec, int]


# ---------------------------------------------------------------- on the wire


def test_eight_bits_by_hand() -> None:
    """The largest of a row is 127 steps: steps of 0.01 and of 1; a row of zeros stays zero; vectors take 16 bits."""
    table = torch.tensor([[1.27, -0.014], [-127.0, 50.4], [0.0, 0.0]])
    encoded = encode({"w": table, "b": torch.tensor([0.5, -3.0])}, "int8")
    assert encoded["w"].tolist() == [[127, -1], [-127, 50], [0, 0]]
    assert encoded["b"].dtype == torch.float16
    decoded = decode(encoded)
    torch.testing.assert_close(decoded["w"], torch.tensor([[1.27, -0.01], [-127.0, 50.0], [0.0, 0.0]]))
    assert decoded["b"].tolist() == [0.5, -3.0]


def test_bytes_by_hand() -> None:
    weights = {"w": torch.ones(3, 8), "b": torch.ones(8)}
    size = {precision: tensor_bytes(encode(weights, precision)) for precision in ("float32", "float16", "int8")}
    assert size == {"float32": 4 * 32, "float16": 2 * 32, "int8": 24 + 3 * 4 + 2 * 8}


@settings(max_examples=40)
@given(submodels(least_frozen=1))
def test_what_comes_out_is_within_the_precisions_error(case: Case) -> None:
    """Also for frozen blocks without any head or unit, whose matrices are empty."""
    config, spec, seed = case
    weights = extract_prefix(random_weights(config, seed), config, spec)
    assert same(decode(encode(weights, "float32")), weights)
    for precision in ("float16", "int8"):
        decoded = decode(encode(weights, precision))
        assert decoded.keys() == weights.keys()
        for name, exact in weights.items():
            bound = exact.abs() * 2**-11 + 2**-25
            if precision == "int8" and exact.ndim > 1 and exact.numel():
                largest = exact.flatten(1).abs().amax(1).view(-1, *(1,) * (exact.ndim - 1))
                bound = (largest / 127 * 0.5001).expand_as(exact)
            assert decoded[name].dtype == torch.float32
            assert ((decoded[name] - exact).abs() <= bound).all(), (precision, name)


def test_a_part_has_its_own_names_and_no_other_blocks() -> None:
    file = PrefixFile(encode({"blocks.1.q.weight": torch.ones(2, 2), "blocks.11.q.weight": torch.zeros(2, 2)}, "int8"))
    part = file.part("blocks.1.")
    assert list(part) == ["q.weight"]
    torch.testing.assert_close(part["q.weight"], torch.ones(2, 2))


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_rows_are_those_of_the_decoded_table(precision: Precision) -> None:
    table = torch.arange(12.0).view(4, 3)
    encoded = encode({"embed.tokens": table}, precision)
    places = torch.tensor([[3, 0], [1, 3]])
    assert torch.equal(rows_of(encoded, places), decode(encoded)["embed.tokens"][places])


# ---------------------------------------------------------------- features


def features_of(
    config: ModelConfig, spec: SubmodelSpec, weights: Weights, inputs: Tensor, batch: int = 2, **how: str
) -> Features:
    file = PrefixFile(extract_prefix(weights, config, spec))
    return prefix_features(config, spec, file, lambda rows: inputs[rows], len(inputs), batch, **how)  # type: ignore[arg-type]


def held_features(config: ModelConfig, spec: SubmodelSpec, weights: Weights, inputs: Tensor) -> Tensor:
    """From a model that holds all of its frozen prefix at once."""
    everything = extract(weights, config, spec) | extract_prefix(weights, config, spec)
    model = ElasticTransformer(config, spec, hold_prefix=True).load(everything)
    return model._start(inputs, None, make_context(config, inputs))[0]


@settings(max_examples=40)
@given(submodels(least_frozen=1))
def test_block_by_block_features_are_those_of_a_model_that_holds_its_prefix(case: Case) -> None:
    config, spec, seed = case
    weights, inputs = random_weights(config, seed), random_inputs(config, seed, batch=5)
    found = features_of(config, spec, weights, inputs)[torch.arange(5)]
    torch.testing.assert_close(found, held_features(config, spec, weights, inputs), atol=1e-5, rtol=1e-5)


@families
def test_a_cache_on_disk_is_the_one_in_memory_and_leaves_no_file(
    config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_module.tempfile, "tempdir", str(tmp_path))
    weights, inputs, spec = random_weights(config, 0), random_inputs(config, 0, batch=5), window(config, 2)
    in_memory = features_of(config, spec, weights, inputs)
    on_disk = features_of(config, spec, weights, inputs, store="disk")
    assert list(tmp_path.iterdir()) == []  # gone even if this process is killed now
    rows = torch.tensor([4, 0, 3])
    assert torch.equal(on_disk[rows], in_memory[rows])
    assert torch.equal(on_disk.values, in_memory.values)


def test_half_precision_halves_the_cache() -> None:
    weights, inputs, spec = random_weights(VIT, 0), random_inputs(VIT, 0, batch=5), window(VIT, 1)
    exact = features_of(VIT, spec, weights, inputs)
    half = features_of(VIT, spec, weights, inputs, precision="float16")
    assert half.values.nbytes * 2 == exact.values.nbytes
    rows = torch.arange(5)
    assert half[rows].dtype == torch.float32
    torch.testing.assert_close(half[rows], exact[rows], atol=1e-3, rtol=4e-3)


def test_a_full_disk_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prefix_module.os, "posix_fallocate", full)
    with pytest.raises(TrainingError, match=r"no room for 1\.92 kB of features.*No space left.*'memory'"):
        Features(samples=6, tokens=5, dim=16, store="disk")


def test_never_more_than_one_frozen_block_is_in_memory() -> None:
    """Every part is asked for once, in order, and gone when the next is asked for."""
    alive: list[weakref.ref[Tensor]] = []
    asked = []

    class Watched(PrefixFile):
        def part(self, start: str) -> Weights:
            assert not any(ref() is not None for ref in alive), f"something is left when {start} is asked for"
            part = {name: tensor.clone() for name, tensor in super().part(start).items()}
            asked.append(start)
            alive.extend(weakref.ref(tensor) for tensor in part.values())
            return part

    spec, inputs = window(VIT, 3, blocks=1), random_inputs(VIT, 0, batch=5)
    file = Watched(extract_prefix(random_weights(VIT, 0), VIT, spec))
    prefix_features(VIT, spec, file, lambda rows: inputs[rows], 5, batch=2)
    assert asked == ["embed.", "blocks.0.", "blocks.1.", "blocks.2."]


# ---------------------------------------------------------------- training on the cache


class Recording(SubmodelTrainer):
    """Notes every loss of the weight phase."""

    def loss(self, outputs: Sequence[Tensor], batch: Batch) -> Tensor:
        loss = super().loss(outputs, batch)
        self.__dict__.setdefault("losses", []).append(loss.item())
        return loss


class Uncached(Recording):
    """The prefix is held and run again at every step."""

    def shard_features(self, part: Examples) -> None:
        return None

    def load(self, spec: SubmodelSpec, weights: Weights, rescale: bool) -> ElasticTransformer:
        model = ElasticTransformer(self.config, spec, rescale=rescale, hold_prefix=True)
        return model.load(weights | decode(self.task.prefix))


def losses_of(config: ModelConfig, given: Task, *, cached: bool) -> tuple[list[float], dict[str, float], Weights]:
    """Every loss of the weight phase, the report, and what was learned."""
    trainer = (Recording if cached else Uncached)(config, given.order)
    update, _ = trainer.run(given, shard(config), {})
    return trainer.__dict__["losses"], dict(update.report), update.delta


@families
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_both_phases_on_the_cache_have_the_losses_of_the_uncached_run(
    config: ModelConfig, precision: Precision
) -> None:
    settings = LocalSettings.model_validate({"optimizer": "sgd", "mask": {"epochs": 2, "lr": 0.05}}).model_dump()
    settings |= {"epochs": 3, "batch": 4}
    spec = window(config, 2, exits=(3, 4))
    given = order(spec, quotas=(BlockSize(1, 4), BlockSize(2, 5)), prefix_precision=precision, lr=0.05, **settings)
    work = task(config, random_weights(config, 1), given)
    found, report, delta = losses_of(config, work, cached=True)
    expected, slow_report, slow_delta = losses_of(config, work, cached=False)
    assert len(found) == 9
    assert found == pytest.approx(expected, abs=1e-5)
    assert report["mask_loss"] == pytest.approx(slow_report["mask_loss"], abs=1e-5)
    assert delta.keys() == slow_delta.keys()
    for name in delta:
        torch.testing.assert_close(delta[name], slow_delta[name], atol=1e-5, rtol=1e-3)

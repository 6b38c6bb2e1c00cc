from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from cos2p.data import Bundle, DataConfig, Examples, load
from cos2p.errors import DataError


def save(file: Path, samples: int, classes: int = 4) -> None:
    """Images whose every pixel is their number, labels going round."""
    numbers = np.arange(samples)
    pixels = np.broadcast_to(numbers[:, None, None], (samples, 2, 2)).astype(np.uint8)
    np.savez(file, image=pixels, label=numbers % classes)


def numbers(examples: Examples) -> list[int]:
    return examples.inputs[:, 0, 0, 0].tolist()


def npz(**fields: Any) -> DataConfig:
    return DataConfig(source="npz", train="train.npz", **fields)


def equal(a: Bundle, b: Bundle) -> bool:
    return all(
        torch.equal(getattr(a, s).inputs, getattr(b, s).inputs)
        and torch.equal(getattr(a, s).labels, getattr(b, s).labels)
        for s in ("train", "validation", "test")
    )


def test_digits_need_no_file_and_are_the_known_ones() -> None:
    bundle = load(DataConfig(), seed=0)

    assert bundle.class_names == tuple("0123456789")
    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (1294, 144, 359)
    assert bundle.train.inputs.shape[1:] == (1, 8, 8)
    assert bundle.train.inputs.dtype == torch.uint8
    assert int(bundle.train.inputs.max()) == 255
    known = {np.rint(image * 255 / 16).astype(np.uint8).tobytes(): y for image, y in zip(*_digits(), strict=True)}
    for image, label in zip(bundle.test.inputs, bundle.test.labels, strict=True):
        assert known[image.numpy().tobytes()] == int(label)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    return digits.images, digits.target


def test_the_same_seed_gives_the_same_sets_and_another_does_not(here: Path) -> None:
    save(here / "train.npz", 200)
    config = npz(train_samples=100, test_samples=20)

    assert equal(load(config, seed=1), load(config, seed=1))
    assert not equal(load(config, seed=1), load(config, seed=2))


def test_without_a_test_set_the_three_sets_are_disjoint_and_in_proportion(here: Path) -> None:
    save(here / "train.npz", 200)

    bundle = load(npz(test_fraction=0.2, validation_fraction=0.25), seed=0)

    sets = [numbers(s) for s in (bundle.train, bundle.validation, bundle.test)]
    assert [len(s) for s in sets] == [120, 40, 40]
    assert sorted(sets[0] + sets[1] + sets[2]) == list(range(200))
    for examples in (bundle.train, bundle.validation, bundle.test):
        assert set(torch.bincount(examples.labels).tolist()) == {len(examples) // 4}
        assert examples.labels.tolist() == [n % 4 for n in numbers(examples)]


def test_a_test_set_of_its_own_is_never_validated_on(here: Path) -> None:
    save(here / "train.npz", 40)
    np.savez(here / "test.npz", image=np.full((8, 2, 2), 250, dtype=np.uint8), label=np.arange(8) % 4)

    bundle = load(npz(test="test.npz", validation_fraction=0.25), seed=0)

    assert numbers(bundle.test) == [250] * 8
    assert sorted(numbers(bundle.train) + numbers(bundle.validation)) == list(range(40))
    assert len(bundle.validation) == 10


def test_a_validation_set_of_its_own_is_used_as_it_is(here: Path) -> None:
    save(here / "train.npz", 40)
    save(here / "valid.npz", 8)

    bundle = load(npz(test="valid.npz", validation="valid.npz", validation_fraction=0.5), seed=0)

    assert numbers(bundle.validation) == list(range(8))
    assert len(bundle.train) == 40


def test_no_validation_at_all_is_an_empty_set(here: Path) -> None:
    save(here / "train.npz", 40)

    bundle = load(npz(validation_fraction=0.0), seed=0)

    assert len(bundle.validation) == 0
    assert bundle.validation.class_names == bundle.train.class_names
    assert bundle.validation.inputs.shape == (0, 1, 2, 2)


def test_samples_are_counted_before_the_validation_share_is_taken(here: Path) -> None:
    save(here / "train.npz", 200)

    bundle = load(npz(train_samples=80, test_samples=12, validation_fraction=0.25), seed=0)

    assert (len(bundle.train), len(bundle.validation), len(bundle.test)) == (60, 20, 12)
    assert torch.bincount(bundle.train.labels).tolist() == [15] * 4
    assert torch.bincount(bundle.test.labels).tolist() == [3] * 4


def test_a_class_too_rare_for_the_subset_stays_a_class(here: Path) -> None:
    np.savez(here / "train.npz", image=np.zeros((100, 2, 2), dtype=np.uint8), label=[0] * 49 + [1] * 50 + [2])

    bundle = load(npz(train_samples=10), seed=0)

    assert bundle.classes == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train_samples": 33}, r"data\.train_samples asks for 33, but there are 32 train samples"),
        ({"test_samples": 9}, r"data\.test_samples asks for 9, but there are 8 test samples"),
        ({"test_fraction": 0.0}, r"train\.npz has no test set, and data\.test_fraction 0\.0 of 40 samples is none"),
        ({"train_samples": 1, "validation_fraction": 0.9}, r"nothing is left to train on"),
    ],
)
def test_a_wish_that_cannot_be_met_says_the_numbers(here: Path, fields: dict[str, Any], message: str) -> None:
    save(here / "train.npz", 40)

    with pytest.raises(DataError, match=message):
        load(npz(**fields), seed=0)


def test_an_empty_file_is_named(here: Path) -> None:
    save(here / "train.npz", 0)

    with pytest.raises(DataError, match=r"train\.npz holds no samples"):
        load(npz(), seed=0)


def test_splits_of_different_image_sizes_are_refused(here: Path) -> None:
    save(here / "train.npz", 40)
    np.savez(here / "test.npz", image=np.zeros((8, 3, 3), dtype=np.uint8), label=np.arange(8) % 4)

    with pytest.raises(DataError, match=r"test samples have the shape \(1, 3, 3\), training samples \(1, 2, 2\)"):
        load(npz(test="test.npz"), seed=0)
    assert load(npz(test="test.npz", image_size=4), seed=0).test.inputs.shape == (8, 1, 4, 4)

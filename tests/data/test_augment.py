from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cos2p.data import DataConfig, Examples
from cos2p.data.augment import Augmenter, Change

IMAGES = torch.arange(1, 1 + 6 * 25, dtype=torch.uint8).view(6, 1, 5, 5)


def augmenter(*changes: Change, attempt: int = 0) -> Augmenter:
    return Augmenter(changes, seed=0, client="pi-1", attempt=attempt)


def examples(own: Augmenter | None) -> Examples:
    return Examples(IMAGES, torch.arange(6) % 3, ("a", "b", "c"), augmenter=own)


ROWS = torch.arange(6)


def test_a_padded_crop_is_the_image_shifted() -> None:
    found = augmenter("pad").images(IMAGES, np.random.default_rng(0))
    padded = torch.nn.functional.pad(IMAGES, (4, 4, 4, 4))
    for image, whole in zip(found, padded, strict=True):
        places = [(y, x) for y in range(9) for x in range(9) if torch.equal(image, whole[:, y : y + 5, x : x + 5])]
        assert len(places) == 1
    assert found.dtype == torch.uint8
    assert not torch.equal(found, IMAGES)


def test_a_scaled_crop_keeps_type_shape_and_range_and_all_of_the_area_is_the_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    found = augmenter("scale").images(IMAGES, rng)
    assert not torch.equal(found, IMAGES)
    assert (found.dtype, found.shape) == (torch.uint8, IMAGES.shape)
    assert all(
        int(a.min()) >= int(b.min()) and int(a.max()) <= int(b.max()) for a, b in zip(found, IMAGES, strict=True)
    )
    assert torch.equal(augmenter("scale").images(torch.full((3, 3, 8, 8), 7, dtype=torch.uint8), rng).unique(),
                       torch.tensor([7], dtype=torch.uint8))  # fmt: skip
    monkeypatch.setattr("cos2p.data.augment.LEAST_AREA", 1.0)
    assert torch.equal(augmenter("scale").images(IMAGES, rng), IMAGES)


def test_about_half_are_mirrored() -> None:
    images = IMAGES[:1].expand(400, -1, -1, -1)
    found = augmenter("flip").images(images, np.random.default_rng(0))
    mirrored = sum(torch.equal(image, IMAGES[0].flip(-1)) for image in found)
    same = sum(torch.equal(image, IMAGES[0]) for image in found)
    assert mirrored + same == 400
    assert 160 < mirrored < 240


def test_a_task_done_again_is_the_same_and_no_two_batches_are() -> None:
    first, again, other = (examples(augmenter("pad", "flip", attempt=attempt)) for attempt in (0, 0, 1))
    batches = [first.batch(ROWS)[0] for _ in range(3)]
    assert all(torch.equal(batch, again.batch(ROWS)[0]) for batch in batches)
    assert not torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], other.batch(ROWS)[0])
    assert first.augments
    assert not replace(first, augmenter=None).augments


def test_changes_that_a_recipe_cannot_have() -> None:
    with pytest.raises(ValueError, match="both pad and scale"):
        DataConfig(augment=("pad", "scale"))
    with pytest.raises(ValueError, match="`augment` is for images"):
        DataConfig(source="csv", train="a", text_column="text", augment=("flip",))

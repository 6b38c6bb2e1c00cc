from __future__ import annotations

import numpy as np
import pytest
import torch

from cos2p.data import IGNORE, Bundle, Examples, Groups, Normalize
from cos2p.errors import DataError

IMAGES = torch.tensor([[[[0, 255]]], [[[51, 102]]], [[[204, 153]]]], dtype=torch.uint8)  # (3, 1, 1, 2)


def images(groups: Groups | None = None) -> Examples:
    return Examples(IMAGES, torch.tensor([2, 0, 1]), ("a", "b", "c"), groups)


def test_a_batch_is_normalised_and_the_bytes_stay_as_they_are() -> None:
    examples = images()

    inputs, labels = examples.batch(torch.tensor([0, 2]), Normalize(mean=(0.5,), std=(0.25,)))

    # (0/255 - 0.5) / 0.25 = -2, (255/255 - 0.5) / 0.25 = 2, (204/255 - 0.5) / 0.25 = 1.2, (153/255 ...) = 0.4
    assert inputs.flatten().tolist() == pytest.approx([-2.0, 2.0, 1.2, 0.4])
    assert inputs.dtype == torch.float32
    assert labels.tolist() == [2, 1]
    assert examples.inputs.dtype == torch.uint8
    assert examples.inputs is IMAGES


def test_without_normalisation_pixels_lie_between_0_and_1() -> None:
    inputs, _ = images().batch(torch.tensor([0, 1]))

    assert inputs.flatten().tolist() == pytest.approx([0.0, 1.0, 0.2, 0.4])


def test_float_images_are_not_divided_again() -> None:
    examples = Examples(torch.full((1, 1, 2, 2), 0.75), torch.tensor([0]), ("a",))

    inputs, _ = examples.batch(torch.tensor([0]), Normalize(mean=(0.5,), std=(0.5,)))

    assert inputs.flatten().tolist() == [0.5] * 4


def test_each_channel_has_its_own_mean_and_deviation() -> None:
    examples = Examples(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8), torch.tensor([0]), ("a",))

    inputs, _ = examples.batch(torch.tensor([0]), Normalize(mean=(0.0, 0.5, 1.0), std=(0.5, 0.5, 0.5)))

    assert inputs.flatten().tolist() == [2.0, 1.0, 0.0]


def test_a_mean_for_another_number_of_channels_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.mean has 2 numbers, the images 1 channels"):
        images().batch(torch.tensor([0]), Normalize(mean=(0.1, 0.2), std=(1.0,)))


def test_token_ids_pass_through_a_batch_untouched() -> None:
    ids = torch.tensor([[1, 5, 0], [1, 6, 7]])
    examples = Examples(ids, torch.tensor([0, 1]), ("a", "b"), pad_id=0, vocabulary=8)

    inputs, labels = examples.batch(np.array([1]), Normalize())

    assert inputs.tolist() == [[1, 6, 7]]
    assert inputs.dtype == torch.int64
    assert labels.tolist() == [1]
    assert examples.is_text


def test_a_subset_keeps_order_groups_and_names() -> None:
    part = images(groups=Groups.of(("x", "y", "z"))).subset(np.array([2, 0]))

    assert len(part) == 2
    assert part.labels.tolist() == [1, 2]
    assert list(part.groups or ()) == ["z", "x"]
    assert part.class_names == ("a", "b", "c")
    assert torch.equal(part.inputs, IMAGES[[2, 0]])


def test_strata_are_classes_or_else_groups_or_else_all_one() -> None:
    text = torch.ones(3, 4, dtype=torch.int64)
    next_tokens = torch.full((3, 4), IGNORE)

    assert images().strata().tolist() == [2, 0, 1]
    assert Examples(text, next_tokens, (), Groups.of(("b", "a", "b"))).strata().tolist() == [1, 0, 1]
    assert Examples(text, next_tokens, ()).strata().tolist() == [0, 0, 0]


def test_inputs_labels_and_groups_must_be_equally_many() -> None:
    with pytest.raises(DataError, match=r"'inputs': 3, 'labels': 2"):
        Examples(IMAGES, torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(DataError, match=r"'groups': 1"):
        images(groups=Groups.of(("x",)))
    with pytest.raises(DataError, match=r"int64, not torch\.int32"):
        Examples(IMAGES, torch.tensor([0, 1, 2], dtype=torch.int32), ("a",))


def test_a_bundle_knows_its_classes() -> None:
    examples = images()
    bundle = Bundle(train=examples, validation=examples.subset(np.array([], dtype=np.int64)), test=examples)

    assert bundle.classes == 3
    assert bundle.class_names == ("a", "b", "c")
    assert len(bundle.validation) == 0
    assert examples.nbytes == 6 + 24

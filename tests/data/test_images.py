from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cos2p.data import DataConfig
from cos2p.data.images import BadImage, Content, adapt_array, decode, decode_many
from cos2p.errors import DataError


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def decode_all(images: list[tuple[str, Content]], config: DataConfig) -> torch.Tensor:
    return torch.from_numpy(np.stack([decode(name, content, config) for name, content in images]))


GREY = np.array([[0, 50], [100, 255]], dtype=np.uint8)
RED = np.zeros((2, 2, 3), dtype=np.uint8)
RED[..., 0] = 200


def test_grey_and_colour_images_are_decoded_exactly() -> None:
    grey = decode_all([("a", png(GREY))], DataConfig(channels=1))
    colour = decode_all([("a", png(RED)), ("b", png(RED))], DataConfig(channels=3))

    assert torch.equal(grey, torch.from_numpy(GREY)[None, None])
    assert colour.shape == (2, 3, 2, 2)
    assert colour[0, :, 0, 0].tolist() == [200, 0, 0]


def test_channels_are_converted_alike_in_files_and_arrays() -> None:
    from_file = decode_all([("a", png(RED))], DataConfig(channels=1))
    from_array = adapt_array(RED[None], "a", DataConfig(channels=1))
    tripled = adapt_array(GREY[None], "a", DataConfig(channels=3))

    assert from_file.flatten().tolist() == [60] * 4  # 0.299 * 200
    assert torch.equal(from_file, from_array)
    assert tripled.shape == (1, 3, 2, 2)
    assert torch.equal(tripled[0, 0], tripled[0, 2])


@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 4, 6, 1), (5, 1, 4, 6), (5, 4, 6, 3), (5, 3, 4, 6)])
def test_the_usual_layouts_are_understood(shape: tuple[int, ...]) -> None:
    images = adapt_array(np.zeros(shape, dtype=np.uint8), "a", DataConfig(channels=1))

    assert images.shape == (5, 1, 4, 6)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 6, 2), (5, 2, 4, 6), (5, 1, 4, 6, 3)])
def test_other_layouts_are_refused_with_their_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"a: images of shape \(5, .*\(N, H, W\)"):
        adapt_array(np.zeros(shape, dtype=np.uint8), "a", DataConfig())


def test_whole_numbers_become_bytes_and_floats_stay_floats() -> None:
    config = DataConfig()

    assert adapt_array(np.full((1, 2, 2), 255, dtype=np.int64), "a", config).dtype == torch.uint8
    floats = adapt_array(np.full((1, 2, 2), 0.25), "a", config)
    assert floats.dtype == torch.float32
    assert floats.flatten().tolist() == [0.25] * 4


@pytest.mark.parametrize(
    "pixels", [np.full((1, 2, 2), 256), np.full((1, 2, 2), -1), np.full((1, 2, 2), 2.0), np.full((1, 2, 2), np.nan)]
)
def test_pixels_out_of_range_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"0\.\.255 or floats in 0\.\.1"):
        adapt_array(pixels, "a", DataConfig())


def test_the_middle_is_cut_out_or_the_whole_is_stretched() -> None:
    # Left third 0, middle third 90, right third 180: only the crop has nothing but 90.
    wide = np.repeat(np.array([[0, 90, 180]], dtype=np.uint8), 8, axis=0).repeat(8, axis=1)  # 8 x 24

    center = decode_all([("a", png(wide))], DataConfig(image_size=8, crop="center"))
    stretch = decode_all([("a", png(wide))], DataConfig(image_size=8, crop="stretch"))

    assert center.unique().tolist() == [90]
    assert stretch[0, 0, 0, 0] == 0
    assert stretch[0, 0, 0, -1] == 180
    assert torch.equal(adapt_array(wide[None], "a", DataConfig(image_size=8, crop="center")), center)


def test_float_arrays_are_resized_without_rounding_to_bytes() -> None:
    images = adapt_array(np.full((2, 6, 4), 0.123), "a", DataConfig(image_size=3))

    assert images.shape == (2, 1, 3, 3)
    assert images.flatten().tolist() == pytest.approx([0.123] * 18)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    cut = tmp_path / "cut.png"
    cut.write_bytes(png(np.random.default_rng(0).integers(0, 255, (64, 64), dtype=np.uint8))[:900])

    for name, content in (("row 3", b"no image"), ("row 4", b""), (str(cut), cut), ("gone", tmp_path / "gone.png")):
        with pytest.raises(DataError, match=f"{name} cannot be read as an image"):
            decode_all([(name, content)], DataConfig())


@pytest.mark.parametrize("threads", [1, 2])
def test_many_come_in_order_and_a_broken_one_among_them_as_its_error(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """More than two threads are given at a time, from an iterator that is read no further than needed."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    images = [(str(i), png(np.full((2, 2), i, dtype=np.uint8)) if i != 30 else b"broken") for i in range(200)]

    found = list(decode_many(iter(images), DataConfig()))

    assert [name for name, _ in found] == [str(i) for i in range(200)]
    bad = found.pop(30)[1]
    assert isinstance(bad, BadImage)
    assert (bad.name, bad.reason) == ("30", "it is in no image format that is known")
    assert [int(pixels[0, 0, 0]) for _, pixels in found if not isinstance(pixels, BadImage)] == [
        i for i in range(200) if i != 30
    ]

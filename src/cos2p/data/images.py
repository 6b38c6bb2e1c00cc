"""Images from encoded bytes, files and arrays: one size, one or three channels.

Shapes: N images, C channels, H height, W width.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from cos2p.data.config import DataConfig
from cos2p.errors import DataError
from cos2p.extras import extra

if TYPE_CHECKING:
    from PIL import Image

_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Luma weights of ITU-R 601, the ones Pillow uses to turn RGB grey."""


Pixels = NDArray[np.uint8]

_UNREADABLE = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, struct.error, zlib.error,
)  # fmt: skip
"""Pillow's readers raise them over files that are cut short or garbled."""

_AT_A_TIME = 64
"""Images that a thread is given before the next are fetched: so many are held encoded."""


class BadImage(DataError):
    """An image that cannot be read."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} cannot be read as an image ({reason}); replace it or take it out of the data")
        self.name, self.reason = name, reason


Content = bytes | Path | BadImage
"""An encoded image, the file that holds one, or the reason that there is none."""


def decode_many(images: Iterable[tuple[str, Content]], config: DataConfig) -> Iterator[tuple[str, Pixels | BadImage]]:
    """(C, H, W) of each (name for messages, encoded image), in order; what cannot be read comes out as its error.

    With as many threads as torch uses: one in a worker, whose neighbours have the other cores. An image does not
    depend on the thread that decodes it.
    """

    def decoded(image: tuple[str, Content]) -> tuple[str, Pixels | BadImage]:
        try:
            return image[0], decode(*image, config)
        except BadImage as error:
            return image[0], error

    threads, images = torch.get_num_threads(), iter(images)
    if threads == 1:
        yield from map(decoded, images)
        return
    with ThreadPoolExecutor(threads) as pool:
        while chunk := list(islice(images, _AT_A_TIME * threads)):
            yield from pool.map(decoded, chunk)


def other_size(name: str, shape: tuple[int, ...], first: str, expected: tuple[int, ...]) -> DataError:
    return DataError(
        f"{name} is {_size(shape)} pixels, {first} {_size(expected)}; "
        f"set data.image_size to bring all images to one size"
    )


def adapt_array(images: NDArray[np.generic], where: str, config: DataConfig) -> torch.Tensor:
    """(N, C, H, W) uint8, or float32 in 0..1, from an array of images in any usual layout."""
    pixels = _known_dtype(_channels_first(images, where), where)
    if pixels.shape[1] == 1 and config.channels == 3:
        pixels = np.repeat(pixels, 3, axis=1)
    elif pixels.shape[1] == 3 and config.channels == 1:
        grey = np.tensordot(pixels.astype(np.float32), _GREY, axes=([1], [0]))[:, None]
        pixels = grey if pixels.dtype == np.float32 else np.rint(grey).astype(np.uint8)
    edge = config.image_size
    if edge and pixels.shape[2:] != (edge, edge):
        pixels = _resize_array(pixels, config)
    return torch.from_numpy(np.ascontiguousarray(pixels))


def pillow() -> Any:
    """`PIL.Image`, for those who have images in files."""
    return extra("PIL.Image", "images", "Reading images")


def resize(image: Image.Image, edge: int, crop: str) -> Image.Image:
    """A square image; `center` keeps proportions and cuts the middle out, `stretch` keeps everything."""
    width, height = image.size
    if crop == "stretch" or width == height:
        return image.resize((edge, edge), pillow().Resampling.BILINEAR)
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize(
        (edge, edge), pillow().Resampling.BILINEAR, box=(left, top, left + side, top + side), reducing_gap=3.0
    )


def decode(name: str, content: Content, config: DataConfig) -> Pixels:
    """(C, H, W) of one image, upright, whatever its depth. Raises BadImage."""
    if isinstance(content, BadImage):
        raise content
    reader = pillow()
    try:
        with reader.open(io.BytesIO(content) if isinstance(content, bytes) else content) as opened:
            extra("PIL.ImageOps", "images", "Reading images").exif_transpose(opened, in_place=True)
            image = _eight_bits(opened).convert("L" if config.channels == 1 else "RGB")
    except reader.UnidentifiedImageError as error:
        raise BadImage(name, "it is in no image format that is known") from error
    except (*_UNREADABLE, reader.DecompressionBombError) as error:
        raise BadImage(name, str(error) or type(error).__name__) from error
    if config.image_size and image.size != (config.image_size, config.image_size):
        image = resize(image, config.image_size, config.crop)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if config.channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Pillow cuts deep grey values off at 255 instead of scaling them, so that a 16-bit image becomes white."""
    if image.mode != "F" and image.mode[0] != "I":
        return image
    values = np.asarray(image, dtype=np.float32)
    full = 1.0 if image.mode == "F" else 65535.0
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= full):
        raise ValueError(f"its values go from {low:g} to {high:g}; store 0 to {full:g}, or 8 bits")
    eight: Image.Image = pillow().fromarray(np.rint(values * (255 / full)).astype(np.uint8))
    return eight


def _channels_first(images: NDArray[np.generic], where: str) -> NDArray[np.generic]:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    raise DataError(
        f"{where}: images of shape {images.shape} are not understood; "
        f"store (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
    )


def _known_dtype(pixels: NDArray[np.generic], where: str) -> NDArray[np.generic]:
    if pixels.dtype == np.uint8 or pixels.size == 0:
        return pixels if pixels.dtype == np.uint8 else pixels.astype(np.uint8)
    low, high = float(pixels.min()), float(pixels.max())
    if np.issubdtype(pixels.dtype, np.integer) and low >= 0 and high <= 255:
        return pixels.astype(np.uint8)
    if np.issubdtype(pixels.dtype, np.floating) and low >= 0 and high <= 1:
        return pixels.astype(np.float32)
    raise DataError(
        f"{where}: pixels are {pixels.dtype} from {low:g} to {high:g}; store whole numbers in 0..255 or floats in 0..1"
    )


def _resize_array(pixels: NDArray[np.generic], config: DataConfig) -> NDArray[np.generic]:
    edge = config.image_size
    resized = np.empty((*pixels.shape[:2], edge, edge), dtype=pixels.dtype)
    for i, image in enumerate(pixels):
        for c, plane in enumerate(image):
            picture = pillow().fromarray(np.ascontiguousarray(plane))
            resized[i, c] = np.asarray(resize(picture, edge, config.crop), dtype=pixels.dtype)
    return resized


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}x{shape[1]}"

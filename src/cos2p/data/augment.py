"""Images a little different every time: shifted or cut, mirrored. `data.augment` of a recipe.

Shapes: B images of a batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.seeding import numpy_rng

Change = Literal["pad", "scale", "flip"]
PADDING, LEAST_AREA = 4, 0.35


@dataclass
class Augmenter:
    """One task's changes: every batch draws from a generator of its own, so that a task done again is the same."""

    changes: tuple[Change, ...]
    seed: int
    client: str
    attempt: int
    step: int = 0

    def draw(self) -> np.random.Generator:
        """The generator of the next batch."""
        self.step += 1
        return numpy_rng(self.seed, "augment", self.client, self.attempt, self.step - 1)

    def images(self, images_BCHW: Tensor, rng: np.random.Generator) -> Tensor:
        """Shifted or cut, and mirrored; of the same type and shape."""
        if "pad" in self.changes:
            images_BCHW = _shifted(images_BCHW, PADDING, rng)
        elif "scale" in self.changes:
            images_BCHW = _scaled(images_BCHW, LEAST_AREA, rng)
        if "flip" in self.changes:
            mirrored = torch.from_numpy(rng.random(len(images_BCHW)) < 0.5)
            images_BCHW = torch.where(mirrored[:, None, None, None], images_BCHW.flip(-1), images_BCHW)
        return images_BCHW


def _shifted(images: Tensor, padding: int, rng: np.random.Generator) -> Tensor:
    height, width = images.shape[2:]
    padded = F.pad(images, (padding,) * 4)
    offsets = rng.integers(0, 2 * padding + 1, (len(images), 2)).tolist()
    return torch.stack([p[:, y : y + height, x : x + width] for p, (y, x) in zip(padded, offsets, strict=True)])


def _scaled(images: Tensor, min_area: float, rng: np.random.Generator) -> Tensor:
    height, width = images.shape[2:]
    changed = []
    for image, area, at in zip(
        images, rng.uniform(min_area, 1, len(images)), rng.random((len(images), 2)), strict=True
    ):
        h, w = max(1, round(height * area**0.5)), max(1, round(width * area**0.5))
        y, x = int(at[0] * (height - h + 1)), int(at[1] * (width - w + 1))
        cut = image[None, :, y : y + h, x : x + w].float()
        changed.append(F.interpolate(cut, (height, width), mode="bilinear", align_corners=False, antialias=True)[0])
    found = torch.stack(changed)
    return found.round().clamp(0, 255).to(torch.uint8) if images.dtype == torch.uint8 else found

"""The model as an ONNX file, compared with torch before it is handed over. Imports onnx and onnxruntime."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import onnxscript  # noqa: F401 (torch's exporter needs it, and says so only in a traceback)
import torch
from torch import Tensor, nn

from cos2p.errors import CheckpointError
from cos2p.inference.sources import Trained
from cos2p.seeding import torch_rng

TOLERANCE = 1e-4
"""Largest difference of a logit, for logits of the size of one; larger ones in proportion."""
_INLINE_BYTES = 1_500_000_000
"""Protobuf ends at 2 GB; larger weights lie in a file next to it."""


class _Answers(nn.Module):
    """The chosen exit alone."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.model = trained.model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs)[0]  # type: ignore[no-any-return]


def write_onnx(trained: Trained, file: Path) -> None:
    """`pixel_values` (prepared images) or `input_ids` to `logits`, for any batch and length; CheckpointError if ONNX
    Runtime answers otherwise than torch."""
    name = "input_ids" if trained.is_text else "pixel_values"
    dynamic: dict[int, Any] = {0: torch.export.Dim("batch")}
    if trained.is_text:
        dynamic[1] = torch.export.Dim("tokens", min=2, max=trained.config.max_tokens)
    size = sum(tensor.nbytes for tensor in trained.weights.values())
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter's own doings
        torch.onnx.export(
            _Answers(trained).eval(),
            (_samples(trained, 3, 0),),
            file,
            dynamo=True,
            verbose=False,
            input_names=[name],
            output_names=["logits"],
            dynamic_shapes=(dynamic,),
            external_data=size > _INLINE_BYTES,
        )
    _compare(trained, file, name)


def _compare(trained: Trained, file: Path, name: str) -> None:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for count in (1, 4):
        inputs = _samples(trained, count, count)
        ours = trained.outputs(inputs).numpy()
        theirs = session.run(None, {name: inputs.numpy()})[0]
        worst = float(np.max(np.abs(ours - theirs) / np.maximum(1.0, np.abs(ours))))
        if not worst <= TOLERANCE:
            file.unlink()
            raise CheckpointError(f"ONNX Runtime answers otherwise than torch (by {worst:.1e}); nothing was written")


def _samples(trained: Trained, count: int, seed: int) -> Tensor:
    rng, config = torch_rng(seed, "onnx"), trained.config
    if not trained.is_text:
        return torch.randn(count, config.channels, config.image, config.image, generator=rng)
    tokens = min(config.max_tokens, 8)
    ids = torch.randint(config.vocab, (count, tokens), generator=rng)
    return ids.masked_fill(ids == config.pad_token, (config.pad_token + 1) % config.vocab)

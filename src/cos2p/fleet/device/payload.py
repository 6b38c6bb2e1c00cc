"""A task read from its file without loading the frozen prefix: its tensors stay on disk until a block's turn comes.

The file is mapped read-only, so the pages belong to the system's cache and count against nobody's budget.
"""

from __future__ import annotations

import json
import mmap
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cos2p.errors import TrainingError
from cos2p.messages import Order, Task
from cos2p.messages.envelope import mapped
from cos2p.models.layout import Weights

_TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}


def read_task(path: Path) -> Task:
    """The task in a safetensors file: trainable tensors in memory, those of the prefix mapped.

    Candidates of a mask phase are mapped too: when it is over a part of them trains, and all of them next to that part
    would be more than the budget has. So are weights that came in fewer bits, from which others are made.
    """
    with mapped(path, mmap.ACCESS_READ) as data:
        size = int.from_bytes(data[:8], "little")
        try:
            header = json.loads(data[8 : 8 + size])
            meta = json.loads(header.pop("__metadata__")["cos2p"])
        except (ValueError, KeyError, TypeError) as error:
            raise TrainingError(f"the task that came cannot be read: {error!r}") from None
    view = mapped(path, mmap.ACCESS_READ)
    order, parts = Order.from_dict(meta), dict[str, Weights](w={}, p={})
    for key, entry in header.items():
        label, _, name = key.partition("/")
        tensor = _tensor(view, 8 + size, entry)
        stays = label == "p" or order.quotas is not None or order.wire.down != "float32"
        parts[label][name] = tensor if stays else tensor.clone()
    return Task(order, weights=parts["w"], prefix=parts["p"])


def _tensor(view: mmap.mmap, start: int, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    dtype = _TYPES[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that nobody must write here; nobody does
        flat = torch.frombuffer(view, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=start + begin)
    return flat.view(entry["shape"])

"""Counts what operations allocate, tensor by tensor."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TemporaryBytes(TorchDispatchMode):
    """Counts the bytes of new storages that operations hand out, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                size = tensor.untyped_storage().nbytes()
                self.alive += size
                weakref.finalize(tensor, self._freed, size)
        self.peak = max(self.peak, self.alive)
        return result

    def _freed(self, size: int) -> None:
        self.alive -= size

"""RAM-Fed's server (Wang et al., KDD 2023): per client, the latest update of every region is remembered.

    m_n ← D_n where client n trained, unchanged elsewhere        w ← w − (1/N) Σ_all n m_n

Every client counts in every round, absent ones with what they last said. An update of a region is therefore applied
again and again until the client trains that region anew, on average 1/R_n rounds later; `max_age` bounds that.

The server holds a second model for every client: N · P · 4 bytes in memory, and as many in every checkpoint (16 clients
of ViT-Base-Ext: 7.3 GB). Only tensors that were ever trained are held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from cos2p.aggregation.counting import add_at_segments, held_segments
from cos2p.aggregation.merge import Contribution
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.submodel.segments import SegmentValues, expand, full_length, segment_key, segment_positions
from cos2p.submodel.slicing import window_slices

Denominator = Literal["clients", "filled"]


class MemoryMerge:
    """`clients` is N. `denominator`: "clients" divides by N (the paper); "filled" by the clients that know a region."""

    def __init__(
        self, config: ModelConfig, clients: int, denominator: Denominator = "clients", max_age: int | None = None
    ) -> None:
        self.config, self.clients, self.denominator, self.max_age = config, clients, denominator, max_age
        self._memory: dict[str, Weights] = {}
        self._visited: dict[str, SegmentValues] = {}
        """Per client and segment: one more than the round of the last visit; 0 for never."""
        self._round = 0
        self.holders: SegmentValues = {}

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        memory = self._memory.setdefault(item.client, {})
        for name, cut in window_slices(self.config, item.spec).items():
            if name not in memory:
                memory[name] = torch.zeros_like(current[name])
            if cut is None:
                memory[name].copy_(item.delta[name])
            else:
                memory[name].index_copy_(*cut, item.delta[name])
        held = held_segments(self.config, item.spec, item.delta)
        add_at_segments(self.holders, held, self.config, item.spec)
        self._stamp(item, held)
        return {"remembered": float(len(self._memory))}

    def _stamp(self, item: Contribution, held: SegmentValues) -> None:
        visited = self._visited.setdefault(item.client, {})
        now = float(self._round + 1)
        for key, ones in held.items():
            positions, length = segment_positions(self.config, item.spec, key), full_length(self.config, key)
            if positions is None or length is None:
                visited[key] = ones * now
            else:
                visited.setdefault(key, torch.zeros(length)).index_fill_(0, positions, now)

    def apply(self, current: Weights) -> Weights:
        updated = dict(current)
        for name in dict.fromkeys(name for memory in self._memory.values() for name in memory):
            updated[name] = current[name] - self._step(name, current[name])
        self._round += 1
        self.holders = {}
        return updated

    def _step(self, name: str, like: Tensor) -> Tensor:
        key = segment_key(self.config, name)
        total, known = torch.zeros_like(like), torch.zeros(())
        for client, memory in self._memory.items():
            if name not in memory:
                continue
            live = self._live(self._visited[client][key])
            known = known + live
            if self.max_age is None:
                total += memory[name]  # zero where the client never was
            else:
                total.addcmul_(memory[name], expand({key: live}, name, self.config))
        if self.denominator == "clients":
            return total / self.clients
        return total / expand({key: known.clamp_min(1)}, name, self.config)

    def _live(self, visited: Tensor) -> Tensor:
        """1 where the memory counts: visited at all, and not too long ago."""
        oldest = 1 if self.max_age is None else max(1, self._round + 1 - self.max_age)
        return (visited >= oldest).float()

    # ------------------------------------------------------------ checkpoint

    def state(self) -> dict[str, Weights]:
        groups = {f"memory.{client}": memory for client, memory in self._memory.items()}
        groups |= {f"visited.{client}": visited for client, visited in self._visited.items()}
        return {**groups, "holders": self.holders, "round": {"round": torch.tensor(self._round)}}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        copied = {group: {name: tensor.clone() for name, tensor in values.items()} for group, values in state.items()}
        self._memory = {g.removeprefix("memory."): v for g, v in copied.items() if g.startswith("memory.")}
        self._visited = {g.removeprefix("visited."): v for g, v in copied.items() if g.startswith("visited.")}
        self.holders = copied.get("holders", {})
        self._round = int(copied["round"]["round"]) if "round" in copied else 0

"""RAM-Fed and RA-Fed (Wang et al., KDD 2023): random submodels; with memory, the server repeats what it last heard.

RA-Fed: in every task a device trains a submodel drawn anew; the server averages over the holders of each segment.
RAM-Fed: the server also keeps every client's latest update of every region and applies all of them in every round,
w ← w + (1/N) Σ m_n, clients and regions that were not trained in the round included.

From the paper and its public code: the memory rule, 1/N over all clients, shared tensors replaced in every round,
equal weights. Ours, because the code's choices need the full model on every device or are no structured masks: the
draw is N_H heads and N_U units of all blocks, uniformly without replacement (the code keeps whole quarters of each
matrix, so 25, 50 or 75 %); there is no first round with the full model to fill the memory, which stays zero until a
region is first visited; there is no common half mask in every tenth round. `denominator = "filled"` divides by the
clients that know a region instead, which in the code is the same thing and here is not: the first visitor's update
would be applied at full strength in every round until it or others come by again. Training-time rescaling is on, as
for all width-only methods (a trial: 46 → 55 points).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import Self

from cos2p import ModelConfig, scatter
from cos2p.methods import (
    Assignment,
    AveragingMethod,
    AveragingSettings,
    Call,
    Contribution,
    Forms,
    Merge,
    Settings,
    Weights,
    WidthMethod,
    WidthSettings,
    random_spec,
    segmented,
    torch_rng,
)
from cos2p_rivals.segments import held, per_block

Denominator = Literal["clients", "filled"]


class RandomSubmodels(WidthMethod):
    """A submodel of the device's size, drawn anew for every task."""

    forms: ClassVar[Forms] = {"no scaler": ("method.rescale=false",)}

    def assign(self, call: Call) -> Assignment:
        rng = torch_rng(self.context.seed, "random submodel", call.member.name, call.attempt)
        spec = random_spec(self.context.config, self.budgets[call.member.name], rng)
        return Assignment(spec, self.local(call.member))


class RaFed(RandomSubmodels, AveragingMethod):
    name: ClassVar[str] = "rafed"
    title: ClassVar[str] = "RA-Fed"
    settings_type: ClassVar[type[Settings]] = AveragingSettings


class RamFedSettings(WidthSettings):
    denominator: Denominator = Field(
        default="clients", description="What Σ m_n is divided by: N (the paper), or the clients that know a region."
    )
    max_age: int | None = Field(
        default=None, ge=1, description="Rounds after which a remembered update counts no more. Empty: never."
    )


class RamFed(RandomSubmodels):
    name: ClassVar[str] = "ramfed"
    title: ClassVar[str] = "RAM-Fed"
    settings_type: ClassVar[type[Settings]] = RamFedSettings
    settings: RamFedSettings
    forms: ClassVar[Forms] = {**RandomSubmodels.forms, "over holders": ("method.denominator=filled",)}

    def merge(self) -> Merge:
        config, settings = self.context.config, self.settings
        return MemoryMerge(config, len(self.context.members), settings.denominator, settings.max_age)


class MemoryMerge(Merge):
    """m_n ← D_n where client n trained, unchanged elsewhere; w ← w − (1/N) Σ_all n m_n.

    Every client counts in every round, absent ones with what they last said. An update of a region is therefore applied
    again and again until the client trains that region anew, on average 1/R_n rounds later; `max_age` bounds that.
    `clients` is N. `denominator`: "clients" divides by N (the paper); "filled" by the clients that know a region.

    The server holds a second model for every client: N · P · 4 bytes in memory, and as many in every checkpoint (16
    clients of ViT-Base-Ext: 7.3 GB). Only tensors that were ever trained are held.
    """

    def __init__(
        self, config: ModelConfig, clients: int, denominator: Denominator = "clients", max_age: int | None = None
    ) -> None:
        super().__init__(config)
        self.clients, self.denominator, self.max_age = clients, denominator, max_age
        self._memory: dict[str, Weights] = {}
        self._visited: dict[str, Weights] = {}
        """Per client and segment: one more than the round of the last visit; 0 for never."""
        self._round = 0

    def weigh(self, item: Contribution, current: Weights) -> dict[str, float]:
        return dict.fromkeys(("heads", "units", "shared"), 1 / self.clients)

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        memory = self._memory.setdefault(item.client, {})
        for name in item.delta:
            if name not in memory:
                memory[name] = torch.zeros_like(current[name])
        scatter(item.delta, memory, self.config, item.spec)
        self.count_holders(item)
        self._stamp(item)
        return self.weigh(item, current)

    def _stamp(self, item: Contribution) -> None:
        visited, now = self._visited.setdefault(item.client, {}), float(self._round + 1)
        for key in dict.fromkeys(segmented(self.config)[name].key for name in item.delta):
            kind, length = key.partition(".")[0], per_block(self.config, key)
            if kind == "rows":  # of a token table
                rows, length = item.spec.rows, self.config.vocab
                at = torch.arange(length) if rows is None else torch.tensor(rows, dtype=torch.int64)
            elif kind in ("heads", "units"):
                at = held(item.spec, key)
            else:
                visited[key] = torch.tensor(now)
                continue
            visited.setdefault(key, torch.zeros(length)).index_fill_(0, at, now)

    def apply(self, current: Weights) -> Weights:
        updated = dict(current)
        for name in dict.fromkeys(name for memory in self._memory.values() for name in memory):
            updated[name] = current[name] - self._step(name, current[name])
        self._round += 1
        self.clear()
        return updated

    def _step(self, name: str, like: Tensor) -> Tensor:
        key = segmented(self.config)[name].key
        total, known = torch.zeros_like(like), torch.zeros(())
        for client, memory in self._memory.items():
            if name not in memory:
                continue
            live = self._live(self._visited[client][key])
            known = known + live
            if self.max_age is None:
                total += memory[name]  # zero where the client never was
            else:
                total.addcmul_(memory[name], self._expand(live, name))
        if self.denominator == "clients":
            return total / self.clients
        return total / self._expand(known.clamp_min(1), name)

    def _expand(self, values: Tensor, name: str) -> Tensor:
        """Numbers of segments in a shape that divides or multiplies the tensor."""
        place = segmented(self.config)[name]
        if place.dim is None:
            return values
        values = values.repeat_interleave(place.width)
        return values if place.axes == 1 else values.unsqueeze(1 - place.dim)

    def _live(self, visited: Tensor) -> Tensor:
        """1 where the memory counts: visited at all, and not too long ago."""
        oldest = 1 if self.max_age is None else max(1, self._round + 1 - self.max_age)
        return (visited >= oldest).float()

    # ------------------------------------------------------------ checkpoint

    def take_over(self, other: Self) -> None:
        super().take_over(other)
        self._memory, self._visited, self._round = other._memory, other._visited, other._round

    def state(self) -> dict[str, Weights]:
        groups = {f"memory.{client}": memory for client, memory in self._memory.items()}
        groups |= {f"visited.{client}": visited for client, visited in self._visited.items()}
        return {**super().state(), **groups, "round": {"round": torch.tensor(self._round)}}

    def load_state(self, state: Mapping[str, Weights]) -> None:
        super().load_state(state)
        self._memory, self._visited = {}, {}
        for group, values in state.items():
            kind, _, client = group.partition(".")
            copied = {name: tensor.clone() for name, tensor in values.items()}
            if kind == "memory":
                self._memory[client] = copied
            elif kind == "visited":
                self._visited[client] = copied
        self._round = int(state["round"]["round"]) if "round" in state else 0

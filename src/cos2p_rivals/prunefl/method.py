"""PruneFL (Jiang et al., IEEE TNNLS 2022): one mask for the whole fleet, moved now and then to where gradients are.

Section IV of the paper: every few rounds the server ranks parameters by squared gradient per time they cost. The
weakest by magnitude may be removed, at most a share ρ at a time; the best of the others take their places. Here a
segment is a head or a unit, heads and units are ranked apart over all blocks, and a device holds the N_H and N_U best,
so that the sets of small devices lie inside those of large ones.

From the public code: ρ = 0.3·0.5^(q/10000), removal by magnitude, growth by g², the square of the gradient summed over
a task's steps, averages weighted by samples. Ours, because there no device has a budget: a set's size is the budget
(`stop = "rate"` adds the paper's rule, to take no segment whose g² per time is below Γ); the first ranking comes from
`initial_rounds` rounds with random submodels instead of one device that trains the full model; before each
reconfiguration devices give up their weakest ρ for a round to try others at random, since gradients of absent
segments need them present; what was never tried counts as the median of its block; a period of 10 rounds (officially
50, in runs of thousands).

The model that is evaluated is the pruned one, as in the paper: what the largest set holds, at the scale of the full
model that the training-time rescaling made the devices train for. Nobody uses the other segments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.methods import (
    Assignment,
    AveragingMethod,
    AveragingSettings,
    Call,
    ExtendedSettings,
    Order,
    RunContext,
    Settings,
    Trainer,
    Update,
    Weights,
    layout,
    random_spec,
    segment_costs,
    segment_norms,
    torch_rng,
    width_spec,
)
from cos2p_rivals.prunefl.device import PruneFlTrainer
from cos2p_rivals.prunefl.reconfiguration import fill_unknown, reconfigure, strongest, worth_their_time
from cos2p_rivals.segment_reports import reported
from cos2p_rivals.segments import Kind, by_block, scale_outputs

Sets = dict[int, list[int]]
"""By size: the numbers of the segments that a device of this budget holds."""


class PruneFlSettings(AveragingSettings):
    initial_rounds: int = Field(default=3, ge=1, description="Rounds with random submodels before the first ranking.")
    period: int = Field(default=10, ge=1, description="Rounds between reconfigurations, 5 to 50.")
    turnover: float = Field(default=0.3, ge=0, le=1, description="ρ: largest share of a set replaced at once.")
    half_life: float = Field(default=10_000, gt=0, description="Rounds after which ρ is halved.")
    stop: Literal["budget", "rate"] = Field(
        default="budget", description="`rate`: take no segment whose g² per time is below the average Γ."
    )


def never_cut(config: ModelConfig) -> int:
    """Scalars of the blocks that belong to no segment: they always take their time."""
    inside = (entry for name, entry in layout(config).items() if name.startswith("blocks."))
    return sum(math.prod(entry.shape) for entry in inside if entry.cut is None)


class PruneFl(AveragingMethod):
    name: ClassVar[str] = "prunefl"
    title: ClassVar[str] = "PruneFL"
    settings_type: ClassVar[type[Settings]] = PruneFlSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (PruneFlTrainer,)
    settings: PruneFlSettings

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        config = context.config
        self._segments: dict[Kind, int] = {"heads": config.groups, "units": config.mlp}
        self._sizes: dict[Kind, set[int]] = {
            "heads": {budget.heads for budget in self.budgets.values()},
            "units": {budget.units for budget in self.budgets.values()},
        }
        self.sets: dict[Kind, Sets] = {}
        """Empty until the first ranking."""
        self.next = self.settings.initial_rounds
        """Version at which the sets are chosen anew."""
        self._sums, self._weights, self._known = (
            {kind: torch.full((config.depth * count,), start) for kind, count in self._segments.items()}
            for start in (0.0, 0.0, torch.nan)
        )

    # ------------------------------------------------------------ which submodel

    def assign(self, call: Call) -> Assignment:
        if call.version >= self.next:
            self.reconfigure(call.weights, call.version)
            self.next = call.version + self.settings.period
        return Assignment(self._spec(call), ExtendedSettings(local=self.local(call.member)), PruneFlTrainer)

    def _spec(self, call: Call) -> SubmodelSpec:
        config, budget = self.context.config, self.budgets[call.member.name]
        rng = torch_rng(self.context.seed, "prunefl", call.member.name, call.attempt)
        if not self.sets:
            return random_spec(config, budget, rng)
        chosen: dict[Kind, list[int]] = {
            "heads": self.sets["heads"][budget.heads],
            "units": self.sets["units"][budget.units],
        }
        if call.version == self.next - 1:
            chosen = {kind: self._probe(kind, held, call.version, rng) for kind, held in chosen.items()}
        return width_spec(*(by_block(chosen[kind], config.depth, count) for kind, count in self._segments.items()))

    def _probe(self, kind: Kind, held: list[int], version: int, rng: torch.Generator) -> list[int]:
        """Give up the weakest ρ, one segment at least, for others at random: their gradients are to be seen."""
        everything = self.context.config.depth * self._segments[kind]
        others = sorted(set(range(everything)) - set(held))
        count = min(len(others), len(held), max(1, int(self.turnover(version) * len(held))))
        if count == 0:
            return held
        estimate = self._estimate(kind).tolist()
        stay = sorted(held, key=lambda number: (-estimate[number], number))[: len(held) - count]
        tried = torch.randperm(len(others), generator=rng)[:count].tolist()
        return [*stay, *(others[i] for i in tried)]

    def turnover(self, version: int) -> float:
        """ρ of a round."""
        return float(self.settings.turnover * 0.5 ** (version / self.settings.half_life))

    # ------------------------------------------------------------ reconfiguration

    def accepted(self, order: Order, update: Update) -> None:
        for kind in self._segments:
            numbers, values = reported(update, self.context.config, kind)
            self._sums[kind][numbers] += values * update.samples
            self._weights[kind][numbers] += update.samples

    def reconfigure(self, weights: Weights, version: int) -> None:
        """Choose the sets anew from what was reported since the last time; older reports stand for what was not."""
        for kind in self._segments:
            seen = self._weights[kind] > 0
            fresh = self._sums[kind] / self._weights[kind].clamp_min(1)
            self._known[kind] = torch.where(seen, fresh, self._known[kind])
            self._sums[kind], self._weights[kind] = torch.zeros_like(fresh), torch.zeros_like(fresh)
        admitted = self._admitted(weights, version) if self.settings.stop == "rate" else None
        self.sets = {
            kind: reconfigure(
                self._sizes[kind],
                self.sets.get(kind),
                self._estimate(kind),
                self._magnitude(weights, kind),
                self.turnover(version),
                None if admitted is None else admitted[kind],
            )
            for kind in self._segments
        }

    def _estimate(self, kind: Kind) -> Tensor:
        """g² of every segment. Those of one kind cost the same time, so this is also the order of g² per time."""
        return fill_unknown(self._known[kind], self._segments[kind])

    def _magnitude(self, weights: Weights, kind: Kind) -> Tensor:
        blocks = range(self.context.config.depth)
        norms = segment_norms({n: w for n, w in weights.items() if n.startswith("blocks.")}, self.context.config)
        return torch.cat([norms[f"{kind}.{block}"] for block in blocks])

    def _admitted(self, weights: Weights, version: int) -> dict[Kind, list[int]]:
        """The paper's rule, over heads and units together; a segment's time is its number of scalars."""
        config = self.context.config
        offset = config.depth * config.groups
        head, unit = segment_costs(config)
        gain = torch.cat((self._estimate("heads"), self._estimate("units")))
        time = torch.cat((torch.full((offset,), float(head)), torch.full((len(gain) - offset,), float(unit))))
        kept: list[int] = []
        for kind, sets in self.sets.items():
            largest = max(sets)
            stay = strongest(sets[largest], self._magnitude(weights, kind), largest, self.turnover(version))
            kept += stay if kind == "heads" else [offset + number for number in stay]
        taken = [*kept, *worth_their_time(gain, time, kept, float(never_cut(config)))]
        return {
            "heads": [number for number in taken if number < offset],
            "units": [number - offset for number in taken if number >= offset],
        }

    # ------------------------------------------------------------ the pruned model

    def evaluated_weights(self, weights: Weights) -> Weights:
        if not self.sets:
            return weights
        config, factors = self.context.config, {}
        for kind, sets in self.sets.items():
            count, largest = self._segments[kind], sets[max(sets)]
            for block, kept in enumerate(by_block(largest, config.depth, count)):
                factor = torch.zeros(count)
                factor[kept] = count / max(1, len(kept)) if self.settings.rescale else 1.0
                factors[f"{kind}.{block}"] = factor
        return scale_outputs(weights, factors, config)

    # ------------------------------------------------------------ checkpoint

    def state(self) -> tuple[dict[str, Any], Weights]:
        sets = {kind: {str(size): numbers for size, numbers in sets.items()} for kind, sets in self.sets.items()}
        groups = {"sums": self._sums, "weights": self._weights, "known": self._known}
        tensors = {f"{group}/{kind}": t.clone() for group, kinds in groups.items() for kind, t in kinds.items()}
        return {"sets": sets, "next": self.next}, tensors

    def load_state(self, values: Mapping[str, Any], tensors: Weights) -> None:
        self.next = int(values["next"])
        self.sets = {
            kind: {int(size): list(numbers) for size, numbers in values["sets"][kind].items()}
            for kind in self._segments
            if kind in values["sets"]
        }
        self._sums, self._weights, self._known = (
            {kind: tensors[f"{group}/{kind}"].clone() for kind in self._segments}
            for group in ("sums", "weights", "known")
        )

"""Q-ViT on the server: codes become steps of the full precision model, then are averaged."""

from __future__ import annotations

from dataclasses import replace

from cos2p.methods import Contribution, UpdateRefused, Weights
from cos2p_rivals.qvit.quantizers import from_codes, on_grid, unpack_codes
from cos2p_rivals.qvit.wire import code_bits, code_shapes, step_name
from cos2p_rivals.side_tensors import SideMerge

LARGEST_STEP = 16.0
"""Bound of the logarithm of a step, up or down; sensible ones are between −12 and 6."""


class CodesMerge(SideMerge):
    """Decodes the weights that came as codes, then averages."""

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        self._check_steps(item)
        if "codes" not in item.extras:
            return item
        return replace(item, delta={**item.delta, **self.decoded(item)})

    def _check_steps(self, item: Contribution) -> None:
        """A step is stored as its logarithm; one that is let grow a little in every round ends beyond all numbers."""
        for name, delta in item.delta.items():
            if name.endswith(".step") and delta.numel():
                rows = self.table[name].rows(self.config, item.spec)
                before = item.received[name] if rows is None else item.received[name].index_select(0, rows)
                largest = float((before - delta).abs().max())
                if largest > LARGEST_STEP:
                    raise UpdateRefused(f"{name} becomes e^±{largest:.3g}; at most e^±{LARGEST_STEP:g} is let in")

    def decoded(self, item: Contribution) -> Weights:
        """By how much the quantised weights moved, from those received to those sent."""
        width, shapes = int(item.settings["bits"]), code_shapes(self.config, item.spec)
        bits = code_bits(shapes, width)
        received = item.given(self.config, shapes)
        delta: Weights = {}
        for name, codes in unpack_codes(item.extras["codes"], shapes, bits).items():
            step = step_name(name, width)
            rows = self.table[step].rows(self.config, item.spec)
            before = item.received[step] if rows is None else item.received[step].index_select(0, rows)
            start = on_grid(received[name], before, bits[name])
            delta[name] = start - from_codes(codes, before - item.delta[step], bits[name])
        return delta

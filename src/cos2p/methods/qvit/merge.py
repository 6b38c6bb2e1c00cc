"""Q-ViT on the server: codes become steps of the full precision model, then are averaged."""

from __future__ import annotations

from dataclasses import replace

from cos2p.aggregation.merge import Contribution
from cos2p.methods.qvit.quantizers import from_codes, on_grid, unpack_codes
from cos2p.methods.qvit.wire import code_bits, code_shapes, step_name
from cos2p.methods.side_tensors import SideMerge
from cos2p.models.layout import Weights
from cos2p.submodel.slicing import take, window_slices


class CodesMerge(SideMerge):
    """Decodes the weights that came as codes, then averages."""

    def add(self, item: Contribution, current: Weights) -> dict[str, float]:
        if "codes" in item.extras:
            item = replace(item, delta={**item.delta, **self.decoded(item)})
        return super().add(item, current)

    def decoded(self, item: Contribution) -> Weights:
        """By how much the quantised weights moved, from those received to those sent."""
        width, shapes = int(item.settings["bits"]), code_shapes(self.config, item.spec)
        bits = code_bits(shapes, width)
        slices = window_slices(self.config, item.spec)
        received = take(item.received, {name: slices[name] for name in shapes})
        delta: Weights = {}
        for name, codes in unpack_codes(item.extras["codes"], shapes, bits).items():
            step = step_name(name, width)
            rows = self.table[step].rows(self.config, item.spec)
            before = item.received[step] if rows is None else item.received[step].index_select(0, rows)
            start = on_grid(received[name], before, bits[name])
            delta[name] = start - from_codes(codes, before - item.delta[step], bits[name])
        return delta

"""What a task of a text model takes of the full model's peak, at every rate and place: 1.3 R + 0.03 is the goal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.box import MARKDOWN
from rich.table import Table

from benchmarks.fullsize.tasks import Measured, Record, announce
from benchmarks.measure import measure
from cos2p.costs.fitting import make_spec
from cos2p.costs.ledger import peak
from cos2p.costs.shape import Workload
from cos2p.models.config import ModelConfig
from cos2p.models.sizes import model_config
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.rates import cut

RATES = (0.5625, 0.25, 0.0625, 0.0156)
KINDS = ("rows", "frozen", "whole")


@dataclass(frozen=True)
class TextModel:
    name: str
    config: ModelConfig
    batch: int
    tokens: int
    most: float
    """Bytes of a submodel that is still measured, and not only predicted."""

    @property
    def workload(self) -> Workload:
        return Workload(batch=self.batch, tokens=self.tokens, threads=1)

    @property
    def rows(self) -> tuple[int, ...]:
        """As many different tokens as one batch can have, and the one that fills up."""
        return tuple(range(self.batch * self.tokens + 1))

    def spec(self, rate: float, start: int, kind: str) -> SubmodelSpec:
        plain = make_spec(self.config, rate, start, seed=0)
        return plain if kind == "whole" else replace(plain, rows=self.rows, fixed_embeddings=kind == "frozen")

    def cells(self) -> Iterator[tuple[float, str, int, str]]:
        for rate in RATES:
            top = self.config.depth - cut(self.config, rate).blocks
            for place, start in (("bottom", 0), ("middle", top // 2), ("top", top)):
                for kind in KINDS:
                    yield rate, place, start, kind


MINILM = ModelConfig(
    "bert", dim=384, depth=6, heads=12, mlp=1536, classes=77, vocab=30522, max_tokens=512, token_types=2
)
MODELS = (
    TextModel("minilm", MINILM, batch=16, tokens=32, most=1e9),
    TextModel("llama-1.1b-ledger", model_config("llama-1.1b"), batch=1, tokens=128, most=0.5e9),
)


def run(record: Record) -> None:
    """Measure what fits; every cell in a process of its own, five processor seconds and more."""
    for text in MODELS:
        for rate, place, start, kind in text.cells():
            spec = text.spec(rate, start, kind)
            predicted = peak(text.config, spec, text.workload).total
            if predicted > text.most or record.has(text.name, kind, place, text.batch, rate):
                continue
            announce(f"{text.name} {kind} R = {rate:g} at the {place}")
            found = measure(text.config, spec, text.workload, steps=2)
            window = (spec.frozen, spec.top)
            record.add(
                Measured(
                    text.name, kind, place, 1, rate, text.batch, window, predicted, found.peak_bytes, found.cpu_seconds,
                    0, 0,
                )
            )  # fmt: skip


def table(text: TextModel, record: Record) -> Table:
    """Shares of the full model's predicted peak; measured bytes over predicted ones in brackets."""
    full = peak(text.config, SubmodelSpec.full(text.config), text.workload).total
    shown = Table(
        *("R", "goal", "window", *KINDS), box=MARKDOWN, title=f"{text.name}: {full / 1e6:.0f} MB", title_justify="left"
    )
    known = {entry.key: entry for entry in record.known}
    for rate in RATES:
        for place in ("bottom", "middle", "top"):
            cells = []
            for r, p, start, kind in text.cells():
                if (r, p) != (rate, place):
                    continue
                predicted = peak(text.config, text.spec(rate, start, kind), text.workload).total
                entry = known.get((text.name, kind, place, text.batch, rate))
                ratio = f" [{entry.peak / predicted:.2f}]" if entry else ""
                cells.append(f"{predicted / full:.3f}{ratio}")
            shown.add_row(f"{rate:g}", f"{1.3 * rate + 0.03:.3f}", place, *cells)
    return shown

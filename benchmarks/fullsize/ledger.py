"""The vision runs by the ledger alone, at the recipes' own batches: peak, FLOPs and bytes of each kind of device.

With masks, as in the first rounds, and without, as in all later ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from rich.box import MARKDOWN
from rich.table import Table

from benchmarks.fullsize.tasks import tier_of
from cos2p.messages import tensor_bytes
from cos2p.methods import build_method, make_contract
from cos2p.methods.base import Member, RunContext
from cos2p.models.layout import layout
from cos2p.models.sizes import model_config
from cos2p.recipe import Recipe, recipe_values, switch_method
from cos2p.runtime.run_setup import fleet_devices
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server

SAMPLES = 512
"""A device's samples: the time of a task is in proportion to them, its peak is not."""


@dataclass(frozen=True)
class Row:
    method: str
    tier: str
    devices: int
    rate: float
    batch: int
    peak: float
    flops: float
    down: int
    up: int


def predict(name: str, method: str, masks: bool) -> list[Row]:
    values = recipe_values(name)
    values["fleet"]["enforce_memory"] = False
    if not masks:
        values["method"]["masks"]["epochs"] = 0
    switch_method(values, method)
    recipe = Recipe.parse(values, name)
    config = model_config(recipe.model.size)
    members = {
        device.name: Member(device.name, device, 1.0 if group.rate == "auto" else group.rate, group.batch, SAMPLES)
        for device, group in fleet_devices(recipe)
    }
    context = RunContext(config, members, recipe.training, recipe.schedule, recipe.seed, enforce_memory=False)
    weights = {name: torch.empty(entry.shape, device="meta") for name, entry in layout(config).items()}
    server = Server(context, build_method(recipe.method, context), weights)
    kinds, rows = Counter(map(tier_of, members)), dict[str, Row]()
    for client in members:
        for effect in server.handle(ClientJoined(client)):
            if isinstance(effect, Send) and tier_of(client) not in rows:
                order, member = effect.order, members[client]
                trainer = make_contract(config, order)
                work = trainer.flops(SAMPLES, 0)
                frozen = trainer.sent_frozen(weights)
                rows[tier_of(client)] = Row(
                    method if masks or method != "cos2p" else "cos2p, masks known",
                    tier_of(client), kinds[tier_of(client)], member.rate, member.batch,
                    trainer.memory(SAMPLES).total, work.prefix + work.masks + work.training,
                    tensor_bytes(trainer.sent(weights), frozen), trainer.wire_upload(),
                )  # fmt: skip
    return list(rows.values())


def table(name: str) -> Table:
    shown = Table(
        *("method", "device", "n", "R", "batch", "peak MB", "TFLOP a task", "down MB", "up MB"),
        box=MARKDOWN, title=name, title_justify="left",
    )  # fmt: skip
    forms = [("cos2p", True), ("cos2p", False), ("fedrolex", True)]
    rows = [row for method, masks in forms for row in predict(name, method, masks)]
    for row in sorted(rows, key=lambda row: (row.rate, row.batch, row.method)):
        shown.add_row(
            *(row.method, row.tier, str(row.devices), f"{row.rate:g}", str(row.batch), f"{row.peak / 1e6:.0f}"),
            *(f"{row.flops / 1e12:.1f}", f"{row.down / 1e6:.1f}", f"{row.up / 1e6:.1f}"),
        )
    totals = {method: _total([row for row in rows if row.method == method]) for method in {row.method for row in rows}}
    rival = totals.pop("fedrolex")
    for method, total in sorted(totals.items()):
        memory, work, down, up = (ours / theirs - 1 for ours, theirs in zip(total, rival, strict=True))
        shares = (f"{share:+.0%}" for share in (memory, work, down, up))
        shown.add_row(f"{method} / fedrolex", "fleet", "", "", "", *shares)
    return shown


def _total(rows: list[Row]) -> tuple[float, float, float, float]:
    def over(field: str) -> float:
        return sum(row.devices * float(getattr(row, field)) for row in rows)

    return over("peak"), over("flops"), over("down"), over("up")

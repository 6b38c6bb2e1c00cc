"""One task of one device, in a process of its own with the device's cap: what it took, and what travelled for it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from cos2p.costs.ledger import Ledger
from cos2p.fleet.device.jobs import Job, Setup
from cos2p.fleet.device.training import TrainingProcess
from cos2p.messages import Order
from cos2p.methods import make_contract
from cos2p.models.layout import Weights
from cos2p.runtime.run_setup import RunSetup
from cos2p.server.protocol import ClientJoined, Send
from cos2p.server.server import Server


@dataclass(frozen=True)
class Measured:
    """A line of the record."""

    part: str
    method: str
    tier: str
    devices: int
    """How many of the fleet are of this kind."""
    rate: float
    batch: int
    window: tuple[int, int]
    predicted: int
    """Bytes of the worst moment, by the ledger."""
    peak: int
    """Bytes over the idle process, measured."""
    cpu_seconds: float
    down: int
    up: int
    failure: str = ""

    @property
    def key(self) -> tuple[str, str, str, int, float]:
        return self.part, self.method, self.tier, self.batch, self.rate


class Record:
    """A JSON line for each task that was measured; what is in it is not measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        values = [json.loads(line) for line in lines]
        self.known = [Measured(**{**value, "window": tuple(value["window"])}) for value in values]

    def has(self, *key: object) -> bool:
        return any(entry.key == key for entry in self.known)

    def add(self, entry: Measured) -> None:
        self.known.append(entry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(entry)) + "\n")


def first_orders(run_setup: RunSetup, weights: Weights) -> tuple[Server, Iterator[Order]]:
    """What every device of the fleet is given in the first round."""
    server = Server(run_setup.context, run_setup.method(), weights)
    effects = [effect for client in run_setup.context.members for effect in server.handle(ClientJoined(client))]
    return server, (effect.order for effect in effects if isinstance(effect, Send))


def measure(
    part: str,
    run_setup: RunSetup,
    server: Server,
    order: Order,
    devices: int,
    cap: int = 0,
    deliver: Callable[[Path], None] = lambda update: None,
) -> Measured:
    """Have the task done, and its update delivered. One that does not fit its cap is recorded with the reason."""
    member, contract = run_setup.context.members[order.client], make_contract(run_setup.config, order)
    ledger: Ledger = contract.memory(member.samples)
    setup = Setup(
        member.name, run_setup.recipe.model_dump(mode="json"), run_setup.config.to_dict(),
        list(run_setup.bundle.class_names),
        trusted=True, memory=cap, threads=1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        files = Job(*(str(Path(folder) / name) for name in ("task", "update", "remembered")))
        server.orders.write_task(order, Path(files.task))
        process = TrainingProcess(setup, Path(folder) / "training.log")
        try:
            outcome = process.train(files)
        finally:
            process.stop()
        update = Path(files.update)
        if not outcome.failure:
            deliver(update)
        return Measured(
            part=part,
            method=str(run_setup.recipe.method["name"]),
            tier=tier_of(order.client),
            devices=devices,
            rate=member.rate,
            batch=member.batch,
            window=(order.spec.frozen, order.spec.top),
            predicted=ledger.total,
            peak=int(outcome.numbers.get("peak", 0)),
            cpu_seconds=round(float(outcome.numbers.get("cpu_seconds", 0.0)), 2),
            down=Path(files.task).stat().st_size,
            up=update.stat().st_size if update.exists() else 0,
            failure=outcome.failure,
        )


def tier_of(client: str) -> str:
    """Devices of a kind are numbered through: `jetson-agx-orin-64gb-3`."""
    return client.rpartition("-")[0]


def announce(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {what}", flush=True)

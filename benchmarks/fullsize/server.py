"""How many copies of the 1.1 B model its server holds while devices are late, and whether a checkpoint stops it.

    python -m benchmarks.fullsize.server [--depth 22] [--devices 4] [--rate 0.25] [--rounds 3]

Four devices of R = .25; every round one of them is a version late. Tasks go into files, updates come as files, older
versions are mapped, a checkpoint is written next to the run after every round. Memory is what the process itself has
(RssAnon): pages of files are the system's to take back. The updates are made up in this process too; what is held
while one is made is told apart, since on a fleet that is the devices' memory. With less memory than three copies, take
fewer blocks.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import torch

from cos2p.aggregation.settings import ScheduleSettings
from cos2p.devices.device import device
from cos2p.fleet.server.driver import read_update
from cos2p.messages import Order, Update
from cos2p.methods import build_method
from cos2p.methods.base import Member, RunContext
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights, layout
from cos2p.models.sizes import model_config
from cos2p.models.spec import to_bits
from cos2p.server.protocol import ClientJoined, Effect, Send
from cos2p.server.server import Server
from cos2p.submodel.slicing import trained_shapes
from cos2p.tracking.checkpoint import BackgroundWriter, Checkpoint
from cos2p.training.settings import TrainingSettings

GB = 1e9
SERVER, DEVICE = "the server at work", "next to it an update is made up"


class Memory:
    """The most that this process had in each kind of moment, looked at fifty times a second."""

    def __init__(self) -> None:
        self.idle = _anonymous()
        self.peaks: dict[str, int] = {}
        self._moment = SERVER
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.look()

    def look(self) -> None:
        self.peaks[self._moment] = max(self.peaks.get(self._moment, 0), _anonymous() - self.idle)

    def begin(self, moment: str) -> None:
        """From now on it is this moment."""
        self.look()
        self._moment = moment
        self.look()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Play:
    """The devices' side: each trains nothing, and says that every scalar moved by a thousandth."""

    def __init__(self, config: ModelConfig, devices: int, rate: float, folder: Path, memory: Memory) -> None:
        members = {}
        for number in range(devices):
            name = f"board-{number}"
            rows = to_bits(range(number, config.vocab, 8))
            members[name] = Member(name, device("jetson-xavier-nx-8gb", name=name), rate, 1, 4, 0, rows)
        schedule = ScheduleSettings(rounds=1000, mu=(devices - 1) / devices, t_clk=0.0, redispatch="at-once")
        context = RunContext(config, members, TrainingSettings(), schedule, 0, enforce_memory=False)
        weights: Weights = {name: torch.full(entry.shape, 0.02) for name, entry in layout(config).items()}
        settings = {"name": "cos2p", "masks": {"heads": "fixed", "units": "fixed"}}
        self.server = Server(context, build_method(settings, context), weights)
        self.server.versions.spool = folder
        self.folder, self.orders = folder, dict[str, Order]()
        self.sent, self.saved, self.writer, self.memory = 0, 0, BackgroundWriter(), memory

    def send(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                path = self.folder / effect.order.client
                self.server.orders.write_task(effect.order, path)
                self.sent += path.stat().st_size
                self.orders[effect.order.client] = effect.order

    def join(self) -> None:
        for name in list(self.server.context.members):
            self.send(self.server.handle(ClientJoined(name)))

    def answer(self, client: str) -> None:
        order, config = self.orders.pop(client), self.server.context.config
        shapes = trained_shapes(config, order.spec)
        self.memory.begin(DEVICE)
        delta = {name: torch.full(shape, 1e-3) for name, shape in shapes.items()}
        path = self.folder / "update"
        Update(client, order.task, order.version, order.spec, delta, 4).write(path)  # as a device does
        del delta
        self.memory.begin(SERVER)
        self.send(self.server.receive(client, read_update(path)))

    def checkpoint(self) -> None:
        """After a round, as `RunFolder` does it: next to the run, and a newer version waits for the one before."""
        server = self.server
        if server.versions.current == self.saved or server.aggregator.merge.holders:
            return
        began = time.monotonic()
        self.writer.wait()
        waited = time.monotonic() - began
        values, groups = server.state()
        growing = {group for group in groups if not group.startswith("version.")}
        self.writer.write(Checkpoint(values, groups).snapshot(growing), self.folder / "checkpoint")
        self.saved, stopped = server.versions.current, time.monotonic() - began - waited
        print(
            f"version {self.saved}, {len(server.versions.held)} versions held: the checkpoint stopped the run for "
            f"{stopped:.2f} s, after {waited:.1f} s for the one before",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--depth", type=int, default=22, help="blocks of the model")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rate", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    chosen = parser.parse_args()
    config = replace(model_config("llama-1.1b"), depth=chosen.depth)
    torch.set_num_threads(1)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        memory = Memory()
        play = Play(config, chosen.devices, chosen.rate, Path(name), memory)
        size = sum(tensor.nbytes for tensor in play.server.weights.values())
        print(f"{size / GB:.2f} GB a copy of the model, {chosen.devices} devices of R = {chosen.rate:g}", flush=True)
        play.join()
        for number in range(chosen.rounds):
            late = f"board-{number % chosen.devices}"
            for client in sorted(set(play.orders) - {late}):
                play.answer(client)
                play.checkpoint()
        play.writer.wait()
        print(f"the last checkpoint took {play.writer.seconds:.1f} s to write, next to the run")
        memory.stop()
        for moment, peak in memory.peaks.items():
            print(f"{moment}: peak {peak / GB:.2f} GB, {peak / size:.2f} copies")
        print(f"{play.sent / GB:.2f} GB of tasks were written")


if __name__ == "__main__":
    main()

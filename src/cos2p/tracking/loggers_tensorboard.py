"""TensorBoard: RUN/tensorboard/, one file of events. Look at it with `tensorboard --logdir RUN`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cos2p.errors import MissingExtra
from cos2p.tracking.event_kinds import Started
from cos2p.tracking.files import explained
from cos2p.tracking.loggers import Point

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLog:
    """The step is the round. TensorBoard's "relative" time is the run's own, virtual in a simulation."""

    def __init__(self, folder: Path) -> None:
        try:
            import tensorboard as _  # noqa: F401  before the run begins, not after
        except ImportError:
            raise MissingExtra("--tensorboard needs TensorBoard: pip install 'cos2p[tensorboard]'") from None
        self.folder = folder / "tensorboard"
        self._writer: SummaryWriter | None = None

    def begin(self, started: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._end()
        with explained(self.folder):
            # What an earlier process wrote comes again, from the run's own log.
            for earlier in self.folder.glob("events.out.tfevents.*"):
                earlier.unlink()
            self._writer = SummaryWriter(str(self.folder), flush_secs=10)

    def add(self, points: Iterable[Point]) -> None:
        assert self._writer is not None
        with explained(self.folder):
            for point in points:
                self._writer.add_scalar(point.name, point.value, point.step, walltime=point.seconds)

    def close(self, outcome: str) -> None:
        self._end()

    def _end(self) -> None:
        if self._writer is not None:
            with explained(self.folder):
                self._writer.close()
            self._writer = None

"""Co-S²P with other moments of aggregation."""

from __future__ import annotations

from typing import ClassVar

from cos2p.aggregation.settings import Redispatch
from cos2p.aggregation.triggers import Trigger
from cos2p.methods.cos2p.method import Cos2p


class Cos2pAsync(Cos2p):
    """Co-S²P(Async.): every update makes a new version at once."""

    name: ClassVar[str] = "cos2p-async"
    title: ClassVar[str] = "Co-S²P (Async.)"

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.asynchronous(), "at-once"


class Cos2pSync(Cos2p):
    """Co-S²P without its semi-asynchronous part: the server waits for everybody."""

    name: ClassVar[str] = "cos2p-sync"
    title: ClassVar[str] = "Co-S²P (Sync.)"

    def rules(self) -> tuple[Trigger, Redispatch]:
        return Trigger.synchronous(), "at-aggregation"

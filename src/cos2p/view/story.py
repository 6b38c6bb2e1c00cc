"""What the events of one run add up to, part by part."""

from __future__ import annotations

from cos2p.view.curves import Evaluations, Rounds, Updates
from cos2p.view.lanes import Lanes
from cos2p.view.log import Event
from cos2p.view.masks import MaskBook
from cos2p.view.roster import Roster
from cos2p.view.segments import Coverage
from cos2p.view.troubles import Troubles
from cos2p.view.usage import Usage


class Story:
    """Feed it the events in order; each part then has its share of the document."""

    def __init__(self, deadline: float | None = None) -> None:
        self.roster = Roster()
        self.facts: Event = {}
        self.version = 0
        self.merged = 0
        self.now = 0.0
        self.ending = ""
        self.rounds, self.evaluations, self.updates = Rounds(), Evaluations(), Updates()
        self.lanes, self.usage = Lanes(self.roster, deadline), Usage(self.roster)
        self.troubles = Troubles(self.roster)
        self.coverage: Coverage | None = None
        self.masks: MaskBook | None = None

    def feed(self, event: Event) -> None:
        kind = event["kind"]
        self.now = max(self.now, float(event.get("t") or 0.0))
        for part in (self.roster, self.lanes, self.usage, self.troubles):
            part.feed(event)
        if kind == "started":
            self.facts = event
            self.coverage = Coverage(event["model"])
            self.masks = MaskBook(self.coverage.tracks)
        elif kind == "merged":
            self._merged(event)
        elif kind == "aggregated":
            self._aggregated(event)
        elif kind == "evaluated":
            self.evaluations.evaluated(event)
        elif kind == "finished":
            self.evaluations.evaluated(event)
            self.ending = str(event.get("reason") or "done")

    def _merged(self, event: Event) -> None:
        client = self.roster.index(event["client"])
        self.merged += 1
        self.updates.merged(event, client, self.version)
        self.rounds.merged(event, client)
        if self.coverage is not None and self.masks is not None:
            self.coverage.merged(event, client, self.version + 1)
            self.masks.merged(event, client, self.version + 1)

    def _aggregated(self, event: Event) -> None:
        self.version = event["version"]
        ru = self.usage.close_round(event["t"])
        self.rounds.aggregated(event, ru, self.usage.up.total(), self.usage.down.total())
        self.evaluations.aggregated(event)
        if self.coverage is not None:
            self.usage.weigh(self.updates.weigh(self.coverage.aggregated(event)))

    @property
    def share(self) -> float:
        """How much of the run is done, by the limit that is nearer."""
        if self.ending:
            return 1.0
        plans = ((self.version, self.facts.get("rounds")), (self.merged, self.facts.get("updates")))
        return min(1.0, max((done / goal for done, goal in plans if goal), default=0.0))

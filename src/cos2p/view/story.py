"""What the events of one run add up to, part by part."""

from __future__ import annotations

from cos2p.tracking.event_kinds import Aggregated, Evaluated, Event, Finished, Merged, Started, Stopped
from cos2p.tracking.figures import RunFigures
from cos2p.view.curves import Evaluations, Rounds, Updates
from cos2p.view.devices import Devices
from cos2p.view.lanes import Lanes
from cos2p.view.masks import MaskBook
from cos2p.view.roster import Roster
from cos2p.view.segments import Coverage
from cos2p.view.troubles import Troubles


class Story:
    """Feed it the events in order; each part then has its share of the document."""

    def __init__(self, deadline: float | None = None) -> None:
        self.roster = Roster()
        self.figures = RunFigures()
        self.rounds, self.evaluations, self.updates = Rounds(), Evaluations(), Updates()
        self.lanes, self.devices, self.troubles = Lanes(self.roster, deadline), Devices(), Troubles(self.roster)
        self.coverage: Coverage | None = None
        self.masks: MaskBook | None = None
        self.stopped = ""
        """Why a fleet's server gave up, if that was the last thing it said."""

    def feed(self, event: Event) -> None:
        for part in (self.roster, self.lanes, self.troubles):
            part.feed(event)
        self.stopped = event.reason if isinstance(event, Stopped) else ""
        if isinstance(event, Merged):
            self._merged(event)
        self.figures(event)
        if isinstance(event, Started):
            self.coverage = Coverage(event.model)
            self.masks = MaskBook(self.coverage.tracks)
        elif isinstance(event, Aggregated):
            self._aggregated(event)
        elif isinstance(event, Evaluated | Finished):
            self.evaluations.evaluated(event)

    def _merged(self, event: Merged) -> None:
        client, version = self.roster.index(event.client), self.figures.version
        self.updates.merged(event, client, version)
        if self.coverage is not None and self.masks is not None:
            self.coverage.merged(event, client, version + 1)
            self.masks.merged(event, client, version + 1)

    def _aggregated(self, event: Aggregated) -> None:
        assert self.figures.last_round is not None
        self.rounds.add(self.figures.last_round, self.figures)
        self.evaluations.aggregated(event)
        if self.coverage is not None:
            self.devices.weigh(self.updates.weigh(self.coverage.aggregated(event)))

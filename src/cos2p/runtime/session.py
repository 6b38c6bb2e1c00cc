"""A run from its first event to its last, under either clock.

    Session.play            the loop: something happens, scores come in, a checkpoint is taken
      Simulation            what happens next is computed: an agenda in virtual time, worker processes
      fleet.server.Driver   what happens next comes from the network: an inbox, the wall's clock

A session keeps everything that both have in common: the server and its effects, the log and its figures, when the model
is evaluated, when to stop early, how a run ends. A driver says only what happens next (`step`), how a task is sent
(`send`), how a timer is set (`start_timer`) and what time it is (`now`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from cos2p.accelerator import one_thread
from cos2p.errors import TrainingError
from cos2p.messages import Order
from cos2p.models.layout import Weights
from cos2p.recipe import Recipe
from cos2p.runtime.evaluation import BackgroundEvaluator, Classes, Evaluation, Evaluator
from cos2p.server.protocol import Effect, Finish, Send, StartTimer
from cos2p.server.server import Server
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.tracking.event_kinds import (
    NOBODY_LEFT,
    Aggregated,
    Evaluated,
    Event,
    Excluded,
    Finished,
    Joined,
    Unevaluated,
)
from cos2p.tracking.events import Listener
from cos2p.tracking.figures import RunFigures

OUT_OF_PATIENCE = "no better validation score for a while"


class Session(ABC):
    kind: ClassVar[str]
    """The kind of run that its checkpoints are of."""
    punctual: ClassVar[bool]
    """Scores of a version are waited for before the next one is made, so that a run is the same every time."""

    server: Server

    def __init__(self, recipe: Recipe, evaluator: Evaluator, listener: Listener) -> None:
        self.recipe, self._listener = recipe, listener
        self.evaluations = BackgroundEvaluator(evaluator, self._newest)
        self.figures = RunFigures()
        self.classes = Classes()
        """The classes of its data, as far as the driver knows them."""
        self.notes: tuple[str, ...] = ()
        """Notes for the user on data and model."""
        self.finished: str | None = None
        """Why the run is over."""
        self.stop_requested = False
        """The user wants to go on later: stop between two events."""
        self.exclusions: dict[str, str] = {}
        """Devices that get no more tasks, and why."""

    # ------------------------------------------------------------ what a driver says

    @property
    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began."""

    @abstractmethod
    def step(self) -> None:
        """Let the next thing happen. One that waits for the network returns after a while, even if nothing did."""

    @abstractmethod
    def send(self, order: Order) -> None:
        """Give a client its task, and log that."""

    @abstractmethod
    def start_timer(self, timer: str, seconds: float) -> None:
        """Notify the server after so many seconds."""

    @abstractmethod
    def end(self, reason: str) -> None:
        """Have the run end as the next thing that happens: aggregate what has come, then finish."""

    @abstractmethod
    def save(self) -> Checkpoint:
        """All that is needed to go on from here; the figures are in the log."""

    def last_events(self) -> list[Event]:
        """Events to be logged just before the end."""
        return []

    # ------------------------------------------------------------ the loop

    def play(self, between: Callable[[], None], stopped: Callable[[], bool] = lambda: False) -> None:
        """Until the server is done, or somebody wants it to stop; `between` is called between two events."""
        with one_thread():
            if self.server.versions.current == 0 and self._brings_language():
                self.evaluations.ask(everything=True)
            while self.finished is None and not self.stop_requested and not stopped():
                self.step()
                if not self.punctual:
                    self._note_scores(self.evaluations.evaluation())
                between()
            if self.finished is not None:
                self._finish()

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self.send(effect.order)
            elif isinstance(effect, StartTimer):
                self.start_timer(effect.timer, effect.seconds)
            elif isinstance(effect, Finish):
                self.finished = effect.reason
            elif isinstance(effect, Aggregated):
                if self.punctual:  # first, so that the line of a round has the score of the one before it
                    self._note_scores(self.evaluations.awaited_evaluation())
                self.log(effect)
                self._new_version(effect.version)
            else:
                self.log(effect)

    def log(self, event: Event, t: float | None = None) -> None:
        """It happened now, or at `t`."""
        event = event.at(self.now if t is None else t)
        if isinstance(event, Excluded):
            self.exclusions[event.client] = event.reason
        elif isinstance(event, Joined):
            self.exclusions.pop(event.client, None)
        self.figures(event)
        self._listener(event)

    def check_anybody_was_able(self) -> None:
        """TrainingError if the run ended because of failures alone."""
        if self.finished == NOBODY_LEFT and self.exclusions:
            raise self.nobody_able()

    def nobody_able(self) -> TrainingError:
        client, reason = list(self.exclusions.items())[-1]
        return TrainingError(f"no device is able to go on; {client}: {reason}")

    # ------------------------------------------------------------ evaluation runs next to the training

    def _brings_language(self) -> bool:
        """Whether the model knows something before it trains that can be compared with what it knows afterwards."""
        return bool(self.recipe.model.pretrained) and self.server.method.context.config.task == "language-modeling"

    def _newest(self) -> tuple[int, Weights]:
        """As it is evaluated: a method may mask or scale the model before."""
        return self.server.versions.current, self.server.method.evaluated_weights(self.server.weights)

    def _new_version(self, version: int) -> None:
        """A version that nothing trained yet is what the run began with: its scores are compared with the last ones."""
        if not self.figures.trained:
            self.evaluations.ask(everything=True)
        elif version % self.recipe.schedule.evaluate_every == 0:
            self.evaluations.ask()

    def _note_scores(self, evaluation: Evaluation | None) -> None:
        if evaluation is None:
            return
        if evaluation.scores is None:
            self.log(Unevaluated(version=evaluation.version, reason="the evaluating process was killed"))
            return
        self.log(Evaluated(version=evaluation.version, **evaluation.scores))
        if self.figures.out_of_patience(self.recipe.schedule.patience):
            self.end(OUT_OF_PATIENCE)

    def _finish(self) -> None:
        assert self.finished is not None
        end = self.now  # on a real clock the last evaluation takes its time; nobody trains any more
        if self.punctual:
            self._note_scores(self.evaluations.awaited_evaluation())
        version, scores = self.evaluations.last()
        for event in (*self.last_events(), Finished(reason=self.finished, version=version, **scores)):
            self.log(event, end)

"""One run from a recipe to a folder of results, resumable at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cos2p.errors import RunError
from cos2p.processes.interrupts import on_interrupt
from cos2p.recipe import Recipe
from cos2p.runtime.run_folder import RunFolder, begin_folder, earlier_result
from cos2p.runtime.session import Session
from cos2p.runtime.simulation import Simulation
from cos2p.runtime.workers import Workers
from cos2p.runtime.world import build_world
from cos2p.tracking.event_kinds import Event
from cos2p.tracking.events import Listener, read_events


class Interrupted(RunError):
    """The user stopped the run; it can be resumed."""

    exit_code = 130


def run(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener | None = None,
) -> dict[str, Any]:
    """Simulate the recipe into the folder `out` and return its figures (those of `result.json`).

    `resume` goes on from the folder's checkpoint, or returns the figures if the run was over. `listener` is told of
    every event as it is logged.
    """
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    path = Path(out)
    if resume and (known := earlier_result(recipe, path)) is not None:
        return known
    begin_folder(recipe, path, resume=resume, overwrite=overwrite)
    return _simulate(recipe, path, listener or (lambda event: None))


def _simulate(recipe: Recipe, path: Path, listener: Listener) -> dict[str, Any]:
    began = time.monotonic()
    world = build_world(recipe)
    folder, workers = RunFolder(path, recipe, Simulation.kind), Workers(recipe)

    def tell(event: Event) -> None:
        folder.log.write(event)
        listener(event)

    try:
        simulation = Simulation(world, workers, tell)
        if folder.checkpoint is None:
            simulation.begin()
        else:
            simulation.restore(folder.checkpoint.values["session"], folder.checkpoint)
            simulation.figures.replay(read_events(folder.log.path))
            listener(folder.resumed(simulation))
        with on_interrupt(_asks_to_stop(simulation)):
            simulation.play(between=lambda: folder.save_if_due(simulation))
        if simulation.finished is None:
            folder.save(simulation)
            raise Interrupted(f"stopped at virtual second {simulation.now:.0f}; go on with --resume")
        simulation.check_anybody_was_able()
        return folder.finish(simulation, time.monotonic() - began)
    finally:
        workers.close()
        folder.close()


def _asks_to_stop(session: Session) -> Callable[[], None]:
    """The first Ctrl-C stops between two events with a checkpoint; a second one stops at once."""

    def ask() -> None:
        if session.stop_requested:
            raise KeyboardInterrupt
        session.stop_requested = True

    return ask

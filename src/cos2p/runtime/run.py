"""One run from a recipe to a folder of results, resumable at any moment."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cos2p.data import Bundle, DataConfig
from cos2p.data.own import bundle_name, checked, handed_over, pack_bundle
from cos2p.errors import RunError
from cos2p.processes.children import keep_freed_pages, leave_if_unguarded, on_interrupt
from cos2p.recipe import Recipe
from cos2p.runtime.own_models import OWN_MODELS, forget_unclaimed
from cos2p.runtime.run_folder import (
    INTERRUPTED,
    RunFolder,
    begin_folder,
    earlier_result,
    keep_recipe,
    noting_why_it_stops,
)
from cos2p.runtime.run_setup import build_run_setup
from cos2p.runtime.session import Session
from cos2p.runtime.simulation import Simulation
from cos2p.runtime.workers import Workers
from cos2p.tracking.event_kinds import Event, Started
from cos2p.tracking.events import Listener, read_events
from cos2p.tracking.files import held, write_atomic


class Interrupted(RunError):
    """The user stopped the run; it can be resumed."""

    exit_code = INTERRUPTED


def log_notes(event: Event) -> None:
    """For callers who do not listen: what they should know of data and model."""
    for note in (event.notes or ()) if isinstance(event, Started) else ():
        logging.getLogger(__name__).warning(note)


def run(
    recipe: Recipe | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    listener: Listener | None = None,
    data: Bundle | Callable[[DataConfig, int], Bundle] | None = None,
    as_bound: bool = False,
) -> dict[str, Any]:
    """Simulate the recipe into the folder `out` and return its figures (those of `result.json`).

    `resume` goes on from the folder's checkpoint, or returns the figures if the run was over; one that is over, or not,
    goes on to more `schedule.rounds` or `updates` if the recipe has more. `listener` gets
    every event as it is logged. `data` takes the place of the recipe's data: a bundle, or a function of the `[data]`
    table and the seed that gives one. It is written into the folder, where every worker, and a run that is resumed by
    its recipe, finds it. `as_bound`: a method that cannot keep the devices' memory (FedAvg) may train over it, to be
    compared with; the figures say so.
    """
    leave_if_unguarded()
    recipe = recipe if isinstance(recipe, Recipe) else Recipe.load(recipe)
    path = Path(out)
    own: tuple[Path, bytes] | None = None
    if data is not None:
        content = pack_bundle(checked(data(recipe.data, recipe.seed) if callable(data) else data, "data"))
        own = path / bundle_name(content), content
        recipe = recipe.model_copy(update={"data": handed_over(recipe.data, own[0])})
    if resume and (known := earlier_result(recipe, path, longer=True)) is not None:
        return known
    recipe = begin_folder(recipe, path, resume=resume, overwrite=overwrite, longer=True)
    if own is not None:
        write_atomic(*own)
    with held(path), noting_why_it_stops(path):
        return _simulate(recipe, path, listener or log_notes, as_bound)


def _simulate(recipe: Recipe, path: Path, listener: Listener, as_bound: bool) -> dict[str, Any]:
    began = time.monotonic()
    keep_freed_pages()
    run_setup = build_run_setup(recipe, as_bound)
    recipe = run_setup.recipe
    keep_recipe(recipe, path)
    own_models = path / OWN_MODELS if recipe.run.device_models else None
    folder, workers = RunFolder(path, recipe, Simulation.kind), Workers(recipe, path / "client_cache", own_models)

    def notify(event: Event) -> None:
        folder.log.write(event)
        listener(event)

    try:
        simulation = Simulation(run_setup, workers, notify)
        simulation.server.versions.spool = path
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
        forget_unclaimed(path / OWN_MODELS)
        folder.close()


def _asks_to_stop(session: Session) -> Callable[[], None]:
    """The first Ctrl-C stops between two events with a checkpoint; a second one stops at once."""

    def ask() -> None:
        if session.stop_requested:
            raise KeyboardInterrupt
        session.stop_requested = True

    return ask

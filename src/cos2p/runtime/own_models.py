"""The devices' own submodels in a run folder: `devices/NAME.safetensors`, each as its device last tested it.

A worker writes the file when a task is trained; it gets its name when the answer arrives, since a task that is lost
leaves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cos2p.methods import Trainer
from cos2p.runtime.run_setup import RunSetup
from cos2p.tracking.files import explained

OWN_MODELS = "devices"
_UNCLAIMED = ".task"


@dataclass(frozen=True)
class OwnModels:
    folder: Path
    most: int
    """Bytes that one of them may take."""
    facts: Mapping[str, Any]
    """Recipe and classes, so that a file is all that is needed."""

    @classmethod
    def of(cls, run_setup: RunSetup, folder: Path) -> OwnModels:
        most = run_setup.recipe.run.device_models // max(1, len(run_setup.context.members))
        return cls(folder, most, own_facts(run_setup.recipe.model_dump(mode="json"), run_setup.bundle.class_names))

    def keep(self, trainer: Trainer) -> str:
        """Write what the trainer has just tested; the file is empty if that is too large, or no plain submodel."""
        self.folder.mkdir(exist_ok=True)
        file = self.folder / f"{_file_name(trainer.order.task)}{_UNCLAIMED}"
        with explained(file):
            if not trainer.keep_personal(file, self.most, self.facts):
                file.write_bytes(b"")
        return str(file)


def own_facts(recipe: Mapping[str, Any], classes: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """The facts that are kept next to a device's own submodel."""
    return {"recipe": dict(recipe), "classes": list(classes)}


def take_own_model(file: str, client: str) -> None:
    """The task's answer has arrived: this is the client's own submodel now, and an older one no longer."""
    path = Path(file)
    if path.exists():
        final = own_model_file(path.parent.parent, client)
        path.replace(final)
        if final.stat().st_size == 0:
            final.unlink()


def own_model_file(run: Path, client: str) -> Path:
    return run / OWN_MODELS / f"{_file_name(client)}.safetensors"


def forget_unclaimed(folder: Path) -> None:
    """Submodels of tasks whose answer nobody waits for any more."""
    for file in folder.glob(f"*{_UNCLAIMED}"):
        file.unlink(missing_ok=True)


def _file_name(name: str) -> str:
    return quote(name, safe=" ")

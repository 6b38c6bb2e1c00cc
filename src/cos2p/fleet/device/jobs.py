"""What the executor tells its training process. Without torch: the executor itself stays small."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setup:
    """What the training process is told first."""

    name: str
    recipe: dict[str, Any]
    config: dict[str, Any]
    classes: list[str]
    data: str = ""
    """Folder of the device's own data; empty: the shard the recipe's partition deals it."""
    root: str = ""
    """Without data of its own: the folder in which the recipe's data are looked up, and nowhere else."""
    trusted: bool = False
    """Without data of its own: follow the recipe's paths wherever they lead."""
    report: bool = False
    """Whether losses and scores go back with an update."""
    owner: dict[str, Any] = field(default_factory=dict)
    """The owner's rules, as `owner.OwnerFile` dumps them."""
    memory: int = 0
    """Bytes for training, kept by the operating system; 0: no limit."""
    slowdown: float = 1.0
    """Times slower than this machine's processor: a fast machine plays a slow device. 1: as it is."""
    threads: int = 0
    """Of torch; 0 leaves the choice to it."""
    accelerator: str = "cpu"
    """What training is computed with, as `accelerator.resolve` reads it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Job:
    """One task, by the files it is in."""

    task: str
    update: str
    remembered: str

"""`device.json` in a device's kit: what the person who joins says of the device. Written by `cos2p fleet join`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from cos2p.errors import ConfigError, OwnerRefused

NAME = "device.json"


_RUN = re.compile(r"[a-z0-9][a-z0-9_-]{0,120}")


def remembered_file(kit: Path, run: str) -> Path:
    """Where a device keeps what it remembers of a run. The name is the server's: it must not lead anywhere else."""
    if not _RUN.fullmatch(run):
        message = f"{run!r} is no name of a run"
        raise OwnerRefused(message, told="the name of the run leads out of the kit")
    return kit / "remembered" / f"{run}.safetensors"


@dataclass(frozen=True)
class DeviceFile:
    data: str = ""
    """Folder of the device's own data, the only one it reads; empty: the recipe deals it a shard of what lies in the
    folder `data` of the kit."""
    trust_paths: bool = False
    """Without data of its own: follow the recipe's paths wherever they lead. For a recipe that the owner wrote."""
    memory: int = 0
    """Bytes for training; 0: no cap, and the recipe's figure for the ledger."""
    flops: float = 0.0
    """FLOP/s as `cos2p profile` measured it; 0: the recipe's figure."""
    slowdown: float = 1.0
    """To play a slower device on a fast machine."""
    threads: int = 0
    """Of torch; 0 leaves the choice to it."""
    accelerator: str = "cpu"
    """What training is computed with: cpu, cuda, cuda:1, mps, or auto."""

    @classmethod
    def read(cls, kit: Path) -> DeviceFile:
        try:
            return cls(**json.loads((kit / NAME).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{kit / NAME} cannot be read ({error}); join again with: cos2p fleet join") from None

    def write(self, kit: Path) -> None:
        (kit / NAME).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

"""Files in a device's kit that its owner decides by.

device.json   what the person who joins says of the device; written by `cos2p fleet join`
owner.toml    what the owner accepts of a run, what it may spend, what the device reports. Without the file the owner
              accepts all that the kit allows. The server never sees it, only refusals that name the field.
spent.json    what the device has spent today, so that a restart forgets nothing
privacy.json  what its noise has let through so far, in all runs with local privacy (`task_check`)
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from cos2p.errors import ConfigError, OwnerRefused, RunError
from cos2p.older_python import tomllib
from cos2p.settings import Settings, problems
from cos2p.tracking.files import read_json, write_json
from cos2p.units import format_bytes, parse_bytes

OWNER_FILE = "owner.toml"

TEMPLATE = """\
# Rules of this device. The file belongs to the device's owner; what it does not allow is refused, by name.

[accept]
# methods = ["cos2p"]                          # names; without the line: any that is installed
# columns = ["text", "label"]                  # of your table; without the line: any that a recipe names

[accept.fields]                                # a recipe's field: the values it may have, or the least and the most
# "training.epochs" = {max = 5}
# "data.source" = ["csv", "parquet"]

[spend]
# memory = "2GiB"                              # of training, next to `fleet join --memory`
# disk = "1GB"                                 # tasks, updates and what is remembered, at any time
# seconds_per_day = 3600                       # of training
# bytes_per_day = "2GB"                        # of tasks and updates, both ways
# epsilon = 8                                  # of all runs with local privacy together, at δ = 1e-5

[send]
# report = "none"                              # no losses and scores, also if a recipe asks for them
"""

Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Value = bool | int | float | str


class Bounds(Settings):
    min: float | None = Field(default=None, description="The least that is accepted.")
    max: float | None = Field(default=None, description="The most.")

    def allow(self, value: Any) -> bool:
        if not isinstance(value, int | float):
            return value is None
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


class Accept(Settings):
    methods: tuple[str, ...] = Field(default=(), description="Names of methods; empty: any that is installed.")
    columns: tuple[str, ...] = Field(
        default=(), description="Columns of the device's table that a recipe may name; empty: any."
    )
    fields: dict[str, Bounds | tuple[Value, ...] | Value] = Field(
        default={}, description="A recipe's field by its path: the values it may have, or `min` and `max`."
    )


class Spend(Settings):
    memory: Bytes = Field(default=0, ge=0, description="Bytes of training; 0: as `fleet join --memory` says.")
    disk: Bytes = Field(default=0, ge=0, description="Bytes of tasks, updates and what is remembered; 0: no limit.")
    seconds_per_day: float = Field(default=0.0, ge=0, description="Of training; 0: no limit.")
    bytes_per_day: Bytes = Field(default=0, ge=0, description="Of tasks and updates, both ways; 0: no limit.")
    epsilon: float = Field(
        default=0.0,
        ge=0,
        description="Of all runs with local privacy together; 0: each run has the budget of its recipe.",
    )


class SendRules(Settings):
    report: Literal["asked", "none"] = Field(
        default="asked", description="asked: losses and scores if a recipe asks for them; none: never."
    )


class OwnerFile(Settings):
    """The owner's word."""

    accept: Accept = Accept()
    spend: Spend = Spend()
    send: SendRules = SendRules()

    @classmethod
    def read(cls, kit: Path) -> OwnerFile:
        """The kit's own; ConfigError if it is there and cannot be read: nothing is accepted on a guess."""
        path = kit / OWNER_FILE
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from None
        except ValidationError as error:
            raise ConfigError(f"{path}: " + "; ".join(problems(error))) from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None

    def check_recipe(self, recipe: Mapping[str, Any]) -> None:
        """OwnerRefused, naming the field, for a run this device does not take part in."""
        method = recipe.get("method", {}).get("name")
        if self.accept.methods and method not in self.accept.methods:
            raise _refused(f"method.name = {method!r}")
        data = recipe.get("data", {})
        unread = ("image_column",) if data.get("text_column") else ()
        columns = {name: data[name] for name in data if name.endswith("_column") and name not in unread}
        for name, column in columns.items():
            if column and self.accept.columns and column not in self.accept.columns:
                raise _refused(f"data.{name} = {column!r}")
        for path, rule in self.accept.fields.items():
            value = _at(recipe, path)
            if not _allows(rule, value):
                raise _refused(f"{path} = {value!r}")

    def check_order(self, settings: Mapping[str, Any]) -> None:
        """A task may not ask for more than the recipe said: the rules of `training.…` hold for its settings too."""
        own = settings.get("local", settings)
        for path, rule in self.accept.fields.items():
            table, _, field = path.partition(".")
            if table == "training" and field in own and not _allows(rule, own[field]):
                raise _refused(f"{path} = {own[field]!r}, in a task")

    def smaller_memory(self, memory: int) -> int:
        """The smaller of both; 0: no limit at all."""
        return min((m for m in (memory, self.spend.memory) if m), default=0)


def _refused(what: str) -> OwnerRefused:
    return OwnerRefused(f"{what} is not accepted by {OWNER_FILE} of this device", public=f"{what} is not accepted")


def _at(recipe: Mapping[str, Any], path: str) -> Any:
    place: Any = recipe
    for key in path.split("."):
        if isinstance(place, Mapping):
            place = place.get(key)
        elif isinstance(place, list | tuple) and key.isdigit() and int(key) < len(place):
            place = place[int(key)]
        else:
            return None
    return place


def _allows(rule: Bounds | tuple[Value, ...] | Value, value: Any) -> bool:
    if isinstance(rule, Bounds):
        return rule.allow(value)
    return value in (rule if isinstance(rule, tuple) else (rule,))


# ---------------------------------------------------------------- device.json

DEVICE_FILE = "device.json"
_RUN = re.compile(r"[a-z0-9][a-z0-9_-]{0,120}")


def remembered_file(kit: Path, run: str) -> Path:
    """Where a device keeps what it remembers of a run. The name is the server's: it must not lead anywhere else."""
    if not _RUN.fullmatch(run):
        message = f"{run!r} is no name of a run"
        raise OwnerRefused(message, public="the name of the run leads out of the kit")
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
    """Threads of torch; 0 leaves the choice to it."""
    accelerator: str = "cpu"
    """Where training is computed: cpu, cuda, cuda:1, mps, or auto."""
    base: str = ""
    """Folder of a checkpoint that need not be sent; empty: none."""

    @classmethod
    def read(cls, kit: Path) -> DeviceFile:
        try:
            return cls(**read_json(kit / DEVICE_FILE))
        except (RunError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{kit / DEVICE_FILE} cannot be read ({error}); join again with: cos2p fleet join"
            ) from None

    def write(self, kit: Path) -> None:
        write_json(kit / DEVICE_FILE, asdict(self), indent=2)


# ---------------------------------------------------------------- spent.json

SPENT_FILE = "spent.json"


def today() -> str:
    """Days begin at midnight, UTC."""
    return datetime.now(timezone.utc).date().isoformat()


class Spending:
    """The day's account of a kit against its owner's limits."""

    def __init__(self, kit: Path, limits: Spend, day: Callable[[], str] = today) -> None:
        self._path, self.limits, self._day = kit / SPENT_FILE, limits, day

    def seconds_left(self) -> float:
        """Seconds of training; infinity without a limit."""
        limit = self.limits.seconds_per_day
        return max(0.0, limit - self._spent()["seconds"]) if limit else float("inf")

    def check_transfer(self, size: int) -> None:
        """OwnerRefused if so many bytes more are beyond the day's."""
        limit, spent = self.limits.bytes_per_day, int(self._spent()["bytes"])
        if limit and spent + size > limit:
            raise _limit_reached(
                f"bytes_per_day: {format_bytes(spent)} + {format_bytes(size)} of {format_bytes(limit)}"
            )

    def check_disk(self, size: int, held: int = 0) -> None:
        """OwnerRefused if so much, next to what is held, is beyond the owner's limit; without one, beyond half of what
        is free."""
        size, limit = (size + held, self.limits.disk) if self.limits.disk else (size, _free(self._path.parent) // 2)
        if size > limit:
            raise _limit_reached(f"disk: {format_bytes(size)} of {format_bytes(limit)}")

    def check_seconds(self) -> None:
        if self.seconds_left() <= 0:
            raise _limit_reached(f"seconds_per_day: all {self.limits.seconds_per_day:g} are used")

    def add(self, seconds: float = 0.0, size: int = 0) -> None:
        spent = self._spent()
        entry = {"day": self._day(), "seconds": spent["seconds"] + seconds, "bytes": int(spent["bytes"]) + size}
        write_json(self._path, entry)

    def _spent(self) -> dict[str, float]:
        """Today's account. One that cannot be read counts as all spent: a limit is not lost with a file."""
        nothing = {"seconds": 0.0, "bytes": 0}
        try:
            entry = read_json(self._path) if self._path.exists() else {"seconds": 0.0, "bytes": 0}
            known = {"seconds": float(entry["seconds"]), "bytes": int(entry["bytes"])}
        except (RunError, ValueError, KeyError, TypeError):
            raise OwnerRefused(
                f"{self._path} cannot be read; delete it to begin the day's account anew",
                public="its account of the day cannot be read",
            ) from None
        return known if entry.get("day") == self._day() else nothing


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _limit_reached(what: str) -> OwnerRefused:
    return OwnerRefused(f"the owner's limit is reached: {what}", public=what)

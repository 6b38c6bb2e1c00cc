"""From bytes to an update that answers its task. Nothing is made of the bytes that the task does not ask for.

    the size                        what the task's tensors take, and a header
    the header                      bounded in length, values, depth and digits
    client, task, version           those of the task
    samples, submodel, report       bounded and of their types
    names, types, shapes            those that the contract says must come back for this submodel
    the tensors                     only now

Whatever is wrong is an `UpdateRefused` that says what. Values are looked at afterwards (`admission`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cos2p.errors import SpecError, UpdateRefused
from cos2p.messages import Order, Update
from cos2p.messages.envelope import Buffer, Envelope, Table
from cos2p.messages.forms import Forms, check_forms
from cos2p.models.config import ModelConfig
from cos2p.models.spec import SubmodelSpec
from cos2p.server.admission import check_identity, check_spec, check_update
from cos2p.training.contract import MOST_REPORTED, TaskContract
from cos2p.training.wire import packed_bytes, packed_forms, unpacked

REPORT_FIGURES = 64
NAME_CHARACTERS = 80

_PER_TENSOR = 128 + NAME_CHARACTERS
"""Bytes of a header for one tensor: its name, and brackets, type, shape and offsets."""
_VALUES_PER_TENSOR = 16
_REPORT_BYTES = 2 * REPORT_FIGURES * (NAME_CHARACTERS + 40)
"""Twice: what is quoted inside a header needs a backslash before each quotation mark."""


@dataclass(frozen=True)
class UpdateReader:
    """What an answer to one order may look like."""

    order: Order
    config: ModelConfig
    contract: TaskContract
    max_samples: float = math.inf
    max_rms: float = math.inf
    """Largest root mean square of an update, and largest change of any one scalar."""

    def open(self, data: Buffer) -> Envelope:
        """Size and header; UpdateRefused if they cannot be those of an answer."""
        shapes, extras = self.contract.answer(self.order.spec), self.contract.extra_tensors(self.order.spec)
        plain = self.order.wire.up == "float32"
        count, size = len(shapes if plain else self._answer(self.order.spec)), packed_bytes(shapes, self.order.wire.up)
        count, size = count + len(extras), size + sum(form.bytes for form in extras.values())
        spec = self._spec_bytes()
        header = 2**12 + _PER_TENSOR * count + 2 * spec + _REPORT_BYTES
        if len(data) > size + header:
            raise UpdateRefused(f"not an update: {len(data)} bytes; an answer to this task has at most {size + header}")
        values = 2**8 + _VALUES_PER_TENSOR * count + 8 * self.config.depth + 2 * REPORT_FIGURES
        try:
            envelope = Envelope.open(data, header, values)
            envelope.check_parts("d", "x")
        except ValueError as error:
            raise UpdateRefused(f"not an update: {error}") from None
        return envelope

    def read(self, envelope: Envelope) -> tuple[Update, float]:
        """The update, every number of it checked, and its root mean square."""
        meta = envelope.meta
        for name, kind in _FIELDS.items():
            if type(meta.get(name)) is not kind:
                raise UpdateRefused(f"not an update: its {name} is missing or no {kind.__name__}")
        try:
            spec = SubmodelSpec.from_dict(meta["spec"], self.config)
        except SpecError as error:
            raise UpdateRefused(f"not an update: {error}") from None
        check_identity(meta["client"], meta["task"], meta["version"], self.order)
        check_spec(spec, self.order, self.config)
        found = envelope.table.found
        if not self._is_plain_answer(spec, envelope.table):
            check_forms(self._forms(spec), found)
        update = Update(
            client=self.order.client,
            task=self.order.task,
            version=self.order.version,
            spec=spec,
            delta=envelope.part("d"),
            samples=meta["samples"],
            report=meta["report"],
            extras=envelope.part("x"),
        )
        return self.check(update)

    def check(self, update: Update) -> tuple[Update, float]:
        """The same for an update that is one already: with its report as it may be kept, and its root mean square."""
        if self.order.wire.up != "float32":
            update = self._unpacked(update)
        size = check_update(update, self.order, self.config, self.contract, self.max_rms, self.max_samples)
        return replace(update, report=kept_report(update.report, self.contract)), size

    def _is_plain_answer(self, spec: SubmodelSpec, table: Table) -> bool:
        """Whether just what must come back came, in one piece, and nothing is to come next to it."""
        if self.contract.extra_tensors(spec):
            return False
        together = table.arranged("d")  # if there is such a thing, all of them are float32
        return together is not None and table.labels == {"d"} and together[0].is_of(self.contract.answer(spec))

    def _forms(self, spec: SubmodelSpec) -> Forms:
        """As the message names its tensors."""
        answer = {f"d/{name}": form for name, form in self._answer(spec).items()}
        return answer | {f"x/{name}": form for name, form in self.contract.extra_tensors(spec).items()}

    def _answer(self, spec: SubmodelSpec) -> Forms:
        """The update's own tensors, as they travel."""
        return packed_forms(self.contract.answer(spec), self.order.wire.up)

    def _unpacked(self, update: Update) -> Update:
        """As numbers. What is not finite then is refused like any such update."""
        check_spec(update.spec, self.order, self.config)
        found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in update.delta.items()}
        check_forms(self._answer(update.spec), found)
        return replace(update, delta=unpacked(update.delta))

    def _spec_bytes(self) -> int:
        """Bits of all heads, units and rows of the model, as hexadecimal digits."""
        config = self.config
        return (config.depth * (config.groups + config.mlp + 64) + config.vocab) // 4


_FIELDS: Mapping[str, type] = {
    "client": str, "task": str, "version": int, "spec": dict, "samples": int, "report": dict,
}  # fmt: skip


def kept_report(report: Mapping[str, Any], contract: TaskContract) -> dict[str, float]:
    """A device's figures, as far as they are finite numbers between their bounds under a short name.

    What is not is left out: a loss may well be not a number on an honest device, and no figure moves the model.
    """
    if len(report) > REPORT_FIGURES:
        raise UpdateRefused(f"it reports {len(report)} figures; at most {REPORT_FIGURES} are read")
    return {name: value for name, value in report.items() if _is_figure(name, value, contract)}


def _is_figure(name: Any, value: Any, contract: TaskContract) -> bool:
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS or not name.isprintable():
        return False
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low, high = contract.reported.get(name, (-MOST_REPORTED, MOST_REPORTED))
    return low <= value <= high  # false for what is not a number

"""The table of devices: the run's figures by device, and the mean weight of its updates."""

from __future__ import annotations

from cos2p.tracking.figure_parts import DeviceFigures, tiers
from cos2p.tracking.figures import RunFigures
from cos2p.view import model
from cos2p.view.curves import rounded


class Devices:
    def __init__(self) -> None:
        self._weights: dict[int, tuple[int, float]] = {}
        """By device: updates with a weight, and their sum."""

    def weigh(self, pairs: list[tuple[int, float]]) -> None:
        for device, weight in pairs:
            count, total = self._weights.get(device, (0, 0.0))
            self._weights[device] = (count + 1, total + weight)

    def document(self, names: list[str], run: RunFigures) -> list[model.Device]:
        known = {name: run.devices.get(name) or DeviceFigures() for name in names}
        kinds = tiers({name: device.rate for name, device in known.items()})
        group = {name: kind for kind, members in kinds.items() for name in members}
        return [self._row(number, name, group[name], known[name], run) for number, name in enumerate(names)]

    def _row(self, number: int, name: str, group: str, device: DeviceFigures, run: RunFigures) -> model.Device:
        count, total = self._weights.get(number, (0, 0.0))
        return {
            "name": name,
            "group": group,
            "rate": device.rate,
            "memory": device.memory,
            "predicted": device.predicted,
            "measured": device.measured,
            "samples": device.samples,
            "batch": device.batch,
            "flops": device.flops,
            "bytes_up": device.bytes_up,
            "bytes_down": device.bytes_down,
            "tasks": device.tasks,
            "updates": device.updates,
            "refused": device.refused,
            "failed": device.failed + device.lost,
            "doubted": device.doubted,
            "staleness": rounded(device.staleness / device.updates, 2) if device.updates else None,
            "busy": round(min(1.0, (device.busy + device.worked(run.now)) / run.now), 4) if run.now > 0 else 0.0,
            "weight": rounded(total / count) if count else None,
            "top1": rounded(run.own.get(name, {}).get("top1")),
        }

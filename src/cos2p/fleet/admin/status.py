"""`cos2p fleet status`: who is connected, what each device does, how the runs go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cos2p.fleet.kit import Kit, server_address
from cos2p.fleet.nvflare.admin_session import AdminSession
from cos2p.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table


def fleet_status(kit: Kit, patience: float = 10.0) -> dict[str, Any]:
    """The answers of an admin kit's server. RunError if it does not answer."""
    host, port = server_address(kit)
    server = AdminSession(kit, patience)
    try:
        connected = server.clients()
        jobs = sorted(server.jobs(), key=lambda job: str(job.get("submit_time")))
        runs = [{"run": job.get("job_name"), "status": job.get("status"), "job": job.get("job_id")} for job in jobs]
        going = next((run for run in reversed(runs) if run["status"] == "RUNNING"), None)
        report = server.ask(str(going["job"]), "report", life="", offset=2**62) if going else None
    finally:
        server.close()
    clients = (report or {}).get("clients", {})
    return {
        "server": f"{host}:{port}",
        "connected": connected,
        "runs": runs,
        "run": going["run"] if going else None,
        "state": (report or {}).get("state"),
        "version": (report or {}).get("version"),
        "merged": (report or {}).get("merged"),
        "clients": clients,
    }


def status_tables(found: dict[str, Any]) -> list[Table]:
    from rich.table import Table

    head = f"server {found['server']}"
    if found["run"]:
        head += f" · {found['run']}: {found['state'] or 'starting'}"
        if found["version"] is not None:
            head += f", version {found['version']}, {found['merged']} updates"
    devices = Table(
        "device",
        "connected",
        "rate",
        "memory",
        "task",
        "heard",
        "updates",
        "down",
        "up",
        "link",
        "beyond tensors",
        title=head,
    )
    for name in sorted({*found["connected"], *found["clients"]}):
        own = found["clients"].get(name, {})
        devices.add_row(
            name,
            "yes" if name in found["connected"] else "no",
            f"{own['rate']:g}" if own else "",
            format_bytes(own["memory"]) if own else "",
            own.get("task", ""),
            f"{own['silent']:.0f} s ago" if own else "",
            str(own.get("updates", "")),
            format_bytes(own["wire_down"]) if own else "",
            format_bytes(own["wire_up"]) if own else "",
            _link(own),
            _overhead(own),
        )
    runs = Table("run", "status")
    for run in found["runs"]:
        runs.add_row(str(run["run"]), str(run["status"]))
    return [devices, runs] if found["runs"] else [devices]


def _link(own: dict[str, Any]) -> str:
    """Bytes a second that the link carried lately, down and up."""
    return ", ".join(f"{format_bytes(int(rate))}/s" for rate in own.get("link") or ())


def _overhead(own: dict[str, Any]) -> str:
    """Bytes that the link carried beyond the tensors, as a share of them."""
    tensors = own.get("tensors_down", 0) + own.get("tensors_up", 0)
    return f"{(own['wire_down'] + own['wire_up']) / tensors - 1:.1%}" if tensors else ""

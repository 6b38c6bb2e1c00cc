"""`cos2p fleet provision | serve | join | status | local`: a fleet of real machines, or of processes on this one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, Verbose, console, print_json
from cos2p.cli.recipes import Changes, complete_recipe
from cos2p.cli.run import finish, following_run
from cos2p.errors import ConfigError

if TYPE_CHECKING:
    from cos2p.fleet.admin.machines import Machine
    from cos2p.fleet.kit import Kit

app = typer.Typer(no_args_is_help=True, help="A real fleet on NVFlare: kits, server, devices.")

KitFolder = Annotated[Path, typer.Argument(help="The kit's folder, made by `cos2p fleet provision`.")]


@app.command("provision")
def provision(
    ctx: typer.Context,
    plan: Annotated[Path, typer.Argument(help="fleet.toml: the server's address and the devices' names.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the kits.")] = Path("kits"),
    renew: Annotated[
        list[str] | None,
        typer.Option(
            "--renew", help="Give this machine's kit new keys; once it has joined with them, the old are refused."
        ),
    ] = None,
    package: Annotated[
        list[Path] | None,
        typer.Option(help="cos2p itself (make dist) for the kits of server and devices: the wheel, or the .tar.gz."),
    ] = None,
    json: Json = False,
) -> None:
    """Make a kit, with keys of its own, for the server, the admin and every device. Existing kits are kept."""
    from cos2p.fleet.admin.kits import FleetPlan
    from cos2p.fleet.admin.kits import provision as make

    for file in package or ():
        if file.suffix not in (".whl", ".gz") or not file.is_file():
            raise ConfigError(f"--package {file}: there is no such wheel or .tar.gz; build both with: make dist")
    kits = make(FleetPlan.load(plan), out, renew or (), package or ())
    if OutputMode.of(ctx, json=json).json:
        print_json([{"name": kit.name, "folder": str(kit.folder)} for kit in kits])
        return
    for kit in kits:
        typer.echo(f"{kit.name:<16} {out / kit.name}")
    if not kits:
        typer.echo(f"every machine of {plan} has its kit in {out} already")
        return
    files = " or ".join(f"NAME/{file.name}" for file in package or ()) or "cos2p's wheel or .tar.gz (make dist)"
    typer.echo(
        f"\nnext: 1. carry each folder to its machine, and keep {out / 'authority'} here\n"
        f"      2. install there: pip install {files} nvflare==2.9.0\n"
        "      3. on the server: cos2p fleet serve server\n"
        "      4. on each device: cos2p fleet join NAME --memory 1GiB\n"
        f"      5. here: cos2p run RECIPE --fleet {out / 'admin'}"
    )


@app.command("serve")
def serve(kit: KitFolder) -> None:
    """Run the fleet's server until Ctrl-C. A run that it was killed in goes on by itself."""
    from cos2p.fleet.admin.machines import Machine
    from cos2p.fleet.kit import server_address

    machine = Machine(_open(kit, "server"))
    host, port = server_address(machine.kit)
    _keep_running(machine, f"server at {host}:{port}; Ctrl-C ends it")


@app.command("join")
def join(
    kit: KitFolder,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the device's own data, the only one it reads; without it, the shard that the recipe deals "
            "it of what lies in KIT/data."
        ),
    ] = None,
    trust_paths: Annotated[
        bool,
        typer.Option(
            "--trust-paths", help="Follow the recipe's own paths anywhere on this machine: if you wrote the recipe."
        ),
    ] = False,
    memory: Annotated[
        str | None, typer.Option(help="Bytes for training, such as 1GiB; never exceeded.", show_default=False)
    ] = None,
    device: Annotated[
        Path | None, typer.Option(help="device.toml, as `cos2p profile` wrote it.", show_default=False)
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(help="Folder of the run's checkpoint on this device, so that it is not sent.", show_default=False),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Of the training process; 0: all cores.")] = 0,
    accelerator: Annotated[
        str,
        typer.Option(
            help="What to train with: cpu, cuda, cuda:1, mps, or auto, the GPU if there is one.",
            show_default="what device.toml was measured on, else cpu",
        ),
    ] = "",
) -> None:
    """Let this device take part until Ctrl-C."""
    from cos2p.fleet.admin.machines import Machine, somebody_listens
    from cos2p.fleet.device.owner import DeviceFile, OwnerFile
    from cos2p.fleet.kit import server_address
    from cos2p.units import parse_bytes

    own = _open(kit, "device")
    if data is not None and not data.exists():
        raise ConfigError(f"--data {data}: there is no such file or folder")
    if data is not None and trust_paths:
        raise ConfigError("--data and --trust-paths contradict each other; a device that has a folder reads that alone")
    if base is not None and not (base / "config.json").is_file():
        raise ConfigError(f"--base {base}: there is no checkpoint; give a folder with config.json and its tensors")
    OwnerFile.read(own.folder)  # now rather than when the first run asks
    measured = _measured(device)
    accelerator = accelerator or str(measured.get("accelerator", "cpu"))
    if accelerator != "cpu":  # now rather than in the training process
        from cos2p.accelerator import resolve  # brings torch, which this process then keeps for as long as it waits

        resolve(accelerator)
    DeviceFile(
        data=str(data.resolve()) if data is not None else "",
        trust_paths=trust_paths,
        memory=parse_bytes(memory) if memory else int(measured.get("memory", 0)),
        flops=float(measured.get("flops", 0.0)),
        threads=threads,
        accelerator=accelerator,
        base=str(base.resolve()) if base is not None else "",
    ).write(own.folder)
    host, port = server_address(own)
    greeting = f"{own.name} joins the server at {host}:{port}; Ctrl-C ends it"
    if not somebody_listens(host, port):
        greeting += f"\nnobody answers at {host}:{port} yet; waiting for the server (cos2p fleet serve)"
    _keep_running(Machine(own), greeting)


def _measured(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    from cos2p.fleet.device.profile import read_device

    return read_device(path)


@app.command("disclose")
def disclose(ctx: typer.Context, kit: KitFolder, json: Json = False) -> None:
    """Everything that leaves a device: every field of every message, how large, why, and how to switch it off."""
    from dataclasses import asdict

    from rich.table import Table

    from cos2p.fleet.disclosure import of_kit

    found = of_kit(_open(kit, "device"))
    if OutputMode.of(ctx, json=json).json:
        print_json([asdict(entry) for entry in found])
        return
    table = Table("message", "field", "size", "why", "switch it off by", title=f"what leaves {kit}")
    for entry in found:
        table.add_row(f"{entry.message} ({entry.when})", entry.field, entry.size, entry.why, entry.off)
    console().print(table)


@app.command("revoke")
def revoke(
    kit: Annotated[Path, typer.Argument(help="The admin's kit.")],
    device: Annotated[str, typer.Argument(help="The device whose kit was lost.")],
) -> None:
    """Let nobody in any more with a kit of this device that was made until now. A new one: fleet provision --renew."""
    from cos2p.fleet.nvflare.admin_session import AdminSession

    server = AdminSession(_open(kit, "admin"))
    try:
        server.revoke(device)
    finally:
        server.close()
    typer.echo(f"{device}: its kits are refused from now on; a new one: cos2p fleet provision --renew {device}")


@app.command("status")
def status(
    ctx: typer.Context,
    kit: Annotated[Path, typer.Argument(help="The admin's kit.")] = Path("kits/admin"),
    json: Json = False,
) -> None:
    """Which devices are connected, what each trains, and how the runs go."""
    from cos2p.fleet.admin.status import fleet_status, status_tables

    found = fleet_status(_open(kit, "admin"))
    if OutputMode.of(ctx, json=json).json:
        print_json(found)
        return
    for table in status_tables(found):
        console().print(table)


@app.command("local")
def local(
    ctx: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A shipped recipe, or a TOML file.", autocompletion=complete_recipe)],
    devices: Annotated[int, typer.Option(min=1, help="How many devices: processes on this machine.")] = 4,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder.", show_default="runs/RECIPE-fleet-SEED")
    ] = None,
    changes: Changes = None,
    slow: Annotated[
        bool, typer.Option("--slow", help="Devices as unequal as in the recipe, by the ratio of their FLOP/s.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the earlier run in --out.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Try a whole fleet on this machine: a server and devices as separate processes, with real keys.

    cos2p fleet local quickstart --devices 4 --set schedule.rounds=3
    """
    from cos2p.fleet.nvflare import require_nvflare
    from cos2p.recipe import Recipe

    require_nvflare()
    mode = OutputMode.of(ctx, quiet, verbose, json)
    chosen = Recipe.load(recipe, changes or ())
    folder = out or Path("runs") / f"{chosen.name}-fleet-{chosen.seed}"
    from cos2p.fleet.admin.local import run_local

    with following_run(folder, mode, f"cos2p fleet local {recipe} --resume --out {folder}") as listener:
        result = run_local(
            chosen,
            folder,
            devices=devices,
            slow=slow,
            resume=resume,
            overwrite=overwrite,
            listener=listener,
        )
    finish(result, folder, mode)


def _open(folder: Path, role: Any) -> Kit:
    from cos2p.fleet.nvflare import require_nvflare

    require_nvflare()
    from cos2p.fleet.kit import Kit

    return Kit.open(folder, role)


def _keep_running(machine: Machine, greeting: str) -> None:
    """In the foreground, until Ctrl-C or a system's polite request to end."""
    from cos2p.fleet.admin.machines import lock, supervise

    lock(machine.kit)
    typer.echo(greeting, err=True)
    with _until_interrupt() as stopped:
        supervise(machine, stopped, lambda line: typer.echo(line, err=True))


@contextmanager
def _until_interrupt() -> Iterator[Callable[[], bool]]:
    ended = threading.Event()
    previous = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended.is_set
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

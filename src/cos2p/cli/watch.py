"""`cos2p watch`: the live page of a run, simulated or on a fleet, while it goes on and after."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, Verbose, complain, print_json

if TYPE_CHECKING:
    from cos2p.view.live import LiveServer


def watch(
    ctx: typer.Context,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run or study folders; a run's may still be to come.")
    ],
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page.", show_default="0, which takes a free one")
    ] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any but this machine's own asks for the token it prints.")
    ] = "127.0.0.1",
    open_it: Annotated[
        bool | None,
        typer.Option("--open/--no-browser", help="Open the page in a browser.", show_default="if at a terminal"),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Show what happens inside a run, live, in a browser. Ends with Ctrl-C; the run does not notice.

    cos2p watch runs/quickstart-0
    """
    from cos2p.cli.spinner import reading

    mode = OutputMode.of(ctx, quiet, verbose, json)
    with reading(mode) as progress:
        from cos2p.view.live import LiveServer

        server = LiveServer(runs, host, port, progress)
    if mode.json:
        print_json({"kind": "watching", "url": server.url, "runs": [str(run) for run in runs]})
    else:
        typer.echo(server.url)
        if not mode.quiet:
            complain("the page updates by itself; Ctrl-C ends it, not the run", label="")
    _serve(server, sys.stdout.isatty() and sys.stdin.isatty() if open_it is None else open_it)


def _serve(server: LiveServer, browser: bool) -> None:
    import signal
    import threading
    import webbrowser

    if browser:
        threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
    if threading.current_thread() is threading.main_thread():
        for ending in (signal.SIGINT, signal.SIGTERM):  # also where a script's shell began it deaf to Ctrl-C
            signal.signal(ending, signal.default_int_handler)
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass  # the way to end it, and no failure
    finally:
        server.server_close()

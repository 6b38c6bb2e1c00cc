"""`--engine` and `--address`: where simulated devices train."""

from __future__ import annotations

from typing import Annotated

import typer

from cos2p.errors import ConfigError

ENGINES = ("local", "ray")

Engine = Annotated[
    str | None,
    typer.Option(help="local, or ray: workers on a cluster's machines. Changes no figure.", show_default=False),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The Ray cluster, if not this machine's.", show_default=False),
]


def engine_settings(engine: str | None, address: str | None) -> dict[str, str]:
    """What the two say of the `[run]` table. An address alone means Ray.

    >>> engine_settings(None, "10.0.0.1:6379")
    {'engine': 'ray', 'address': '10.0.0.1:6379'}
    """
    if engine is not None and engine not in ENGINES:
        raise ConfigError(f"--engine {engine!r} is unknown; known: {', '.join(ENGINES)}")
    if engine == "local" and address:
        raise ConfigError(f"--address {address} is for --engine ray; leave one of the two out")
    if engine is None and address is None:
        return {}
    return {"engine": engine or "ray", "address": address or ""}

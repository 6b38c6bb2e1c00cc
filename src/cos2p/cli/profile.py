"""`cos2p profile`: measure what this device can train, and the rate it should get."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cos2p.cli.output import Json, OutputMode, Quiet, console, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from cos2p.devices.profile import Profile, Sample
    from cos2p.models.config import ModelConfig


def profile(
    ctx: typer.Context,
    model: Annotated[str, typer.Option(help="Named size, Hugging Face folder, or recipe.")] = "vit-base",
    memory: Annotated[
        str | None, typer.Option(help="Bytes training may take, such as 2GiB.", show_default="4/5 of what is free")
    ] = None,
    target_seconds: Annotated[float, typer.Option(min=0, help="Wanted time of a task; 0: only memory decides.")] = 0.0,
    batch: Annotated[int, typer.Option(min=1, help="Samples per step.")] = 8,
    samples: Annotated[int, typer.Option(min=1, help="Training samples the device will have.")] = 500,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over them per task.")] = 5,
    threads: Annotated[int, typer.Option(min=0, help="Of torch; 0: all cores.")] = 0,
    accelerator: Annotated[
        str, typer.Option(help="What to measure: auto, the GPU if there is one, cpu, cuda, cuda:1 or mps.")
    ] = "auto",
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the figures go.")] = Path("device.toml"),
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Measure step time and peak memory of submodels on this device, and recommend its rate.

    cos2p profile --model vit-base --memory 2GiB --target-seconds 60
    """
    from cos2p.cli.spinner import busy
    from cos2p.devices.profile import profile as run_profile
    from cos2p.devices.profile import write_device
    from cos2p.units import parse_bytes

    mode = OutputMode.of(ctx, quiet=quiet, json=json)
    config = _shape(model)
    bytes_for_training = parse_bytes(memory) if memory else 0

    def show(rate: float, outcome: Sample | str) -> None:
        if not (mode.quiet or mode.json):
            said = outcome if isinstance(outcome, str) else f"{1000 * outcome.step_seconds:,.0f} ms a step"
            typer.echo(f"rate {rate:g}: {said}", err=True)

    with busy(mode, "measuring"):
        found = run_profile(
            config,
            model,
            memory=bytes_for_training,
            target_seconds=target_seconds,
            batch=batch,
            samples=samples,
            epochs=epochs,
            threads=threads,
            accelerator=accelerator,
            on_sample=show,
        )
    write_device(found, out)
    if mode.json:
        figures = {name: getattr(found, name) for name in ("rate", "flops", "memory", "accelerator")}
        print_json({**figures, "out": str(out)})
        return
    console().print(_table(found))
    typer.echo(_advice(found, out))


def _shape(model: str) -> ModelConfig:
    """The shape of what `--model` names: a recipe's follows its data, a checkpoint's its config.json."""
    from cos2p.models.sizes import SIZES
    from cos2p.models.sizes import model_config as named
    from cos2p.recipes import shipped_recipes

    if model not in SIZES and (model.endswith(".toml") or model in shipped_recipes()):
        from cos2p.data import load
        from cos2p.recipe import Recipe
        from cos2p.runtime.run_setup import model_config

        recipe = Recipe.load(model)
        return model_config(recipe, load(recipe.data, recipe.seed, recipe.model.pretrained))
    if model not in SIZES and Path(model).expanduser().is_dir():
        from cos2p.models.hub import pretrained_config

        return pretrained_config(model)
    return named(model)


def _table(found: Profile) -> Table:
    from rich.table import Table

    from cos2p.terminal.formatting import duration
    from cos2p.units import format_bytes

    table = Table("rate", "step", "a task", "peak", "ledger", "GFLOP/s")
    for sample in found.measured:
        table.add_row(
            f"{sample.rate:g}",
            f"{1000 * sample.step_seconds:,.0f} ms",
            duration(found.task_seconds(sample.rate)),
            format_bytes(sample.peak),
            format_bytes(sample.predicted),
            f"{sample.flops_per_second / 1e9:.1f}",
        )
    return table


def _advice(found: Profile, out: Path) -> str:
    from cos2p.terminal.formatting import duration
    from cos2p.units import format_bytes

    within = format_bytes(found.memory) + (f" and {found.target_seconds:g} s" if found.target_seconds else "")
    if found.rate == 0.0:
        return f"no rate fits {within}; give it more time, more memory or a smaller batch. Figures: {out}"
    return (
        f"R_n = {found.rate:g} on {found.accelerator}: the largest that fits {within} "
        f"(a task of {found.samples} samples: {duration(found.task_seconds(found.rate))}). Figures: {out}"
    )

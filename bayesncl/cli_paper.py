"""The commands around the paper's experiments: reproduce, record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import cli
from .cli import app
from .options import DataDir, Device, Quiet, RunDir


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="a table or figure of the paper, or all")] = None,
    listing: Annotated[bool, typer.Option("--list", help="what exists, what has been run, what it would cost")] = False,
    scale: Annotated[
        str, typer.Option("--scale", help="smoke: scenes on a CPU in a minute; paper: full size")
    ] = "paper",
    data: DataDir = None,
    results: Annotated[Path, typer.Option("--results", metavar="DIR", help="the ledger")] = Path("results"),
    pages: Annotated[Path | None, typer.Option("--pages", metavar="DIR", help="write page and figures there")] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="show from the ledger alone; train nothing")] = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """A table or figure of the paper by name: theirs next to ours."""
    from .reproduce import command
    from .train import Interrupted

    display = cli.open_display(quiet)
    try:
        command.reproduce(
            name, listing=listing, scale=scale, data=data, results=results, pages=pages, dry=dry, device=device,
            display=display,
        )  # fmt: skip
    except Interrupted:
        display.close()
        display.note("stopped; the same command continues from here")
        raise typer.Exit(130) from None


@app.command()
def record(
    run: RunDir,
    results: Annotated[Path, typer.Option("--results", metavar="DIR", help="the ledger")] = Path("results"),
    data: DataDir = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Put a finished run into a ledger, evaluated first if needed."""
    from .reproduce.runner import record_run

    display = cli.open_display(quiet)
    path = record_run(run, results, data, device=cli.open_device(device), display=display)
    display.close()
    print(f"recorded {path}")

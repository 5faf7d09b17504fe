"""The commands around the paper's experiments: reproduce, record, and the demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from . import cli
from .cli import app
from .options import Changes, DataDir, Device, Quiet, RunDir
from .recipes import find_recipe


@app.command()
def reproduce(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="a table or figure of the paper, or all")] = None,
    listing: Annotated[bool, Option("--list", help="what exists, what has been run, what it would cost")] = False,
    scale: Annotated[str, Option(help="smoke: scenes on a CPU in a minute; paper: full size")] = "paper",
    data: DataDir = None,
    results: Annotated[Path, Option(metavar="DIR", help="the ledger")] = Path("results"),
    pages: Annotated[Path | None, Option(metavar="DIR", help="write page and figures there")] = None,
    dry: Annotated[bool, Option("--dry-run", help="show from the ledger alone; train nothing")] = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Make a table or figure of the paper: theirs next to ours."""
    display = cli.open_display(quiet)
    from .reproduce import command

    display.close()  # tables are printed between runs
    with cli.interruptible(display, "stopped; the same command continues from here"):
        command.reproduce(
            name, listing=listing, scale=scale, data=data, results=results, pages=pages, dry=dry, device=device,
            display=display,
        )  # fmt: skip


@app.command()
def record(
    run: RunDir,
    results: Annotated[Path, Option(metavar="DIR", help="the ledger")] = Path("results"),
    data: DataDir = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Put a finished run into a ledger. It is evaluated first if it was not."""
    display = cli.open_display(quiet)
    from .reproduce.runner import record_run
    from .run import Run

    path = record_run(Run(run), results, data, cli.open_device(device), display)
    display.close()
    print(f"recorded {path}")


@app.command()
def demo(
    methods: Annotated[bool, Option("--methods", help="CL, NCL and BayesNCL on scenes, 20 minutes")] = False,
    out: Annotated[Path | None, Option(metavar="DIR", help="where it goes; default runs/demo")] = None,
    changes: Changes = None,
    open_browser: Annotated[bool, Option("--open/--no-open", help="open the page in a browser")] = True,
    quiet: Quiet = False,
) -> None:
    """See it work: readable codes of built-in photographs.

    Trains a small encoder, fits codes to it and opens their atlas, in a minute on two cores.
    """
    find_recipe("scenes" if methods else "textures", changes)  # a mistake is told before anything else
    display = cli.open_display(quiet)
    display.note(f"about {'20 minutes' if methods else 'a minute'} on two cores, unless it is done already")
    from .demo import run_demo, run_methods

    work, place = (run_methods, "runs/demo-methods") if methods else (run_demo, "runs/demo")
    with cli.interruptible(display, "stopped after {stop.done} of {stop.total} steps; the same command continues"):
        work(out or Path(place), changes or [], open_browser, display)

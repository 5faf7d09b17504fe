"""Commands around the paper's experiments: reproduce, record."""

from pathlib import Path

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt, out_folder

LEDGER = opt("DIR", "The ledger: a folder of recorded runs.", "--results", default=Path("results"))


def reproduce(
    name: str | None = arg("NAME", "A table or figure (see --list), or all.", None),
    listing: bool = flag("--list", "List experiments, runs and costs."),
    scale: str = opt("NAME", "paper, or smoke: tiny runs, a minute on a CPU.", default="paper"),
    data: str | None = common.DATA,
    results: Path = LEDGER,
    pages: Path | None = opt("DIR", "Write the results page into this folder."),
    dry: bool = flag("--dry-run", "Show the ledger's results; write nothing."),
    seeds: str = opt("0,1,2", "Seeds, instead of the experiment's own.", default=""),
    changes: list[str] | None = common.CHANGES,
    keep_weights: Path | None = out_folder("Keep the trained runs, with weights, in this folder."),
    device: str = common.DEVICE,
    quiet: bool = common.QUIET,
) -> None:
    """Reproduce a table or figure of the paper.

    Trains the runs that the ledger lacks; prints our numbers beside the published ones.
    """
    display = common.open_display(quiet)
    from bayesncl.paper.reproduce import reproduce as run_experiments
    from bayesncl.training.loop import Interrupted

    display.close()  # tables are printed between runs
    with common.stoppable(display, Interrupted, "stopped; run the same command to continue"):
        run_experiments(
            name, listing=listing, scale=scale, data=data, results=results, pages=pages, dry=dry,
            seeds=seeds, changes=changes or (), keep_weights=keep_weights,
            device=None if device == "auto" else device, display=display,
        )  # fmt: skip


def record(
    run: Path = common.RUN,
    results: Path = LEDGER,
    data: str | None = common.DATA,
    paper_probe: bool = common.PAPER_PROBE,
    background: str | None = common.BACKGROUND,
    device: str = common.DEVICE,
    quiet: bool = common.QUIET,
) -> None:
    """Add a finished run to the ledger of recorded runs.

    If the run has an entry, measures that it lacks are added.
    """
    display = common.open_display(quiet)
    from bayesncl.device import find_device
    from bayesncl.paper.reproduce import record_run
    from bayesncl.training.run_folder import RunFolder

    path = record_run(
        RunFolder(run), results, root=data, background=background, paper_probe=paper_probe,
        device=find_device(device), display=display,
    )  # fmt: skip
    display.show(f"recorded {path}")

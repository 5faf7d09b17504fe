"""Commands around the paper's experiments: reproduce, record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt, out_folder

Ledger = Annotated[Path, opt("DIR", "Folder of recorded runs, the ledger.", "--results")]


def reproduce(
    name: Annotated[str | None, arg("NAME", "A table or figure (see --list), or all.")] = None,
    listing: Annotated[bool, flag("--list", "List experiments, runs and costs.")] = False,
    scale: Annotated[str, opt("NAME", "smoke (a minute on a CPU) or paper.")] = "paper",
    data: common.DataDir = None,
    results: Ledger = Path("results"),
    pages: Annotated[Path | None, opt("DIR", "Write the results page into this folder.")] = None,
    dry: Annotated[bool, flag("--dry-run", "Show the ledger's results; write nothing.")] = False,
    seeds: Annotated[str, opt("0,1,2", "Seeds, instead of the experiment's own.")] = "",
    changes: common.Changes = None,
    keep_weights: Annotated[Path | None, out_folder("Keep trained runs in this folder.")] = None,
    device: common.Device = "auto",
    quiet: common.Quiet = False,
) -> None:
    """Reproduce a table or figure of the paper. Prints published numbers beside ours."""
    display = common.open_display(quiet)
    from bayesncl.paper import command
    from bayesncl.training.loop import Interrupted

    display.close()  # tables are printed between runs
    with common.stoppable(display, Interrupted, "stopped; run the same command to continue"):
        command.reproduce(
            name, listing=listing, scale=scale, data=data, results=results, pages=pages, dry=dry,
            seeds=seeds, changes=changes or (), keep_weights=keep_weights,
            device=None if device == "auto" else device, display=display,
        )  # fmt: skip


def record(
    run: common.RunDir,
    results: Ledger = Path("results"),
    data: common.DataDir = None,
    paper_probe: common.PaperProbe = False,
    background: common.Background = None,
    device: common.Device = "auto",
    quiet: common.Quiet = False,
) -> None:
    """Add a finished run to the ledger, or complete its entry."""
    display = common.open_display(quiet)
    from bayesncl.device import find_device
    from bayesncl.paper.runner import record_run
    from bayesncl.training.run_folder import RunFolder

    path = record_run(
        RunFolder(run), results, root=data, background=background, paper_probe=paper_probe,
        device=find_device(device), display=display,
    )  # fmt: skip
    display.close()
    print(f"recorded {path}")

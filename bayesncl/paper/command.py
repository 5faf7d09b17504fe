"""`bayesncl reproduce`: list, run what is missing, show published next to ours, write the page."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from bayesncl import data as datasets
from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.paper import figures, ledger, page
from bayesncl.paper.cells import Table, count_filled, fill, has_runs, text
from bayesncl.paper.experiments import SCALES, Experiment, choose, runs
from bayesncl.paper.runner import Workspace, lacking, run_list
from bayesncl.progress import Display
from bayesncl.recipes import Recipe
from bayesncl.report.tables import format_table, open_console

LEDGER = Path("results")
SMOKE_LEDGER = Path("runs/smoke/results")  # smoke runs stay out of the repository's ledger
WORK = {LEDGER: Path("runs/reproduce"), SMOKE_LEDGER: Path("runs/smoke")}
RESNET50_TIME = 2.3  # times that of ResNet-18, by multiply-adds


def reproduce(
    name: str | None, *, listing: bool = False, scale: str = "paper", data: str | None = None,
    results: Path = LEDGER, pages: Path | None = None, dry: bool = False,
    seeds: str | Sequence[int] = (), changes: Sequence[str] = (), keep_weights: Path | None = None,
    device: str | None = None, display: Display | None = None,
) -> None:  # fmt: skip
    """Show a table or figure of the paper next to our runs, after doing those that are missing.

    Parameters
    ----------
    name : an experiment, or `all`; None lists them, as `listing` does.
    scale : `paper`, or `smoke`: scenes on a CPU, with a ledger of its own.
    data : folder that holds a folder per dataset, or the only dataset; without it nothing is
        trained at paper scale.
    results : the ledger.
    pages : folder for results.md and figures/; without it figures go to runs/reproduce/figures.
    dry : train nothing and write nothing.
    seeds : instead of the experiment's own; also as text, ``"0,1,2"``.
    changes : changes to every recipe, as in ``["run.epochs=100"]``.
    keep_weights : folder for run folders with final weights; default runs/reproduce/models.
    """
    if scale not in SCALES:
        raise InputError(f"scale must be paper or smoke, got {scale!r}")
    if dry and pages is not None:
        raise InputError("a dry run writes nothing: leave out --dry-run or --pages")
    if scale == "smoke" and results == LEDGER:
        results = SMOKE_LEDGER
    chosen = choose(name, parse_seeds(seeds), changes)
    if listing or name is None:
        show_list(chosen, ledger.read(results), scale, results)
        return
    place = find_device(device or ("cpu" if scale == "smoke" else None))
    work, display = work_folder(results), display or Display(quiet=True)
    space = Workspace(results, keep_weights or work / "models", data, scale, place, display)
    for experiment in [] if dry else chosen:
        do_missing(experiment, space)
    entries = ledger.read(results)
    if not entries:
        display.note(f"no runs in {results}; a clone of the repository has ours in {LEDGER}")
    found = ledger.by_setting(entries)
    for experiment in chosen:
        table = fill(experiment, found, scale)
        show(experiment, table, scale)
        if experiment.is_figure and not dry and (pages is None or scale == "smoke"):
            draw(experiment.name, table, (pages or work) / "figures", space)
    if pages is not None and scale == "paper":
        display.note(f"wrote {page.write(pages, entries)}")


def parse_seeds(seeds: str | Sequence[int]) -> list[int]:
    """Seeds from text such as 0,1,2."""
    parts = [part for part in seeds.split(",") if part] if isinstance(seeds, str) else seeds
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise InputError(f"seeds must be whole numbers such as 0,1,2, got {seeds!r}") from None


def work_folder(results: Path) -> Path:
    """Folder for run folders and figures of a ledger; never inside the repository's own ledger."""
    known = {path.resolve(): work for path, work in WORK.items()}
    return known.get(results.resolve(), results / "work")


def missing(experiment: Experiment, entries: list[ledger.Entry], scale: str) -> list[Recipe]:
    """The runs that the ledger lacks, or has without a measure that the experiment shows."""
    known = ledger.by_identity(entries)
    needed = runs(experiment, scale)
    return [r for r in needed if lacking(known.get(ledger.identity(r)), experiment, scale)]


def do_missing(experiment: Experiment, space: Workspace) -> None:
    """Do the missing runs of an experiment, if their images exist."""
    display, data, background = space.display, space.data, experiment.background
    if data is not None and not Path(data).expanduser().exists():
        raise InputError(f"{data}: no such folder")
    todo = missing(experiment, ledger.read(space.results), space.scale)
    if not todo:
        return
    if space.scale == "paper" and data is None:
        display.note(f"{experiment.name}: {len(todo)} runs are missing; --data DIR does them")
        return
    if space.scale == "paper" and background not in (None, *space.backgrounds()):
        display.note(f"{experiment.name}: no {background} under {data}")
        return
    for folder in (space.results, space.models):  # check before hours of training, not after
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise InputError(f"{folder} is not writable")
    minutes = sum(map(estimate, todo))
    display.note(f"{experiment.name}: {len(todo)} runs, about {minutes:.0f} min on an H200")
    run_list(todo, experiment, space)


def estimate(recipe: Recipe) -> float:
    """Minutes of a run on one H200."""
    factor = RESNET50_TIME if recipe.model.backbone == "resnet50" else 1.0
    return datasets.DATASETS[recipe.data.name].seconds * recipe.run.epochs * factor / 60


def show_list(
    chosen: list[Experiment], entries: list[ledger.Entry], scale: str, results: Path
) -> None:
    """Print what exists, what is in the ledger, what the rest costs, and what is filled."""
    left: dict[str, Recipe] = {}
    rows = []
    for experiment in chosen:
        needed, todo = runs(experiment, scale), missing(experiment, entries, scale)
        left.update({ledger.identity(recipe): recipe for recipe in todo})
        minutes = sum(map(estimate, todo))
        counts = [str(n) for n in (len(needed), len(needed) - len(todo))]
        rows.append([experiment.name, experiment.title, *counts, f"{minutes:.0f}"])
    console = open_console()
    header = ("name", "shows", "runs", "complete", "GPU minutes left")
    print(format_table(header, rows, width=console.width), end="")
    total = sum(map(estimate, left.values()))
    console.print(
        f"{len(entries)} runs in the ledger ({results}). Tables share runs: {len(left)} are "
        f"missing or lack a measure, about {total:.0f} minutes on one H200."
    )
    filled, published = count_filled(ledger.by_setting(entries))
    console.print(f"{filled} of {published} published numbers have a run beside them")


def show(experiment: Experiment, table: Table, scale: str) -> None:
    """Print a table; without the spreads where they do not fit the terminal."""
    console = open_console()
    for dataset, lines in table.items():
        header, rows = text(lines)
        widths = [2 + max(map(len, column)) for column in zip(header, *rows)]
        if sum(widths) - 2 > console.width:
            rows = [[re.sub(r" ± [0-9.]+", "", cell) for cell in row] for row in rows]
        title = datasets.DATASETS[dataset].title
        console.print(f"{experiment.name}: {experiment.title}, {title}", style="bold")
        print(format_table(header, rows, width=console.width))
    if scale == "paper" and any(map(has_runs, table.values())):  # notes are about our runs
        for note in page.notes().get(experiment.name, []):
            console.print(note)


def draw(name: str, table: Table, folder: Path, space: Workspace) -> None:
    """Draw a figure for each dataset with runs; sheets of images only if the images exist."""
    written = []
    for dataset, lines in table.items():
        path = folder / figures.file_name(name, dataset)
        if name in figures.FIGURES:
            if has_runs(lines):
                written.append(figures.FIGURES[name](lines, path))
        elif (entry := figures.sheet_entry(name, lines)) is not None:
            print(page.exemplar_table(name, entry))
            if space.data is not None or space.scale == "smoke":
                recipe = space.rooted(ledger.recipe_in(entry))
                test = datasets.load(recipe.data, "test", space.display.count)
                written.append(figures.draw_sheet(name, entry, test, path))
    for path in written:
        space.display.note(f"wrote {path}")
    if not written:
        space.display.note(f"{name}: nothing to draw yet")

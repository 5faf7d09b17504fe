"""`bayesncl reproduce`: list, run what is missing, show theirs next to ours, write the page."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path

import torch

from .. import data as datasets
from ..errors import InputError
from ..progress import Display
from ..recipes import Recipe
from ..report.tables import open_console
from ..report.tables import write as write_table
from ..train import find_device
from . import figures, ledger, page
from .experiments import EXPERIMENTS, MAIN, SCALES, Experiment, find, runs, title
from .runner import Library, estimate, run_list
from .tables import Entries, sections, text

LEDGER = Path("results")
SMOKE_LEDGER = Path("runs/smoke/results")  # smoke runs never enter the ledger of the repository
WORK = {LEDGER: Path("runs/reproduce"), SMOKE_LEDGER: Path("runs/smoke")}  # run folders and figures, by ledger


def reproduce(
    name: str | None, *, listing: bool = False, scale: str = "paper", data: str | None = None, results: Path = LEDGER,
    pages: Path | None = None, dry: bool = False, device: str | None = None, display: Display | None = None,
) -> None:  # fmt: skip
    """Show a table or figure of the paper next to our runs, after doing those that are missing.

    `name` is an experiment's, or `all`; None lists them, as `listing` does. `smoke`, scenes on a CPU, has a ledger of
    its own unless `results` names one. `data` is a folder that holds a folder for each data set, or the one data set;
    without it nothing is trained at full size, with `dry` nothing at all. results.md and figures/ go to `pages`;
    without it a figure goes to runs/reproduce/figures.
    """
    if scale not in SCALES:
        raise InputError(f"--scale is paper or smoke, got {scale!r}")
    if scale == "smoke" and results == LEDGER:
        results = SMOKE_LEDGER
    chosen = list(EXPERIMENTS.values()) if name in (None, "all") else [find(str(name))]
    if listing or name is None:
        show_list(chosen, ledger.read(results), scale, results)
        return
    display = display or Display(quiet=True)
    if not dry:
        # smoke runs are for a CPU
        where = torch.device("cpu") if device is None and scale == "smoke" else find_device(device)
        train_missing(chosen, scale, data, results, where, display)
    entries = ledger.read(results)
    if not entries:
        display.note(f"no runs in the ledger {results}: ours are in a clone of the repository, in its folder {LEDGER}")
    found = ledger.by_setting(entries)
    folder = (pages or workplace(results)) / "figures"
    for experiment in chosen:
        show(experiment, found, scale)
        if experiment.is_figure and (pages is None or scale == "smoke"):
            draw(experiment, found, scale, folder, data, display)
    if pages is not None and scale == "paper":
        display.note(f"wrote {page.write(pages, entries)}")


def workplace(results: Path) -> Path:
    """Where run folders and figures of a ledger go: never into the repository's own."""
    known = {place.resolve(): work for place, work in WORK.items()}
    return known.get(results.resolve(), results / "work")


def missing(experiment: Experiment, entries: list[ledger.Entry], scale: str) -> list[Recipe]:
    """The runs of an experiment that the ledger lacks, or has without what the experiment needs."""
    known = ledger.by_identity(entries)
    return [r for r in runs(experiment, scale) if not is_complete(known.get(ledger.identity(r)), experiment)]


def is_complete(entry: ledger.Entry | None, experiment: Experiment) -> bool:
    """Whether an entry has what the experiment shows."""
    if entry is None:
        return False
    if experiment.needs == "dynamics":
        return bool(entry["dynamics"])
    name = entry["recipe"]["data"]["name"]
    own = datasets.DATASETS[name].second_label  # its backgrounds are known: no other set is needed
    return not experiment.needs or (name if own else experiment.needs) in entry["extra"]


def train_missing(
    chosen: list[Experiment], scale: str, data: str | None, results: Path, device: torch.device, display: Display
) -> None:
    """Do the runs that are not in the ledger, as far as their images are there."""
    models = workplace(results) / "models"
    if data is not None and not Path(data).expanduser().exists():
        raise InputError(f"{data}: no such folder")
    for experiment in chosen:
        entries = ledger.read(results)
        todo = missing(experiment, entries, scale)
        if not todo:
            continue
        if scale == "paper" and data is None:
            display.note(f"{experiment.name}: {len(todo)} runs are not in the ledger; --data DIR would train them")
            continue
        background = experiment.needs not in ("", "dynamics")
        if scale == "paper" and background and experiment.needs not in Library(data, display).backgrounds():
            display.note(f"{experiment.name}: no {experiment.needs.replace('_', '-')} under {data}")
            continue
        for folder in (results, models):  # a run would only find out when it is done
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise InputError(f"{folder} cannot be written to")
        minutes = sum(estimate(recipe, entries) for recipe in todo) / 60
        display.note(f"{experiment.name}: {len(todo)} runs to do, about {minutes:.0f} minutes on one H200")
        run_list(
            todo, data, results, models, device=device, display=display, paper_probe=scale == "paper",
            background=background, complete=partial(is_complete, experiment=experiment),
        )  # fmt: skip


def show_list(chosen: list[Experiment], entries: list[ledger.Entry], scale: str, results: Path) -> None:
    """What exists, what is in the ledger, what the rest would cost."""
    everything: dict[str, Recipe] = {}
    rows = []
    for experiment in chosen:
        needed, todo = runs(experiment, scale), missing(experiment, entries, scale)
        everything.update({ledger.identity(recipe): recipe for recipe in todo})
        minutes = sum(estimate(recipe, entries) for recipe in todo) / 60
        done = str(len(needed) - len(todo))
        rows.append([experiment.name, title(experiment), str(len(needed)), done, f"{minutes:.0f}"])
    console = open_console()
    header = ("name", "shows", "runs", "in ledger", "GPU minutes left")
    print(write_table(header, rows, width=console.width), end="")
    total = sum(estimate(recipe, entries) for recipe in everything.values()) / 60
    console.print(
        f"{len(entries)} runs in the ledger ({results}). Tables share runs: {len(everything)} are left in all, "
        f"about {total:.0f} minutes on one H200 (by the times in the ledger, else 5 minutes for 200 epochs of CIFAR "
        "and 20 for ImageNet-100)."
    )


def show(experiment: Experiment, found: dict[str, list[ledger.Entry]], scale: str) -> None:
    """Print a table: paper, ours, sound; without the spreads over seeds where they do not fit the terminal."""
    console = open_console()
    parts = sorted(sections(experiment, found, scale), key=lambda section: not section.runs)
    for section in parts:
        header, rows = text(section)
        if sum(2 + max(map(len, column)) for column in zip(header, *rows)) - 2 > console.width:  # columns are two apart
            rows = [[re.sub(r" ± [0-9.]+", "", cell) for cell in row] for row in rows]
        where = datasets.DATASETS[section.dataset].title
        console.print(f"{experiment.name}: {title(experiment)}, {where}", style="bold")
        print(write_table(header, rows, width=console.width))
    if scale == "paper" and any(section.runs for section in parts):  # the notes are about our runs
        for note in page.notes().get(experiment.name, []):
            console.print(note)


def draw(experiment: Experiment, found: Entries, scale: str, folder: Path, data: str | None, display: Display) -> None:
    """Draw one figure; a sheet of images only where the images are at hand."""
    dataset = "scenes" if scale == "smoke" else MAIN
    path, drawn = folder / figures.file_name(experiment.name), None
    if experiment.name in figures.FIGURES:
        drawn = figures.draw(experiment.name, found, path, dataset, scale)
    elif (entry := figures.sheet_entry(experiment.name, found, dataset, scale)) is not None:
        kind = figures.SHEETS[experiment.name]
        print(page.exemplar_table(kind, entry))
        if data is not None or scale == "smoke":
            recipe = Library(data, display).rooted(ledger.recipe_in(entry))
            drawn = figures.draw_sheet(kind, entry, datasets.load(recipe.data, "test", display.count), path)
    display.note(f"wrote {drawn}" if drawn else f"{experiment.name}: nothing to draw yet")

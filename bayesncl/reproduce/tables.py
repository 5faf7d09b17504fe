"""Theirs next to ours: the cells of a table from the ledger, and the table as rows of text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean as mean
from typing import Any

from ..cost import cost
from ..data import DATASETS
from ..recipes import replace_fields
from . import ledger
from .experiments import EXPERIMENTS, MAIN, Experiment, Row, paper, rows

AXIS_NAMES = {"dim": "D", "gate_lr": "gate rate", "batch_size": "batch"}  # where they differ from the axis
DYNAMICS = ("af_gv", "af_sc", "gv_sc")  # columns of the gradient dynamics
UNMARKED = ("running_time_min",)  # depends on the machine: not marked as differing
counted = cache(cost)
FAST = "†"
NOT_RUN = "not run"

Entries = dict[str, list[ledger.Entry]]  # by setting


@dataclass(frozen=True)
class Cell:
    """One number of a table: as published, and ours of every run by both definitions."""

    column: str
    published: float | None
    ours: tuple[float, ...] = ()
    sound: tuple[float, ...] = ()
    mark: str = ""  # FAST: the accuracy is the fast probe's, for the published probe was not run

    @property
    def decimals(self) -> int | None:
        """As the paper prints it; None for operations."""
        return paper()["columns"][self.column]["decimals"]

    def verdict(self) -> str:
        """▲ or ▼ where ours lies above or below the published value by more than twice the seeds' spread."""
        if self.published is None or len(self.ours) < 2 or self.column in UNMARKED:
            return ""
        rounding = 0.5 * 10.0**-self.decimals if self.decimals is not None else 5e-4 * self.published
        gap = mean(self.ours) - self.published
        return "" if abs(gap) <= 2 * spread(self.ours) + rounding else "▲" if gap > 0 else "▼"


@dataclass(frozen=True)
class Line:
    """A row of a table with its cells and the runs behind them."""

    row: Row
    runs: list[ledger.Entry]  # by seed
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Section:
    """The lines of one data set."""

    dataset: str
    columns: list[str]
    lines: list[Line]

    @property
    def runs(self) -> int:
        """How many stand behind the lines."""
        return sum(len(line.runs) for line in self.lines)


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds (n - 1); 0 of one run."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def lines_of(name: str, entries: Entries, dataset: str = MAIN, scale: str = "paper") -> list[Line]:
    """The lines of an experiment for one data set."""
    return [line for s in sections(EXPERIMENTS[name], entries, scale) if s.dataset == dataset for line in s.lines]


def sections(experiment: Experiment, entries: Entries, scale: str = "paper") -> list[Section]:
    """The table of an experiment by data set; measures the paper never gives for a data set are left out."""
    found = []
    columns = paper()["tables"][experiment.tables[0]]["columns"]  # of several tables, those of the first
    everything = rows(experiment, scale)
    for dataset in dict.fromkeys(row.dataset for row in everything):
        mine = [row for row in everything if row.dataset == dataset]
        shown = [c for c in columns if any(row.published.get(c) is not None for row in mine)] or columns
        found.append(Section(dataset, shown, [fill(row, shown, entries) for row in mine]))
    return found


def fill(row: Row, wanted: Sequence[str], entries: Entries) -> Line:
    """The cells of a row from the runs of its setting."""
    runs = entries.get(ledger.setting(row.recipe), [])
    if any(c in DYNAMICS for c in wanted):
        runs = [entry for entry in runs if entry["dynamics"]]
    if any(c.startswith("background") for c in wanted):
        runs = [entry for entry in runs if _background(entry, row) is not None]
    return Line(row, runs, {column: cell(row, column, runs) for column in wanted})


def cell(row: Row, column: str, runs: Sequence[ledger.Entry]) -> Cell:
    """One measure of a row over its runs."""
    published = row.published.get(column)
    if column == "flops":  # counted, not run, both views; per image or, where the batch varies, per batch
        any_batch = replace_fields(row.recipe, run={"seed": 0, "batch": 2})  # neither enters
        return Cell(column, published, (float(counted(any_batch)["macs_per_image"] * row.axes.get("batch_size", 1)),))
    found = ([value(entry, row, column, definition) for entry in runs] for definition in ("paper", "sound"))
    ours, sound = (tuple(v for v in values if v is not None) for values in found)
    if column == "running_time_min":
        ours = ours and (min(ours),)  # others may have shared their GPU
    fast = column in ("acc1", "acc5") and any("paper" not in entry["measures"].get("probe", {}) for entry in runs)
    return Cell(column, published, ours, sound, FAST if fast else "")


def value(entry: ledger.Entry, row: Row, column: str, definition: str) -> float | None:
    """A measure of one run; None where it was not taken."""
    measures = entry["measures"]
    if column in ("acc1", "acc5"):
        probes = measures.get("probe", {})
        probe = probes.get("paper", probes.get("fast")) if definition == "paper" else probes.get("fast")
        return probe[column] if probe else None
    if column.startswith("p@"):
        kept = str(int(row.axes["K"]))
        curve = measures["curves"][f"retrieval_{definition}"].get(kept) or measures["retrieval"][definition].get(kept)
        return curve[column.removeprefix("p@")] if curve else None
    if column in DYNAMICS:
        epochs = {record["epoch"]: record for record in entry["dynamics"]}
        record = epochs.get(int(row.axes["epoch"]))
        return record[definition][column] if record else None
    if column == "running_time_min":
        seconds = entry["seconds"]["train"]
        return seconds / 60 if seconds is not None and definition == "paper" else None
    if column.startswith("background"):
        probed = _background(entry, row) if definition == "paper" else None  # one probe, a sound one, serves for both
        kind = column.removeprefix("background_").replace("acc", "h")  # the paper does not say which feature: h
        return probed[kind]["acc1"] if probed else None
    return measures[definition].get(column)


def text(section: Section) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text: for a row that was run three lines, paper, ours and sound; else the paper's alone."""
    header = ["method", "", *(paper()["columns"][c]["symbol"] for c in section.columns), "runs"]
    in_paper = any(c.published is not None for line in section.lines for c in line.cells.values())
    body = []
    for line in section.lines:
        cells = [line.cells[c] for c in section.columns]
        runs = str(len(line.runs) or NOT_RUN)
        published = ["–" if c.published is None else number(c.published, c.decimals) for c in cells]
        block = [["paper", *published, ""]] if in_paper else []
        if any(c.ours for c in cells) or not in_paper:
            block.append(["ours", *(_ours(c) for c in cells), ""])
        if any(c.sound for c in cells):
            block.append(["sound", *(summary(c.sound, c.decimals) for c in cells), ""])
        block[min(1, len(block) - 1) if in_paper else 0][-1] = runs
        body += [[label(line.row) if i == 0 else "", *cells_text] for i, cells_text in enumerate(block)]
    return header, body


def label(row: Row) -> str:
    """Method, and what the table varies."""
    axes = [f"{AXIS_NAMES.get(axis, axis)} {value:g}" for axis, value in row.axes.items() if axis != "layers"]
    return ", ".join([paper()["methods"][row.method], *axes])


def number(value: float, decimals: int | None) -> str:
    """A measure to so many decimals; None: operations, in G or T."""
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value / 1e12:.3f} T" if value >= 1e12 else f"{value / 1e9:.3f} G"


def summary(values: Sequence[float], decimals: int | None) -> str:
    """Mean, and the spread over seeds where there are several; nothing for no values."""
    if not values:
        return ""
    centre = number(mean(values), decimals)
    return f"{centre} ± {number(spread(values), decimals)}" if len(values) > 1 else centre


def _ours(cell: Cell) -> str:
    if not cell.ours:
        return NOT_RUN if cell.published is not None else ""
    return f"{summary(cell.ours, cell.decimals)}{cell.mark} {cell.verdict()}".rstrip()


def _background(entry: ledger.Entry, row: Row) -> dict[str, Any] | None:
    """Probes for the background: on the published set, or on what a row of another data set is about."""
    key = row.dataset if DATASETS[row.dataset].second_label else "waterbirds_like"
    return entry["extra"].get(key)

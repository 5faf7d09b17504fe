"""Published numbers next to ours: the cells of a table, from the ledger, and the table as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean as mean
from typing import Any

from bayesncl.data import DATASETS
from bayesncl.paper import ledger
from bayesncl.paper.cost import cost
from bayesncl.paper.experiments import (
    ACCURACIES,
    DYNAMICS,
    EXPERIMENTS,
    MAIN,
    Experiment,
    Row,
    paper,
    rows,
)
from bayesncl.recipes import replace_fields

AXIS_NAMES = {"dim": "D", "gate_lr": "gate rate", "batch_size": "batch"}
TIME = "running_time_min"
NOT_RUN = "not run"
FAST_PROBE = "†"  # marks accuracies of the logistic regression

counted = cache(cost)
Entries = dict[str, list[ledger.Entry]]  # by setting


@dataclass(frozen=True)
class Cell:
    """One number of a table: as published, and ours per run, by both definitions."""

    column: str
    published: float | None
    ours: tuple[float, ...] = ()
    sound: tuple[float, ...] = ()

    @property
    def decimals(self) -> int | None:
        """Decimals that the paper prints; None for operations."""
        return paper()["columns"][self.column]["decimals"]

    def mark(self) -> str:
        """▲ or ▼ where ours differs from the published value by more than twice the spread."""
        if self.published is None or len(self.ours) < 2 or self.column == TIME:
            return ""
        unit = 10.0**-self.decimals if self.decimals is not None else 1e-3 * self.published
        gap = mean(self.ours) - self.published
        return "" if abs(gap) <= 2 * spread(self.ours) + unit / 2 else "▲" if gap > 0 else "▼"


@dataclass(frozen=True)
class Line:
    """A row of a table, the runs behind it by seed, and its cells by column."""

    row: Row
    runs: list[ledger.Entry]
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Section:
    """The lines of one dataset."""

    dataset: str
    columns: list[str]
    lines: list[Line]

    @property
    def runs(self) -> int:
        """Number of runs behind all lines."""
        return sum(len(line.runs) for line in self.lines)


def spread(values: Sequence[float]) -> float:
    """Standard deviation over seeds (n - 1); 0 for one run."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def lines_of(
    experiment: Experiment | str, entries: Entries, dataset: str = MAIN, scale: str = "paper"
) -> list[Line]:
    """The lines of an experiment for one dataset."""
    found = EXPERIMENTS[experiment] if isinstance(experiment, str) else experiment
    parts = sections(found, entries, scale)
    return [line for part in parts if part.dataset == dataset for line in part.lines]


def sections(experiment: Experiment, entries: Entries, scale: str = "paper") -> list[Section]:
    """The table by dataset, without the measures that the paper never gives for a dataset."""
    out = []
    every = rows(experiment, scale)
    for dataset in dict.fromkeys(row.dataset for row in every):
        mine = [row for row in every if row.dataset == dataset]
        given = [
            c for c in experiment.columns if any(r.published.get(c) is not None for r in mine)
        ]
        columns = given or experiment.columns
        out.append(Section(dataset, columns, [fill(row, columns, entries) for row in mine]))
    return out


def count_filled(entries: Entries) -> tuple[int, int]:
    """How many published numbers have a run of ours beside them, and how many there are."""
    lines = [
        line
        for name in paper()["tables"]
        for part in sections(EXPERIMENTS[name], entries)
        for line in part.lines
    ]
    filled = [
        bool(line.runs and cell.ours)
        for line in lines
        for cell in line.cells.values()
        if cell.published is not None
    ]
    return sum(filled), len(filled)


def fill(row: Row, columns: Sequence[str], entries: Entries) -> Line:
    """The cells of a row from the runs of its setting."""
    runs = entries.get(ledger.setting(row.recipe), [])
    if any(c in DYNAMICS for c in columns):
        runs = [entry for entry in runs if entry["dynamics"]]
    if any(c.startswith("background") for c in columns):
        runs = [entry for entry in runs if _background(entry, row) is not None]
    return Line(row, runs, {column: make_cell(row, column, runs) for column in columns})


def make_cell(row: Row, column: str, runs: Sequence[ledger.Entry]) -> Cell:
    """One measure of a row over its runs."""
    published = row.published.get(column)
    if column == "flops":  # counted over both views, per image, or per batch where the batch varies
        recipe = replace_fields(row.recipe, run={"seed": 0, "batch": 2})  # neither matters
        macs = counted(recipe)["macs_per_image"] * row.axes.get("batch_size", 1)
        return Cell(column, published, (float(macs),))
    ours, sound = (
        tuple(v for e in runs if (v := value(e, row, column, definition)) is not None)
        for definition in ("paper", "sound")
    )
    if column == TIME:
        ours = ours and (min(ours),)  # the others may have shared their GPU
    return Cell(column, published, ours, sound)


def value(entry: ledger.Entry, row: Row, column: str, definition: str) -> float | None:
    """A measure of one run; None if it was not taken.

    Accuracy has one protocol per definition: `paper` is the published 50-epoch probe, `sound` the
    logistic regression.
    """
    measures = entry["measures"]
    if column in ACCURACIES:
        probe = measures.get("probe", {}).get("paper" if definition == "paper" else "fast")
        return probe[column] if probe else None
    if column.startswith("p@"):
        kept = str(int(row.axes["K"]))
        curve = measures["curves"][f"retrieval_{definition}"].get(kept)
        curve = curve or measures["retrieval"][definition].get(kept)
        return curve[column.removeprefix("p@")] if curve else None
    if column in DYNAMICS:
        epoch = int(row.axes["epoch"])
        found = (record for record in entry["dynamics"] if record["epoch"] == epoch)
        return next((record[definition][column] for record in found), None)
    if column == TIME:
        seconds = entry["seconds"]["train"]
        return seconds / 60 if seconds is not None and definition == "paper" else None
    if column.startswith("background"):
        # one probe serves for both definitions; the paper does not name the feature: ours is h
        probes = _background(entry, row) if definition == "paper" else None
        kind = column.removeprefix("background_").replace("acc", "h")
        return probes[kind]["acc1"] if probes else None
    return measures[definition].get(column)


def text(section: Section) -> tuple[list[str], list[list[str]]]:
    """Header and rows of text: lines `paper`, `ours` and `sound` for each row that was run."""
    symbols = [paper()["columns"][c]["symbol"] for c in section.columns]
    in_paper = any(c.published is not None for line in section.lines for c in line.cells.values())
    body = []
    for line in section.lines:
        cells = [line.cells[c] for c in section.columns]
        block = [["paper", *map(_published, cells), ""]] if in_paper else []
        if any(c.ours for c in cells) or line.runs or not in_paper:
            block.append(["ours", *(_ours(c, len(line.runs)) for c in cells), ""])
        if any(c.sound for c in cells):
            block.append(["sound", *map(_sound, cells), ""])
        block[min(1, len(block) - 1) if in_paper else 0][-1] = str(len(line.runs) or NOT_RUN)
        body += [[label(line.row) if i == 0 else "", *cells] for i, cells in enumerate(block)]
    return ["method", "", *symbols, "runs"], body


def label(row: Row) -> str:
    """Method and values of the table's axes."""
    axes = [f"{AXIS_NAMES.get(a, a)} {value:g}" for a, value in row.axes.items() if a != "layers"]
    return ", ".join([paper()["methods"][row.method], *axes])


def number(value: float, decimals: int | None) -> str:
    """A measure with so many decimals; None: operations, in G or T."""
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value / 1e12:.3f} T" if value >= 1e12 else f"{value / 1e9:.3f} G"


def summary(values: Sequence[float], decimals: int | None) -> str:
    """Mean ± spread over seeds; the mean alone for one run, empty for none."""
    if not values:
        return ""
    center = number(mean(values), decimals)
    return f"{center} ± {number(spread(values), decimals)}" if len(values) > 1 else center


def _published(cell: Cell) -> str:
    return "–" if cell.published is None else number(cell.published, cell.decimals)


def _ours(cell: Cell, runs: int) -> str:
    if not cell.ours:
        return NOT_RUN if cell.published is not None else ""
    some = f" ({len(cell.ours)} of {runs} runs)" if cell.column in ACCURACIES else ""
    part = some if len(cell.ours) < runs else ""
    return f"{summary(cell.ours, cell.decimals)}{part} {cell.mark()}".rstrip()


def _sound(cell: Cell) -> str:
    probe = FAST_PROBE if cell.sound and cell.column in ACCURACIES else ""
    return summary(cell.sound, cell.decimals) + probe


def _background(entry: ledger.Entry, row: Row) -> dict[str, Any] | None:
    """Background probes of a run, on the row's dataset if it has backgrounds."""
    key = row.dataset if DATASETS[row.dataset].second_label else "waterbirds_like"
    return entry["extra"].get(key)

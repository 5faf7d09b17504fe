"""The paper's figures, and ours, drawn from the ledger. Published values are dashed, ours solid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from ..data.images import Images
from ..measure.plots import COLOURS, CORRELATIONS, MARKERS, plot_dynamics
from . import ledger
from .experiments import EXPERIMENTS, paper
from .tables import Entries, Line, mean, sections

MEASURE = {"cifar10": "p@1", "cifar100": "p@5", "imagenet100": "p@5", "scenes": "p@1"}  # as the paper plots retrieval
TILE, MARGIN = 64, 44  # pixels of an image on a sheet, and of the dimension's number before them
MOST_RUNS = 3  # drawn of a method


def draw(name: str, entries: Entries, path: Path, dataset: str = "cifar100", scale: str = "paper") -> Path | None:
    """Draw a figure for one data set; None where the ledger has nothing to draw."""
    lines = [line for s in sections(EXPERIMENTS[name], entries, scale) if s.dataset == dataset for line in s.lines]
    runs = [line for line in lines if line.runs]
    if not runs:
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    return FIGURES[name](runs, lines, entries, path)


def draw_sheet(kind: str, entry: ledger.Entry, test: Images, path: Path) -> Path:
    """The images that most activate each dimension, a row per dimension.

    Parameters
    ----------
    kind : high_entropy or suppressed.
    entry : its `exemplars` say which dimensions and images.
    test : the test split the run was evaluated on.
    """
    chosen = entry["exemplars"][kind]
    width = max(len(dimension["images"]) for dimension in chosen)
    gap = 2
    sheet = Image.new("RGB", (MARGIN + width * (TILE + gap) - gap, len(chosen) * (TILE + gap) - gap), "white")
    write = ImageDraw.Draw(sheet).text
    for row, dimension in enumerate(chosen):
        write((4, row * (TILE + gap) + TILE // 2), str(dimension["dim"]), "black", ImageFont.load_default(18), "lm")
        for column, number in enumerate(dimension["images"]):
            pixels = np.ascontiguousarray(test.pixels[number].transpose(1, 2, 0))
            tile = Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.NEAREST)
            sheet.paste(tile, (MARGIN + column * (TILE + gap), row * (TILE + gap)))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return path


def draw_support(runs: list[Line], lines: list[Line], entries: Entries, path: Path) -> Path:
    """Consistency over dimensions that fire on at least s images, a line per seed."""
    figure, axes = _canvas("least number of test images a dimension must fire on", "consistency (%)")
    for i, line in enumerate(runs):
        for j, entry in enumerate(runs_of(line, entries)):
            curve = entry["measures"]["curves"]["consistency_by_support"]
            points = [(int(s), c) for s, c in curve.items() if c is not None]
            name = f"{paper()['methods'][line.row.method]}, {line.runs} run{'s' if line.runs > 1 else ''}"
            _plot(axes, i, points, name if j == 0 else None)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    axes.axvline(10, color="0.4", linestyle=":", linewidth=1)
    axes.annotate("sound: 10", (10, 0), (4, 6), axes.get_xaxis_transform(), "offset points", fontsize=8, color="0.35")
    axes.set_ylim(bottom=0)
    return _save(figure, axes, path)


def draw_retrieval(runs: list[Line], lines: list[Line], entries: Entries, path: Path) -> Path:
    """Precision over the number of kept dimensions."""
    column = MEASURE[runs[0].row.dataset]
    figure, axes = _canvas("dimensions kept, K", f"retrieval precision at {column[2:]} (%)")
    _theirs_and_ours(axes, lines, "K", column)
    return _save(figure, axes, path)


def draw_dimensions(runs: list[Line], lines: list[Line], entries: Entries, path: Path) -> Path:
    """Consistency over the feature dimension, by the paper's definition and by ours."""
    figure, axes = _canvas("feature dimensions, D", "consistency (%)")
    _theirs_and_ours(axes, lines, "dim", "consistency", sound=True)
    axes.set_xscale("log", base=2)
    widths = sorted({int(line.row.axes["dim"]) for line in lines})
    axes.set_xticks(widths, [str(w) for w in widths])
    return _save(figure, axes, path)


def draw_tradeoff(runs: list[Line], lines: list[Line], entries: Entries, path: Path) -> Path:
    """Accuracy against consistency, a point per value of the prior or the KL weight."""
    figure = Figure(figsize=(9.0, 4.0), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, axis in zip(panels, ("rho", "lambda")):
        _style(axes, "consistency, paper's definition (%)", "")
        axes.set_title("prior" if axis == "rho" else "KL weight", fontsize=9)
        mine = [line for line in lines if axis in line.row.axes]
        for i, (name, pick) in enumerate((("published", _published), ("ours", _ours))):
            pairs = [(pick(line, "consistency"), pick(line, "acc1"), line.row.axes[axis]) for line in mine]
            points = [(x, y, value) for x, y, value in pairs if x is not None and y is not None]
            style = "--" if name == "published" else "-"
            _plot(axes, i, [(x, y) for x, y, _ in points], name, style)
            for j, (x, y, value) in enumerate(points):  # neighbours on different sides of their points
                place = (4, 3) if j % 2 else (4, -10)
                text = f"{value:g}".replace("e-0", "e-")
                axes.annotate(text, (x, y), place, textcoords="offset points", fontsize=7, color=COLOURS[i])
    panels[0].set_ylabel("probe accuracy (%)")
    return _save(figure, panels[0], path)


def draw_gradients(runs: list[Line], lines: list[Line], entries: Entries, path: Path) -> Path:
    """Correlations of frequency, gradient variance and consistency over epochs, means over seeds."""
    methods = {}
    for line in runs:
        found = [entry["dynamics"] for entry in runs_of(line, entries) if entry["dynamics"]]
        several = f", {len(found)} runs" if len(found) > 1 else ""
        methods[paper()["methods"][line.row.method] + several] = mean_dynamics(found)
    return plot_dynamics(methods, path)


def mean_dynamics(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Correlations, epoch by epoch, averaged over runs; of the epochs that all recorded."""
    by_epoch = [{row["epoch"]: row for row in rows} for rows in runs]
    means = []
    for epoch in sorted(set.intersection(*(set(rows) for rows in by_epoch))):
        row: dict[str, Any] = {"epoch": epoch}
        for definition in ("sound", "chance"):
            found = {key: [rows[epoch][definition][key] for rows in by_epoch] for key in CORRELATIONS}
            row[definition] = {key: None if None in values else mean(values) for key, values in found.items()}
        means.append(row)
    return means


Draw = Callable[[list[Line], list[Line], Entries, Path], Path]
FIGURES: dict[str, Draw] = {
    "figure-support": draw_support,
    "figure-retrieval": draw_retrieval,
    "figure-dimensions": draw_dimensions,
    "figure-tradeoff": draw_tradeoff,
    "figure-gradients": draw_gradients,
}
SHEETS = {"figure-high-entropy": "high_entropy", "figure-suppressed": "suppressed"}


def runs_of(line: Line, entries: Entries) -> list[ledger.Entry]:
    """The entries behind a line, at most MOST_RUNS."""
    return entries.get(ledger.setting(line.row.recipe), [])[:MOST_RUNS]


def sheet_entry(name: str, entries: Entries, dataset: str = "cifar100", scale: str = "paper") -> ledger.Entry | None:
    """The run whose dimensions a sheet shows: the first seed's."""
    for section in sections(EXPERIMENTS[name], entries, scale):
        for line in section.lines if section.dataset == dataset else ():
            for entry in runs_of(line, entries):
                if entry["exemplars"].get(SHEETS[name]):
                    return entry
    return None


def _theirs_and_ours(axes: Axes, lines: list[Line], axis: str, column: str, sound: bool = False) -> None:
    methods = dict.fromkeys(line.row.method for line in lines)
    for i, method in enumerate(sorted(methods, key=lambda m: m == "cl")):  # NCL has one colour in all figures
        mine = [line for line in lines if line.row.method == method]
        name = paper()["methods"][method]
        for pick, style, said in ((_published, "--", "published"), (_ours, "-", "ours"), (_sound, ":", "sound")):
            points = [(line.row.axes[axis], y) for line in mine if (y := pick(line, column)) is not None]
            if points and (sound or pick is not _sound):
                _plot(axes, i, points, f"{name}, {said}", style)
    axes.set_ylim(bottom=0)


def _published(line: Line, column: str) -> float | None:
    return line.cells[column].published


def _ours(line: Line, column: str) -> float | None:
    values = line.cells[column].ours
    return mean(values) if values else None


def _sound(line: Line, column: str) -> float | None:
    values = line.cells[column].sound
    return mean(values) if values else None


def _canvas(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.0, 4.0), dpi=150, layout="constrained")
    axes = figure.subplots()
    _style(axes, x, y)
    return figure, axes


def _style(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def _plot(axes: Axes, i: int, points: Sequence[tuple[Any, Any]], name: str | None, style: str = "-") -> None:
    """Published points (dashed) are small, ours (solid) large, sound ones (dotted) large and hollow."""
    x, y = zip(*points) if points else ((), ())
    axes.plot(
        x, y, color=COLOURS[i], linewidth=1.5, linestyle=style, label=name, marker=MARKERS[i],
        markersize=3 if style == "--" else 6, markerfacecolor="white" if style == ":" else COLOURS[i],
    )  # fmt: skip


def _save(figure: Figure, axes: Axes, path: Path) -> Path:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 3), frameon=False, fontsize=8)
    figure.savefig(path)
    return path

"""The figures, from the ledger: published curves next to ours; `report.plots` draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bayesncl.data import DATASETS
from bayesncl.data.images import Images
from bayesncl.measure.counts import MIN_SUPPORT
from bayesncl.paper import ledger
from bayesncl.paper.cells import Cell, Entries, Line, lines_of, mean, spread
from bayesncl.paper.experiments import MAIN, Experiment, paper
from bayesncl.progress import plural
from bayesncl.report import plots
from bayesncl.report.plots import CORRELATIONS, Curve

MAX_RUNS = 3  # runs of a method in one figure
SHEETS = {
    "figure-compositionality": "pairs",
    "figure-high-entropy": "high_entropy",
    "figure-suppressed": "suppressed",
}
PANELS = {
    "consistency": "consistency (%)",
    "entropy_sum": "H_s (nats)",
    "entropy_mean": "H_m (nats)",
    "entropy_freq": "H_f (nats)",
}
SOURCES = ("published", "ours", "sound")


def file_name(name: str, dataset: str = MAIN) -> str:
    """File name of an experiment's picture."""
    return f"{name.removeprefix('figure-')}{f'-{dataset}' * (dataset != MAIN)}.png"


def draw(
    experiment: Experiment, entries: Entries, path: Path, dataset: str = MAIN, scale: str = "paper"
) -> Path | None:
    """Draw a figure for one dataset; None if the ledger has nothing to draw."""
    lines = lines_of(experiment, entries, dataset, scale)
    return FIGURES[experiment.name](lines, path) if any(line.runs for line in lines) else None


def draw_sheet(kind: str, entry: ledger.Entry, test: Images, path: Path) -> Path:
    """One row of images per dimension: the test images that activate it most."""
    exemplars = entry["exemplars"][kind]
    rows = {str(d["dim"]): [test.pixels[i] for i in d["images"]] for d in exemplars}
    return plots.plot_sheet(rows, path)


def sheet_entry(
    experiment: Experiment, entries: Entries, dataset: str = MAIN, scale: str = "paper"
) -> ledger.Entry | None:
    """The run whose dimensions a sheet shows: the first seed that has exemplars."""
    runs = (e for line in lines_of(experiment, entries, dataset, scale) for e in line.runs)
    return next((e for e in runs if e["exemplars"].get(SHEETS[experiment.name])), None)


def draw_support(lines: list[Line], path: Path) -> Path:
    """Consistency over dimensions that fire on at least s images, one line per seed."""
    curves = []
    for i, line in enumerate(line for line in lines if line.runs):
        name = f"{paper()['methods'][line.row.method]}, {plural(len(line.runs), 'run')}"
        for j, entry in enumerate(line.runs[:MAX_RUNS]):
            by_support = entry["measures"]["curves"]["consistency_by_support"]
            points = [(int(s), share) for s, share in by_support.items() if share is not None]
            curves.append(Curve(i, points, name if j == 0 else None))
    x, mark = "minimum support of a dimension (test images)", f"sound: {MIN_SUPPORT}"
    options: Any = {"log": True, "mark": (MIN_SUPPORT, mark)}
    return plots.plot_curves(curves, path, x, "consistency (%)", **options)


def draw_comparison(lines: list[Line], path: Path) -> Path:
    """Four measures of NCL and BayesNCL: published, ours and sound."""

    def bar(cell: Cell, source: str) -> tuple[float, float] | None:
        if source == "published":
            return None if cell.published is None else (cell.published, 0.0)
        values = getattr(cell, source)
        return (mean(values), spread(values)) if values else None

    groups = [s for s in SOURCES if any(bar(line.cells["consistency"], s) for line in lines)]
    panels = {
        title: {
            paper()["methods"][line.row.method]: [bar(line.cells[c], s) for s in groups]
            for line in lines
        }
        for c, title in PANELS.items()
    }
    return plots.plot_bars(panels, groups, path)


def draw_retrieval(lines: list[Line], path: Path) -> Path:
    """Precision over the number of kept dimensions."""
    k = DATASETS[lines[0].row.dataset].paper_k
    curves = curves_of(lines, "K", f"p@{k}")
    return plots.plot_curves(curves, path, "dimensions kept, K", f"retrieval precision at {k} (%)")


def draw_dimensions(lines: list[Line], path: Path) -> Path:
    """Consistency over the feature dimension, by both definitions."""
    curves = curves_of(lines, "dim", "consistency", sound=True)
    return plots.plot_curves(curves, path, "feature dimensions, D", "consistency (%)", log=True)


def draw_tradeoff(lines: list[Line], path: Path) -> Path:
    """Accuracy against consistency, one point per value of the prior or the KL weight."""
    panels: dict[str, list[tuple[Curve, list[float]]]] = {}
    for axis, title in (("rho", "prior"), ("lambda", "KL weight")):
        panels[title] = []
        for i, (source, style) in enumerate((("published", "--"), ("ours", "-"))):
            points, values = [], []
            for line in (line for line in lines if axis in line.row.axes):
                x, y = (number(line, column, source) for column in ("consistency", "acc1"))
                if x is not None and y is not None:
                    points.append((x, y))
                    values.append(line.row.axes[axis])
            panels[title].append((Curve(i, points, source, style), values))
    return plots.plot_tradeoff(panels, path)


def draw_gradients(lines: list[Line], path: Path) -> Path:
    """Correlations of frequency, gradient variance and consistency over epochs."""
    methods = {}
    for line in (line for line in lines if line.runs):
        runs = [entry["dynamics"] for entry in line.runs[:MAX_RUNS]]
        several = f", {len(runs)} runs" if len(runs) > 1 else ""
        methods[paper()["methods"][line.row.method] + several] = mean_dynamics(runs)
    return plots.plot_dynamics(methods, path)


FIGURES: dict[str, Callable[[list[Line], Path], Path]] = {
    "figure-support": draw_support,
    "figure-comparison": draw_comparison,
    "figure-retrieval": draw_retrieval,
    "figure-dimensions": draw_dimensions,
    "figure-tradeoff": draw_tradeoff,
    "figure-gradients": draw_gradients,
}


def mean_dynamics(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Correlations averaged over runs, for the epochs that every run recorded."""
    by_epoch = [{row["epoch"]: row for row in rows} for rows in runs]
    means = []
    for epoch in sorted(set.intersection(*(set(rows) for rows in by_epoch))):
        row: dict[str, Any] = {"epoch": epoch}
        for definition in ("sound", "chance"):
            row[definition] = {}
            for key in CORRELATIONS:
                values = [rows[epoch][definition][key] for rows in by_epoch]
                row[definition][key] = None if None in values else mean(values)
        means.append(row)
    return means


def curves_of(lines: list[Line], axis: str, column: str, sound: bool = False) -> list[Curve]:
    """A measure over a table's axis: published, ours and, if asked for, sound, by method."""
    curves = []
    methods = dict.fromkeys(line.row.method for line in lines)
    sources = [("published", "--"), ("ours", "-"), *[("sound", ":")] * sound]
    # CL comes last, so that NCL and BayesNCL have the same colors in all figures
    for i, method in enumerate(sorted(methods, key=lambda m: m == "cl")):
        for source, style in sources:
            points = [
                (line.row.axes[axis], y)
                for line in lines
                if line.row.method == method and (y := number(line, column, source)) is not None
            ]
            if points:
                curves.append(Curve(i, points, f"{paper()['methods'][method]}, {source}", style))
    return curves


def number(line: Line, column: str, source: str) -> float | None:
    """A cell as one number: `published`, or the mean of `ours` or of `sound`."""
    found = getattr(line.cells[column], source)
    return found if source == "published" else mean(found) if found else None

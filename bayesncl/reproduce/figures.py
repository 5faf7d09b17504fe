"""What the paper's figures show, and ours, from the ledger; `report.plots` draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..data import DATASETS
from ..data.images import Images
from ..progress import plural
from ..report import plots
from ..report.plots import CORRELATIONS, Curve
from . import ledger
from .experiments import MAIN, paper
from .tables import Entries, Line, lines_of, mean

MOST_RUNS = 3  # drawn of a method


def file_name(name: str) -> str:
    """Of the picture of an experiment."""
    return f"{name.removeprefix('figure-')}.png"


def draw(name: str, entries: Entries, path: Path, dataset: str = MAIN, scale: str = "paper") -> Path | None:
    """Draw a figure for one data set; None where the ledger has nothing to draw."""
    lines = lines_of(name, entries, dataset, scale)
    return FIGURES[name](lines, path) if any(line.runs for line in lines) else None


def draw_sheet(kind: str, entry: ledger.Entry, test: Images, path: Path) -> Path:
    """The images that most activate each dimension, a row per dimension, by an entry's exemplars of a kind."""
    chosen = entry["exemplars"][kind]
    return plots.plot_sheet({str(d["dim"]): [test.pixels[i] for i in d["images"]] for d in chosen}, path)


def draw_support(lines: list[Line], path: Path) -> Path:
    """Consistency over dimensions that fire on at least s images, a line per seed."""
    curves = []
    for i, line in enumerate(line for line in lines if line.runs):
        name = f"{paper()['methods'][line.row.method]}, {plural(len(line.runs), 'run')}"
        for j, entry in enumerate(line.runs[:MOST_RUNS]):
            found = entry["measures"]["curves"]["consistency_by_support"]
            points = [(int(least), share) for least, share in found.items() if share is not None]
            curves.append(Curve(i, points, name if j == 0 else None))
    return plots.plot_support(curves, path)


def draw_retrieval(lines: list[Line], path: Path) -> Path:
    """Precision over the number of kept dimensions."""
    k = DATASETS[lines[0].row.dataset].paper_k
    curves = theirs_and_ours(lines, "K", f"p@{k}")
    return plots.plot_published(curves, path, "dimensions kept, K", f"retrieval precision at {k} (%)")


def draw_dimensions(lines: list[Line], path: Path) -> Path:
    """Consistency over the feature dimension, by the paper's definition and by ours."""
    widths = sorted({int(line.row.axes["dim"]) for line in lines})
    curves = theirs_and_ours(lines, "dim", "consistency", sound=True)
    return plots.plot_published(curves, path, "feature dimensions, D", "consistency (%)", widths)


def draw_tradeoff(lines: list[Line], path: Path) -> Path:
    """Accuracy against consistency, a point per value of the prior or the KL weight."""
    panels: dict[str, list[tuple[Curve, list[float]]]] = {}
    for axis, title in (("rho", "prior"), ("lambda", "KL weight")):
        mine = [line for line in lines if axis in line.row.axes]
        panels[title] = []
        for i, (said, style) in enumerate((("published", "--"), ("ours", "-"))):
            pairs = [(value(line, "consistency", said), value(line, "acc1", said)) for line in mine]
            known = [(x, y, line.row.axes[axis]) for (x, y), line in zip(pairs, mine) if None not in (x, y)]
            panels[title].append((Curve(i, [(x, y) for x, y, _ in known], said, style), [at for _, _, at in known]))
    return plots.plot_tradeoff(panels, path)


def draw_gradients(lines: list[Line], path: Path) -> Path:
    """Correlations of frequency, gradient variance and consistency over epochs, means over seeds."""
    methods = {}
    for line in (line for line in lines if line.runs):
        found = [entry["dynamics"] for entry in line.runs[:MOST_RUNS]]
        several = f", {len(found)} runs" if len(found) > 1 else ""
        methods[paper()["methods"][line.row.method] + several] = mean_dynamics(found)
    return plots.plot_dynamics(methods, path)


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


Draw = Callable[[list[Line], Path], Path]
FIGURES: dict[str, Draw] = {
    "figure-support": draw_support,
    "figure-retrieval": draw_retrieval,
    "figure-dimensions": draw_dimensions,
    "figure-tradeoff": draw_tradeoff,
    "figure-gradients": draw_gradients,
}
SHEETS = {"figure-high-entropy": "high_entropy", "figure-suppressed": "suppressed"}


def sheet_entry(name: str, entries: Entries, dataset: str = MAIN, scale: str = "paper") -> ledger.Entry | None:
    """The run whose dimensions a sheet shows: the first seed's."""
    found = (e for line in lines_of(name, entries, dataset, scale) for e in line.runs[:MOST_RUNS])
    return next((entry for entry in found if entry["exemplars"].get(SHEETS[name])), None)


def theirs_and_ours(lines: list[Line], axis: str, column: str, sound: bool = False) -> list[Curve]:
    """A measure over what a table varies: published, ours and, if asked for, sound, by method."""
    curves = []
    methods = dict.fromkeys(line.row.method for line in lines)
    for i, method in enumerate(sorted(methods, key=lambda m: m == "cl")):  # NCL has one colour in all figures
        mine = [line for line in lines if line.row.method == method]
        for said, style in (("published", "--"), ("ours", "-"), *([("sound", ":")] if sound else [])):
            points = [(line.row.axes[axis], y) for line in mine if (y := value(line, column, said)) is not None]
            if points:
                curves.append(Curve(i, points, f"{paper()['methods'][method]}, {said}", style))
    return curves


def value(line: Line, column: str, said: str) -> float | None:
    """A cell of a line as a number: `published`, or the mean of `ours` or of `sound`."""
    found = getattr(line.cells[column], said)
    return found if said == "published" else mean(found) if found else None

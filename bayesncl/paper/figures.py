"""The figures, from the ledger: published curves next to ours; `report.plots` draws them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesncl.data import DATASETS
from bayesncl.data.images import Images
from bayesncl.measure.dimensions import MIN_SUPPORT
from bayesncl.measure.result import as_array
from bayesncl.paper import ledger
from bayesncl.paper.tables import MAIN, METHODS, PAPER, Row, Table, has_runs, mean, spread
from bayesncl.progress import plural
from bayesncl.report import plots
from bayesncl.report.plots import CORRELATIONS, Curve

MAX_RUNS = 3  # runs of a method in one figure
SHEETS = {name: f["exemplars"] for name, f in PAPER["figures"].items() if "exemplars" in f}
PANELS = {
    "consistency": "consistency (%)",
    "entropy_sum": "H_s (nats)",
    "entropy_mean": "H_m (nats)",
    "entropy_freq": "H_f (nats)",
}
SOURCES = {"published": "--", "ours": "-", "sound": ":"}  # styles


def file_name(name: str, dataset: str = MAIN) -> str:
    """File name of an experiment's picture."""
    return f"{name.removeprefix('figure-')}{f'-{dataset}' * (dataset != MAIN)}.png"


def draw(name: str, table: Table, folder: Path) -> list[Path]:
    """Draw a figure for each dataset with runs; nothing for a sheet of images."""
    return [
        FIGURES[name](lines, folder / file_name(name, dataset))
        for dataset, lines in table.items()
        if name in FIGURES and has_runs(lines)
    ]


def sheet_entries(name: str, table: Table) -> dict[str, ledger.Entry]:
    """By dataset the run whose dimensions a sheet shows: the first seed that has exemplars."""
    kind = SHEETS.get(name)
    runs = {dataset: [e for line in lines for e in line.runs] for dataset, lines in table.items()}
    return {
        dataset: next(entry for entry in entries if entry["exemplars"].get(kind))
        for dataset, entries in runs.items()
        if any(entry["exemplars"].get(kind) for entry in entries)
    }


def draw_sheet(name: str, entry: ledger.Entry, test: Images, path: Path) -> Path:
    """One row of images per dimension: the test images that activate it most."""
    exemplars = entry["exemplars"][SHEETS[name]]
    rows = {str(d["dim"]): [test.pixels[i] for i in d["images"]] for d in exemplars}
    return plots.plot_sheet(rows, path)


def draw_support(lines: list[Row], path: Path) -> Path:
    """Consistency over dimensions that fire on at least s images, one line per seed."""
    curves = []
    for i, line in enumerate(line for line in lines if line.runs):
        name = f"{METHODS[line.method]}, {plural(len(line.runs), 'run')}"
        for j, entry in enumerate(line.runs[:MAX_RUNS]):
            by_support = entry["measures"]["curves"]["consistency_by_support"]
            points = [(int(s), share) for s, share in by_support.items() if share is not None]
            curves.append(Curve(i, points, name if j == 0 else None))
    x, mark = "minimum support of a dimension (test images)", f"sound: {MIN_SUPPORT}"
    return plots.plot_curves(
        curves, path, x, "consistency (%)", log=True, mark=(MIN_SUPPORT, mark)
    )


def draw_comparison(lines: list[Row], path: Path) -> Path:
    """Four measures of NCL and BayesNCL: published, ours and sound."""
    sources = [s for s in SOURCES if any(line.values("consistency", s) for line in lines)]
    figure, panels = plots.new_panels(len(PANELS), (2.4 * len(PANELS), 2.8), share_y=False)
    for axes, (column, title) in zip(panels, PANELS.items()):
        axes.set(title=title, xticks=range(len(sources)), xticklabels=sources)
        for i, line in enumerate(lines):
            offset, bars = 0.4 * (i - (len(lines) - 1) / 2), []
            for j, source in enumerate(sources):
                if values := line.values(column, source):
                    bars.append((j + offset, mean(values), spread(values)))
            if bars:
                x, height, error = zip(*bars)
                look: Any = {"color": plots.color_of(i), "error_kw": {"elinewidth": 1}}
                axes.bar(x, height, 0.38, yerr=error, label=METHODS[line.method], **look)
    return plots.save(figure, path, panels[0])


def draw_retrieval(lines: list[Row], path: Path) -> Path:
    """Precision over the number of kept dimensions."""
    k = DATASETS[lines[0].dataset].paper_k
    curves = curves_of(lines, "K", f"p@{k}", ("published", "ours"))
    return plots.plot_curves(curves, path, "dimensions kept, K", f"retrieval precision at {k} (%)")


def draw_dimensions(lines: list[Row], path: Path) -> Path:
    """Consistency over the feature dimension, by both definitions."""
    curves = curves_of(lines, "dim", "consistency", tuple(SOURCES))
    return plots.plot_curves(curves, path, "feature dimensions, D", "consistency (%)", log=True)


def curves_of(lines: list[Row], axis: str, column: str, sources: Sequence[str]) -> list[Curve]:
    """A measure over a table's axis by method and source."""
    curves = []
    methods = dict.fromkeys(line.method for line in lines)
    # CL comes last, so that NCL and BayesNCL have the same colors in all figures
    for i, method in enumerate(sorted(methods, key=lambda m: m == "cl")):
        mine = [line for line in lines if line.method == method]
        for source in sources:
            values = [(line.axes[axis], line.values(column, source)) for line in mine]
            points = [(x, mean(y)) for x, y in values if y]
            if points:
                curves.append(Curve(i, points, f"{METHODS[method]}, {source}", SOURCES[source]))
    return curves


def draw_tradeoff(lines: list[Row], path: Path) -> Path:
    """Accuracy against consistency, one point per value of the prior or the KL weight."""
    figure, panels = plots.new_panels(2, (9.0, 4.0))
    for axes, (title, axis) in zip(panels, (("prior", "rho"), ("KL weight", "lambda"))):
        axes.set(title=title, xlabel="consistency, paper's definition (%)")
        mine = [line for line in lines if axis in line.axes]
        for i, source in enumerate(("published", "ours")):
            shown = {
                line.axes[axis]: (mean(x), mean(y))
                for line in mine
                if (x := line.values("consistency", source)) and (y := line.values("acc1", source))
            }
            points = list(shown.values())
            plots.draw_curves(axes, [Curve(i, points, source, SOURCES[source])])
            look: Any = {"textcoords": "offset points", "fontsize": 7, "color": plots.color_of(i)}
            for j, (value, point) in enumerate(shown.items()):
                offset = (4, 3) if j % 2 else (4, -10)  # neighbors on different sides
                axes.annotate(f"{value:g}".replace("e-0", "e-"), point, offset, **look)
    panels[0].set_ylabel("probe accuracy (%)")
    return plots.save(figure, path, panels[0])


def draw_gradients(lines: list[Row], path: Path) -> Path:
    """Correlations of frequency, gradient variance and consistency over epochs."""
    methods = {}
    for line in (line for line in lines if line.runs):
        runs = [entry["dynamics"] for entry in line.runs[:MAX_RUNS]]
        several = f", {len(runs)} runs" if len(runs) > 1 else ""
        methods[METHODS[line.method] + several] = mean_dynamics(runs)
    return plots.plot_dynamics(methods, path)


def mean_dynamics(runs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Correlations averaged over runs, for the epochs that every run recorded."""
    by_epoch = [{row["epoch"]: row for row in rows} for rows in runs]

    def average(epoch: int, definition: str) -> dict[str, float]:
        rows = [each[epoch][definition] for each in by_epoch]
        return {key: float(np.mean(as_array(row[key] for row in rows))) for key in CORRELATIONS}

    return [
        {"epoch": epoch} | {each: average(epoch, each) for each in ("sound", "chance")}
        for epoch in sorted(set.intersection(*map(set, by_epoch)))
    ]


FIGURES: dict[str, Callable[[list[Row], Path], Path]] = {
    "figure-support": draw_support,
    "figure-comparison": draw_comparison,
    "figure-retrieval": draw_retrieval,
    "figure-dimensions": draw_dimensions,
    "figure-tradeoff": draw_tradeoff,
    "figure-gradients": draw_gradients,
}

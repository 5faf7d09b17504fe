"""Figures of the measures. Each function draws one figure to a PNG, PDF or SVG file.

No display is needed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import get_data_path, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont, ImageOps

from bayesncl.io import write_saved
from bayesncl.measure.dimensions import MIN_SUPPORT
from bayesncl.measure.interpretability import THRESHOLDS, at_threshold
from bayesncl.measure.result import Result, as_array
from bayesncl.training.run_folder import RunFolder

# Okabe and Ito's colors for color-blind readers, without yellow, which is too light for lines.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"
STYLE: Any = {
    "figure.dpi": 150, "figure.constrained_layout.use": True, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.color": "0.92", "axes.axisbelow": True,
    "axes.titlesize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.frameon": False,
    "legend.fontsize": 8, "savefig.dpi": "figure",
}  # fmt: skip
CORRELATIONS = {
    "af_gv": "frequency and\ngradient variance",
    "af_sc": "frequency and\nconsistency",
    "gv_sc": "gradient variance\nand consistency",
}
MAX_TICKS = 8
MAX_MARKERS = 50  # points of a curve with markers
TILE, GAP = 64, 2  # pixels of an image on a sheet, and between images


class Curve(NamedTuple):
    """Points of one color. Style "--" is for published values, ":" for sound measures."""

    color: int
    points: Sequence[tuple[Any, Any]]
    name: str | None
    style: str = "-"


def draw_figures(name: str, run: Path, result: Result, out: Path) -> list[Path]:
    """Draw every figure that the results of a run allow."""
    columns = {key: as_array(values) for key, values in (result.dimensions or {}).items()}
    k, classes = result.parameters["retrieval_ks"][-1], result.parameters["classes"]
    chance = result.chance["retrieval"]["sound"]["all"][str(k)]
    by_dims = result.curves["retrieval_sound"]
    precision = Curve(0, sorted((int(dims), by_k[str(k)]) for dims, by_k in by_dims.items()), name)
    ends = ["", *(at_threshold("", t) for t in THRESHOLDS[1:])]
    l0, consistency = (
        as_array([result.sound[key + end] for end in ends]) for key in ("l0", "consistency")
    )
    thresholds = Curve(0, list(zip(l0, consistency)), name)
    per_image = "active dimensions per image, L0"
    written = [
        plot_consistency(columns["support"], columns["consistency"], out / "consistency.png"),
        plot_entropy(columns["entropy_freq"], out / "entropy.png", classes),
        plot_curves(
            [precision], out / "retrieval.png", "dimensions", f"precision@{k} (%)", chance=chance
        ),
        plot_curves(
            [thresholds], out / "thresholds.png", per_image, "consistency (%)", log=True,
            descending=True,
        ),
    ]  # fmt: skip
    if result.conflict:
        kinds = {"z": name, "gated": f"{name}, gated"} if result.gates else {"gated": name}
        curves = []
        for i, (kind, title) in enumerate(kinds.items()):
            error = -np.sort(-as_array(result.conflict[kind]["by_dimension"]))
            points = list(enumerate(error, 1))
            curves.append(Curve(i, points, f"{title}: {error.sum():.3g} in total"))
        axes = "dimensions, largest error first", "background-induced error"
        written.append(plot_curves(curves, out / "conflict.png", *axes))
    if rows := RunFolder(run).metrics("dynamics"):
        written.append(plot_dynamics({name: rows}, out / "dynamics.png"))
    return written


def plot_consistency(support: np.ndarray, consistency: np.ndarray, path: str | Path) -> Path:
    """Consistency [D] (percent) of each live dimension against its support [D]."""
    figure, axes = _axes("images a dimension fires on", "consistency (% of the top class)")
    x, y = support[support > 0], consistency[support > 0]
    axes.scatter(x, y, s=14, color=color_of(0), alpha=0.6, linewidths=0)
    _mark(axes, MIN_SUPPORT, f"support {MIN_SUPPORT}", left=False)
    _log_scale(axes, x.tolist())
    axes.set_ylim(0, 103)
    return _write(figure.savefig, path)


def plot_entropy(values: np.ndarray, path: str | Path, classes: int) -> Path:
    """Histogram of class entropy [D] (nats) of live dimensions, with log C as a line."""
    figure, axes = _axes("class entropy of a dimension (nats)", "dimensions")
    top = np.log(classes)
    edges = np.linspace(0, top, 31).tolist()
    axes.hist(np.clip(values[np.isfinite(values)], 0, top), edges)
    _mark(axes, top, f"log {classes}", left=True)
    axes.set_xlim(0, top * 1.02)
    return _write(figure.savefig, path)


def plot_curves(
    curves: Sequence[Curve], path: Path, x: str, y: str, *, log: bool = False,
    descending: bool = False, chance: float | None = None, mark: tuple[float, str] | None = None,
) -> Path:  # fmt: skip
    """Curves over a linear or logarithmic x axis, with a chance level and a marked x."""
    figure, axes = _axes(x, y)
    draw_curves(axes, curves)
    if chance is not None:
        axes.axhline(chance, color="0.4", linestyle=":", linewidth=1, label="labels shuffled")
    if log:
        _log_scale(axes, [point[0] for curve in curves for point in curve.points])
    if mark is not None:
        _mark(axes, *mark, left=False)
    if descending:
        axes.invert_xaxis()
    axes.set_ylim(bottom=min(0.0, axes.dataLim.y0))
    return save(figure, path, axes)


def plot_dynamics(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path) -> Path:
    """Correlations over epochs from rows of `training.dynamics`; dotted with shuffled labels."""
    figure, panels = new_panels(3, (9.0, 3.4))
    for axes, (key, title) in zip(panels, CORRELATIONS.items()):
        axes.set(title=title, xlabel="epoch", ylim=(-1.05, 1.05))
        axes.axhline(0, color="0.7", linewidth=0.8)
        for i, (name, rows) in enumerate(runs.items()):
            epochs = [row["epoch"] for row in rows]
            points = zip(epochs, as_array(row["sound"][key] for row in rows))
            draw_curves(axes, [Curve(i, list(points), name)])
            if key != "af_gv":  # frequency and variance do not depend on labels
                chance = as_array(row["chance"][key] for row in rows)
                axes.plot(epochs, chance, color=color_of(i), linestyle=":", linewidth=1.2)
    panels[0].set_ylabel("Spearman correlation")
    panels[1].plot([], [], color="0.4", linestyle=":", linewidth=1.2, label="labels shuffled")
    return save(figure, path, panels[1], most=len(runs) + 1)


def plot_sheet(rows: Mapping[str, Sequence[np.ndarray]], path: Path, side: int = 0) -> Path:
    """Images [3, H, W] in rows, each row with its title on the left, at `side` pixels or `TILE`."""
    side = max(side, TILE)
    font = ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 12)
    margin = 12 + max(math.ceil(font.getlength(title)) for title in rows)
    step, width = side + GAP, max(len(images) for images in rows.values())
    sheet = Image.new("RGB", (margin + width * step - GAP, len(rows) * step - GAP), "white")
    write = ImageDraw.Draw(sheet).text
    for row, (title, images) in enumerate(rows.items()):
        write((margin - 8, row * step + side // 2), title, "black", font, "rm")
        for column, pixels in enumerate(images):
            image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
            tile = ImageOps.contain(image, (side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (margin + column * step, row * step))
    return _write(sheet.save, path)


def new_panels(
    count: int, size: tuple[float, float], share_y: bool = True
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of panels side by side."""
    with rc_context(STYLE):
        figure = Figure(figsize=size)
        return figure, figure.subplots(1, count, sharey=share_y, squeeze=False)[0]


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure, (axes,) = new_panels(1, (6.0, 4.0))
    axes.set(xlabel=x, ylabel=y)
    return figure, axes


def _log_scale(axes: Axes, x: Sequence[float]) -> None:
    """A logarithmic x axis with a tick at each value, or at 1, 2, 5, 10, ... if these are many."""
    ticks = sorted(set(x))
    if len(ticks) > MAX_TICKS:
        steps = (m * 10.0**e for e in range(-2, 6) for m in (1, 2, 5))
        ticks = [tick for tick in steps if ticks[0] <= tick <= ticks[-1]]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.minorticks_off()


def _mark(axes: Axes, x: float, text: str, left: bool) -> None:
    """Mark x by a dotted line with a text at its top left or bottom right."""
    axes.axvline(x, color="0.4", linestyle=":", linewidth=1)
    at, beside, side = ((x, 1), (-4, -10), "right") if left else ((x, 0), (4, 4), "left")
    where = axes.get_xaxis_transform(), "offset points"
    axes.annotate(text, at, beside, *where, ha=side, color="0.35", fontsize=8)


def draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw curves with markers."""
    for curve in curves:
        x, y = zip(*curve.points) if curve.points else ((), ())
        look: dict[str, Any] = {"color": color_of(curve.color)}
        look["marker"] = MARKERS[curve.color % len(MARKERS)]
        look["markersize"] = 3 if curve.style == "--" else 6 * (len(x) <= MAX_MARKERS)
        look["markerfacecolor"] = "white" if curve.style == ":" else look["color"]
        axes.plot(x, y, linewidth=1.5, linestyle=curve.style, label=curve.name, **look)


def color_of(i: int) -> str:
    """The color of the i-th method."""
    return COLORS[i % len(COLORS)]


def save(figure: Figure, path: str | Path, axes: Axes, most: int = 3) -> Path:
    """Save with the legend below the figure, in at most `most` columns."""
    handles, names = axes.get_legend_handles_labels()
    with rc_context(STYLE):
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), most))
    return _write(figure.savefig, path)


def _write(save: Callable[..., object], path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_saved(path, save, format=path.suffix[1:] or None)
    return path

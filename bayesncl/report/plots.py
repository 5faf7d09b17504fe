"""Plots of the measures: one function a figure, arrays in, the path of a PNG (or PDF, SVG: by its suffix) out.

Every function takes one or several runs by name, in the order of the legend. No display is needed. `draw_figures`
draws all of them from the results of evaluated runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import get_data_path
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from PIL import Image, ImageDraw, ImageFont, ImageOps

from ..errors import InputError
from ..files import write_saved
from ..measure.counts import MIN_SUPPORT
from ..measure.result import Result, as_array
from ..run import Run

# Okabe and Ito's colours, told apart by people with any kind of colour blindness; yellow is too light for lines
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"
CORRELATIONS = {
    "af_gv": "frequency and\ngradient variance",
    "af_sc": "frequency and\nconsistency",
    "gv_sc": "gradient variance\nand consistency",
}
TILE, GAP = 64, 2  # pixels of an image on a sheet, and between images


@dataclass(frozen=True)
class Curve:
    """Points of one colour. Published ones are dashed and small, ours solid, sound ones dotted and hollow."""

    colour: int
    points: Sequence[tuple[Any, Any]]
    name: str | None
    style: str = "-"


def draw_figures(runs: Mapping[str, tuple[Path, Result]], out: Path) -> list[Path]:
    """Draw into a folder what the results of `evaluate` hold; runs are a run folder and its result by name."""
    results = {name: result for name, (_, result) in runs.items()}
    columns = {name: {k: as_array(v) for k, v in (r.dimensions or {}).items()} for name, r in results.items()}
    first = next(iter(results.values()))
    k, classes = first.parameters["retrieval_ks"][-1], first.parameters["classes"]
    chance = first.chance["retrieval"]["sound"]["all"][str(k)]
    shares = {name: (c["support"], c["consistency"]) for name, c in columns.items()}
    written = [
        plot_consistency(shares, out / "consistency.png"),
        plot_entropy({name: c["entropy_freq"] for name, c in columns.items()}, out / "entropy.png", classes),
        plot_retrieval({name: r.by_dims(k) for name, r in results.items()}, out / "retrieval.png", k, chance),
        plot_thresholds({name: r.by_threshold() for name, r in results.items()}, out / "thresholds.png"),
    ]
    conflict = {
        f"{name}, {kind}" if kind == "gated" and r.gates else name: as_array(r.conflict[kind]["by_dimension"])
        for name, r in results.items()
        if r.conflict
        for kind in (("z", "gated") if r.gates else ("gated",))
    }
    if conflict:
        written.append(plot_conflict(conflict, out / "conflict.png"))
    rows = {name: Run(folder).metrics("dynamics") for name, (folder, _) in runs.items()}
    if any(rows.values()):
        written.append(plot_dynamics({name: r for name, r in rows.items() if r}, out / "dynamics.png"))
    return written


def plot_consistency(runs: Mapping[str, tuple[np.ndarray, np.ndarray]], path: str | Path) -> Path:
    """Consistency [D] (percent) of each dimension against its support [D]; those that never fire are left out."""
    figure, axes = _canvas(runs, "images a dimension fires on", "consistency (% of the commonest class)")
    for i, (name, (support, consistency)) in enumerate(runs.items()):
        x, y = support[support > 0], consistency[support > 0]
        axes.scatter(x, y, s=14, **_look(i), alpha=0.6, linewidths=0, label=name)
    _mark(axes, MIN_SUPPORT, f"support {MIN_SUPPORT}", left=False)
    _log_scale(axes, between=(1.0,))
    axes.set_ylim(0, 103)
    return _save(figure, axes, path)


def plot_entropy(runs: Mapping[str, np.ndarray], path: str | Path, classes: int) -> Path:
    """Histogram of class entropy [D] (nats), dead ones (NaN) left out; a line marks log C, of firing on all alike."""
    figure, axes = _canvas(runs, "entropy of a dimension over classes (nats)", "dimensions")
    top = np.log(classes)
    edges = np.linspace(0, top, 31)
    for i, (name, values) in enumerate(runs.items()):
        counts = np.histogram(np.clip(values[np.isfinite(values)], 0, top), edges)[0]
        axes.stairs(counts, edges, color=_colour(i), linewidth=1.6, label=name)
        axes.stairs(counts, edges, color=_colour(i), fill=True, alpha=0.12)
    _mark(axes, top, f"log {classes}", left=True)
    axes.set_xlim(0, top * 1.02)
    axes.set_ylim(bottom=0)
    return _save(figure, axes, path)


def plot_retrieval(runs: Mapping[str, Mapping[int, float]], path: str | Path, k: int, chance: float) -> Path:
    """Precision at k (percent) against the number of dimensions kept; `chance` is that with shuffled labels."""
    figure, axes = _canvas(runs, "dimensions kept, K", f"retrieval precision at {k} (%)")
    for i, (name, curve) in enumerate(runs.items()):
        kept = sorted(curve)
        _line(axes, i, kept, [curve[d] for d in kept], name)
    axes.axhline(chance, color="0.4", linestyle=":", linewidth=1, label="labels shuffled")
    axes.set_ylim(bottom=0)
    return _save(figure, axes, path)


def plot_dynamics(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path) -> Path:
    """Correlations across sound dimensions over epochs, of rows of `dynamics.record`; dotted with shuffled labels."""
    figure = _figure(runs, 9.0, 3.4)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (key, title) in zip(panels, CORRELATIONS.items()):
        _style(axes)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("epoch")
        axes.axhline(0, color="0.7", linewidth=0.8)
        for i, (name, rows) in enumerate(runs.items()):
            epochs = [row["epoch"] for row in rows]
            found, chance = (as_array(row[which][key] for row in rows) for which in ("sound", "chance"))
            _line(axes, i, epochs, found, name)
            if key != "af_gv":  # labels do not enter frequency and variance
                axes.plot(epochs, chance, color=_colour(i), linestyle=":", linewidth=1.2)
        axes.set_ylim(-1.05, 1.05)
    panels[0].set_ylabel("Spearman correlation")
    panels[1].plot([], [], color="0.4", linestyle=":", linewidth=1.2, label="labels shuffled")
    return _save_below(figure, panels[1], path, most=len(runs) + 1)


def plot_conflict(runs: Mapping[str, np.ndarray], path: str | Path) -> Path:
    """Background-induced error [D], greatest first in each curve: dimensions of two models do not correspond."""
    figure, axes = _canvas(runs, "dimensions, greatest error first", "background-induced error (similarity)")
    for i, (name, error) in enumerate(runs.items()):
        values = -np.sort(-error)
        x = np.arange(1, len(values) + 1)
        axes.plot(x, values, color=_colour(i), linewidth=1.4, label=f"{name}: {values.sum():.3g} in total")
        axes.fill_between(x, values, color=_colour(i), alpha=0.12, linewidth=0)
    axes.axhline(0, color="0.7", linewidth=0.8)
    return _save(figure, axes, path)


def plot_thresholds(runs: Mapping[str, tuple[np.ndarray, np.ndarray]], path: str | Path) -> Path:
    """Consistency [T] over active dimensions per image [T], as the threshold rises; at equal L0 higher is better."""
    figure, axes = _canvas(runs, "active dimensions per image, L0", "consistency (%)")
    for i, (name, (active, consistency)) in enumerate(runs.items()):
        _line(axes, i, active, consistency, name)
    _log_scale(axes)
    axes.invert_xaxis()
    axes.set_ylim(bottom=0)
    return _save(figure, axes, path)


def plot_support(curves: Sequence[Curve], path: Path) -> Path:
    """Consistency over the dimensions that fire on at least s images, a curve per run."""
    figure, axes = _canvas(curves, "least number of test images a dimension must fire on", "consistency (%)")
    _draw(axes, curves)
    axes.set_xscale("log")
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axes.minorticks_off()
    _mark(axes, MIN_SUPPORT, f"sound: {MIN_SUPPORT}", left=False)
    axes.set_ylim(bottom=0)
    return _save_below(figure, axes, path)


def plot_published(curves: Sequence[Curve], path: Path, x: str, y: str, doubling: Sequence[int] = ()) -> Path:
    """Published values and ours over what a table varies; `doubling` are the ticks of a logarithmic x."""
    figure, axes = _canvas(curves, x, y)
    _draw(axes, curves)
    axes.set_ylim(bottom=0)
    if doubling:
        axes.set_xscale("log", base=2)
        axes.set_xticks(doubling, [str(tick) for tick in doubling])
    return _save_below(figure, axes, path)


def plot_tradeoff(panels: Mapping[str, Sequence[tuple[Curve, Sequence[float]]]], path: Path) -> Path:
    """Accuracy against consistency: panels by title, of curves and the value at each of their points."""
    figure = _figure(panels, 9.0, 4.0)
    found = figure.subplots(1, 2, sharey=True)
    for axes, (title, curves) in zip(found, panels.items()):
        axes.set_xlabel("consistency, paper's definition (%)")
        _style(axes)
        axes.set_title(title, fontsize=9)
        for curve, values in curves:
            _draw(axes, [curve])
            for j, ((x, y), value) in enumerate(zip(curve.points, values)):
                place = (4, 3) if j % 2 else (4, -10)  # neighbours on different sides of their points
                text, colour = f"{value:g}".replace("e-0", "e-"), _colour(curve.colour)
                axes.annotate(text, (x, y), place, textcoords="offset points", fontsize=7, color=colour)
    found[0].set_ylabel("probe accuracy (%)")
    return _save_below(figure, found[0], path)


def plot_sheet(rows: Mapping[str, Sequence[np.ndarray]], path: Path) -> Path:
    """Images [3, H, W] in rows, each with its title, of one or several lines, before it."""
    font = ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 12)
    ruler = ImageDraw.Draw(Image.new("L", (1, 1)))
    margin = 12 + max(math.ceil(ruler.multiline_textbbox((0, 0), title, font)[2]) for title in rows)
    width = max(len(images) for images in rows.values())
    sheet = Image.new("RGB", (margin + width * (TILE + GAP) - GAP, len(rows) * (TILE + GAP) - GAP), "white")
    write = ImageDraw.Draw(sheet).multiline_text
    for row, (title, images) in enumerate(rows.items()):
        write((margin - 8, row * (TILE + GAP) + TILE // 2), title, "black", font, "rm", align="right")
        for column, pixels in enumerate(images):
            image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
            tile = ImageOps.contain(image, (TILE, TILE), Image.Resampling.NEAREST)
            sheet.paste(tile, (margin + column * (TILE + GAP), row * (TILE + GAP)))
    return _write(sheet.save, path)


def _figure(runs: Any, width: float, height: float) -> Figure:
    if not runs:
        raise InputError("nothing to plot: no runs were given")
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _canvas(runs: Any, x: str, y: str) -> tuple[Figure, Axes]:
    figure = _figure(runs, 6.0, 4.0)
    axes = figure.subplots()
    _style(axes)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def _log_scale(axes: Axes, between: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """Logarithmic x with plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=between))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _mark(axes: Axes, x: float, text: str, left: bool) -> None:
    """A dotted vertical line with its meaning beside it: at the top on the left, at the bottom on the right."""
    axes.axvline(x, color="0.4", linestyle=":", linewidth=1)
    at, beside, side = ((x, 1), (-4, -10), "right") if left else ((x, 0), (4, 4), "left")
    where = axes.get_xaxis_transform(), "offset points"
    axes.annotate(text, at, beside, *where, ha=side, color="0.35", fontsize=8)


def _line(axes: Axes, i: int, x: Any, y: Any, name: str) -> None:
    axes.plot(x, y, **_look(i), markersize=4, linewidth=1.6, label=name)


def _draw(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve in curves:
        x, y = zip(*curve.points) if curve.points else ((), ())
        look: dict[str, Any] = _look(curve.colour) | {"markersize": 3 if curve.style == "--" else 6}
        look["markerfacecolor"] = "white" if curve.style == ":" else look["color"]
        axes.plot(x, y, linewidth=1.5, linestyle=curve.style, label=curve.name, **look)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _look(i: int) -> dict[str, Any]:
    return {"color": _colour(i), "marker": MARKERS[i % len(MARKERS)]}


def _save(figure: Figure, axes: Axes, path: str | Path) -> Path:
    axes.legend(frameon=False, fontsize=8)
    return _write(figure.savefig, path)


def _save_below(figure: Figure, axes: Axes, path: str | Path, most: int = 3) -> Path:
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), most), frameon=False, fontsize=8)
    return _write(figure.savefig, path)


def _write(save: Callable[..., object], path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_saved(path, save, format=path.suffix[1:] or None)
    return path

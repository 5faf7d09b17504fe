"""Plots of the measures: one function a figure, arrays in, the path of a PNG (or PDF, SVG: by its suffix) out.

Every function takes one or several runs by name, in the order of the legend. No display is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from ..errors import InputError

# Okabe and Ito's colours, told apart by people with any kind of colour blindness; yellow is too light for lines
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"
CORRELATIONS = {
    "af_gv": "frequency and\ngradient variance",
    "af_sc": "frequency and\nconsistency",
    "gv_sc": "gradient variance\nand consistency",
}


def plot_consistency(runs: Mapping[str, tuple[np.ndarray, np.ndarray]], path: str | Path, minimum: int = 10) -> Path:
    """Consistency of each dimension against the number of images it fires on.

    Parameters
    ----------
    runs : support [D] and consistency [D] (percent) by name; dimensions that never fire are left out.
    path : where the figure goes.
    minimum : support from which the sound measures count a dimension; drawn as a line.
    """
    figure, axes = _canvas(runs, "images a dimension fires on", "consistency (% of the commonest class)")
    for i, (name, (support, consistency)) in enumerate(runs.items()):
        fires = np.asarray(support) > 0
        axes.scatter(
            np.asarray(support)[fires],
            np.asarray(consistency)[fires],
            s=14,
            color=_colour(i),
            marker=_marker(i),
            alpha=0.6,
            linewidths=0,
            label=name,
        )
    _mark(axes, minimum, f"support {minimum}", left=False)
    _log_scale(axes, between=(1.0,))
    axes.set_ylim(0, 103)
    return _save(figure, axes, path)


def plot_entropy(runs: Mapping[str, np.ndarray], path: str | Path, classes: int) -> Path:
    """Histogram of the class entropy of the dimensions.

    Parameters
    ----------
    runs : entropy [D] (nats) by name; NaN (a dead dimension) is left out.
    classes : C; log C, the entropy of a dimension that fires on all classes alike, is drawn as a line.
    """
    figure, axes = _canvas(runs, "entropy of a dimension over classes (nats)", "dimensions")
    top = np.log(classes)
    edges = np.linspace(0, top, 31)
    for i, (name, entropy) in enumerate(runs.items()):
        values = np.asarray(entropy, dtype=float)
        counts = np.histogram(np.clip(values[np.isfinite(values)], 0, top), edges)[0]
        axes.stairs(counts, edges, color=_colour(i), linewidth=1.6, label=name)
        axes.stairs(counts, edges, color=_colour(i), fill=True, alpha=0.12)
    _mark(axes, top, f"log {classes}", left=True)
    axes.set_xlim(0, top * 1.02)
    axes.set_ylim(bottom=0)
    return _save(figure, axes, path)


def plot_retrieval(
    runs: Mapping[str, Mapping[int, float]], path: str | Path, k: int, chance: float | None = None
) -> Path:
    """Precision at k against the number of dimensions kept.

    Parameters
    ----------
    runs : precision (percent) by number of dimensions K, by name.
    k : neighbours, for the label.
    chance : precision with shuffled labels, percent.
    """
    figure, axes = _canvas(runs, "dimensions kept, K", f"retrieval precision at {k} (%)")
    for i, (name, curve) in enumerate(runs.items()):
        kept = sorted(curve)
        _line(axes, i, kept, [curve[d] for d in kept], name)
    if chance is not None:
        axes.axhline(chance, color="0.4", linestyle=":", linewidth=1, label="labels shuffled")
    axes.set_ylim(bottom=0)
    return _save(figure, axes, path)


def plot_dynamics(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: str | Path, definition: str = "sound") -> Path:
    """Spearman correlations of activation frequency, gradient variance and consistency over epochs.

    Parameters
    ----------
    runs : rows of `dynamics.record` by name. Dotted lines: with shuffled labels.
    definition : `sound` or `paper`, which dimensions are counted.
    """
    figure = _figure(runs, 9.0, 3.4)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, (key, title) in zip(panels, CORRELATIONS.items()):
        _style(axes)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("epoch")
        axes.axhline(0, color="0.7", linewidth=0.8)
        for i, (name, rows) in enumerate(runs.items()):
            epochs = [row["epoch"] for row in rows]
            _line(axes, i, epochs, [_number(row[definition][key]) for row in rows], name)
            if key != "af_gv":  # labels do not enter frequency and variance
                axes.plot(
                    epochs,
                    [_number(row["chance"][key]) for row in rows],
                    color=_colour(i),
                    linestyle=":",
                    linewidth=1.2,
                )
        axes.set_ylim(-1.05, 1.05)
    panels[0].set_ylabel("Spearman correlation")
    panels[1].plot([], [], color="0.4", linestyle=":", linewidth=1.2, label="labels shuffled")
    handles, names = panels[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=8)
    return _write(figure, path)


def plot_conflict(runs: Mapping[str, np.ndarray], path: str | Path) -> Path:
    """Background-induced error by dimension, greatest first in each curve: those of two models do not correspond.

    Parameters
    ----------
    runs : error [D] by name; `by_dimension` of `conflict.conflict`.
    """
    figure, axes = _canvas(runs, "dimensions, greatest error first", "background-induced error (similarity)")
    for i, (name, error) in enumerate(runs.items()):
        values = -np.sort(-np.asarray(error, dtype=float))
        x = np.arange(1, len(values) + 1)
        axes.plot(x, values, color=_colour(i), linewidth=1.4, label=f"{name}: {values.sum():.3g} in total")
        axes.fill_between(x, values, color=_colour(i), alpha=0.12, linewidth=0)
    axes.axhline(0, color="0.7", linewidth=0.8)
    return _save(figure, axes, path)


def plot_thresholds(runs: Mapping[str, tuple[np.ndarray, np.ndarray]], path: str | Path) -> Path:
    """Consistency against active dimensions per image, as the activation threshold rises.

    Parameters
    ----------
    runs : L0 [T] and consistency [T] (percent) over thresholds, by name. At equal L0 the higher curve is the better.
    """
    figure, axes = _canvas(runs, "active dimensions per image, L0", "consistency (%)")
    for i, (name, (active, consistency)) in enumerate(runs.items()):
        _line(axes, i, np.asarray(active), np.asarray(consistency), name)
    _log_scale(axes)
    axes.invert_xaxis()
    axes.set_ylim(bottom=0)
    return _save(figure, axes, path)


def _figure(runs: Mapping[str, Any], width: float, height: float) -> Figure:
    if not runs:
        raise InputError("nothing to plot: no runs were given")
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _canvas(runs: Mapping[str, Any], x: str, y: str) -> tuple[Figure, Axes]:
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
    axes.annotate(
        text,
        (x, 1 if left else 0),
        (-4 if left else 4, -10 if left else 4),
        axes.get_xaxis_transform(),
        "offset points",
        ha="right" if left else "left",
        color="0.35",
        fontsize=8,
    )


def _line(axes: Axes, i: int, x: Any, y: Any, name: str) -> None:
    axes.plot(x, y, color=_colour(i), marker=_marker(i), markersize=4, linewidth=1.6, label=name)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _marker(i: int) -> str:
    return MARKERS[i % len(MARKERS)]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _save(figure: Figure, axes: Axes, path: str | Path) -> Path:
    axes.legend(frameon=False, fontsize=8)
    return _write(figure, path)


def _write(figure: Figure, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path

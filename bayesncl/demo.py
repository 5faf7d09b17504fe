"""The demonstration: three methods on the built-in scenes, one table, a report with pictures, an atlas."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Console
from rich.table import Table

from .atlas import build_atlas, galleries
from .atlas.sources import describe_run
from .data import load
from .errors import InputError
from .evaluate import evaluate
from .figures import draw_figures
from .files import write_atomic
from .measure.report import to_json
from .model import WEIGHTS, Encoder
from .model import load as load_model
from .progress import Display
from .recipes import Recipe, change, named
from .runs import read_recipe
from .train import train

METHODS = ("cl", "ncl", "bayesncl")
# What the table shows, of all that evaluation.json holds: (label, path, decimals).
ROWS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("consistency, paper's definition (%)", ("paper", "consistency"), 1),
    ("consistency, sound (%)", ("sound", "consistency"), 1),
    ("consistency at 5 active dimensions (%)", ("sound", "consistency_at_l0_5"), 1),
    ("class entropy of a dimension, sound (nats)", ("sound", "entropy_freq"), 2),
    ("active dimensions per image", ("sound", "l0"), 1),
    ("dead dimensions (share)", ("sound", "dead_share"), 2),
    ("detector average precision", ("sound", "detector_ap"), 2),
    ("linear probe, object (%)", ("probe", "fast", "acc1"), 1),
    ("linear probe, background (%)", ("background", "h", "acc1"), 1),
    ("worst group, object probe (%)", ("worst_group", "worst"), 1),
    ("retrieval precision at 5, all dimensions (%)", ("retrieval", "sound", "all", "5"), 1),
    ("background-induced error, relative", ("conflict", "gated", "error_relative"), 2),
    ("same object, other background (cosine)", ("stability", "gated", "cosine"), 2),
)
# What the pictures of the report show, by file.
CAPTIONS = {
    "consistency.png": "Each dot a dimension: how many test images it fires on, and the share of its largest class.",
    "entropy.png": "How mixed the dimensions are: entropy over classes of the images each fires on.",
    "retrieval.png": "Share of the nearest images that have the right class, with only so many dimensions kept.",
    "thresholds.png": "Consistency as small features are cut away: compare the methods at equal activity.",
    "conflict.png": "How much a shared background adds to the similarity of different objects, by dimension.",
    "dynamics.png": "Correlations across dimensions while training went on.",
    "high-entropy.png": "The most mixed dimensions of BayesNCL: a row each, the images it fires on most.",
    "most-suppressed.png": "The dimensions its gates close most: a row each, with the images where they would fire.",
}


def run_demo(out: Path, changes: list[str], open_browser: bool, display: Display) -> None:
    """Train what is not yet trained, evaluate, write report and atlas, print the table."""
    recipes = {method: change(named(f"scenes-{method}"), changes) for method in METHODS}
    splits = [load(recipes["cl"].data, split) for split in ("train", "test")]
    models, results = {}, {}
    for method, recipe in recipes.items():
        folder = out / method
        models[method] = trained(recipe, folder, splits[0], display)
        results[method] = evaluate(models[method], *splits, progress=display.count)
        display.close()
        write_atomic(folder / "evaluation.json", to_json(results[method]))
    report = out / "report"
    figures = draw_figures({m: (out / m, r) for m, r in results.items()}, report)
    runs = [describe_run(models[m], out / m, splits[1]) for m in ("bayesncl", "ncl")]
    galleries(runs[0], splits[1], report)
    atlas = build_atlas(out / "atlas", runs, splits[1], title="BayesNCL and NCL on the built-in scenes")
    table = summary(results)
    page = write_report(report, table, [path.name for path in figures], results)
    print_table(table)
    display.note(f"report: {page}\natlas:  {atlas}")
    if open_browser and has_screen():
        webbrowser.open(page.resolve().as_uri())


def has_screen() -> bool:
    """Whether a browser would have a place to show: on Linux a display, elsewhere it is taken for granted."""
    return not sys.platform.startswith("linux") or any(os.environ.get(k) for k in ("DISPLAY", "WAYLAND_DISPLAY"))


def trained(recipe: Recipe, folder: Path, images: Any, display: Display) -> Encoder:
    """The finished run of a recipe: found, gone on with, or trained now."""
    if (folder / WEIGHTS).exists() and read_recipe(folder) == recipe:
        display.note(f"{folder} is trained already")
        return load_model(folder)
    if (folder / "recipe.json").exists() and read_recipe(folder) != recipe:
        raise InputError(f"{folder} holds a run of another recipe: remove it, or choose another --out")
    return train(recipe, images, folder, display=display)


def summary(results: dict[str, dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """The rows of the table, a cell per method."""
    rows = []
    for label, path, decimals in ROWS:
        cells = []
        for result in results.values():
            value: Any = result
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            cells.append("-" if value is None else f"{value:.{decimals}f}")
        rows.append((label, cells))
    return rows


def print_table(rows: list[tuple[str, list[str]]]) -> None:
    """The table on the terminal."""
    table = Table("", *METHODS, box=None, show_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for label, cells in rows:
        table.add_row(label, *cells)
    Console(width=100, highlight=False).print(table)


def write_report(folder: Path, table: list[tuple[str, list[str]]], figures: list[str], results: dict[str, Any]) -> Path:
    """An HTML page with the table, the figures, the two galleries and links to the atlas and the raw numbers."""
    template = jinja2.Template((resources.files(__package__) / "report.html").read_text(), autoescape=True)
    shown = [name for name in (*figures, "high-entropy.png", "most-suppressed.png") if (folder / name).exists()]
    page = folder / "index.html"
    theory = results["bayesncl"].get("theory", [])
    captions = [(name, CAPTIONS.get(name, "")) for name in shown]
    write_atomic(page, template.render(methods=METHODS, table=table, figures=captions, theory=theory))
    write_atomic(folder / "table.json", json.dumps(dict(table), indent=2) + "\n")
    return page

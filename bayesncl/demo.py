"""The demonstration: three methods on the built-in scenes, one table, a report with pictures, an atlas."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Any

from .atlas import build_atlas, galleries
from .atlas.sources import describe_run
from .data import load
from .errors import InputError
from .evaluate import evaluate
from .model import Encoder
from .model import load_run as load_model
from .progress import Display
from .recipes import Recipe, change, named
from .report.figures import draw_figures
from .report.html import summarise, write_report
from .report.tables import write as write_table
from .run import Run
from .train import train

METHODS = ("cl", "ncl", "bayesncl")
# What the table shows, of all that evaluation.json holds: path and decimals.
ROWS: tuple[tuple[tuple[str, ...], int], ...] = (
    (("paper", "consistency"), 1),
    (("sound", "consistency"), 1),
    (("sound", "consistency_at_l0_5"), 1),
    (("sound", "entropy_freq"), 2),
    (("sound", "l0"), 1),
    (("sound", "dead_share"), 2),
    (("sound", "detector_ap"), 2),
    (("probe", "fast", "acc1"), 1),
    (("background", "h", "acc1"), 1),
    (("worst_group", "worst"), 1),
    (("retrieval", "sound", "all", "5"), 1),
    (("conflict", "gated", "error_relative"), 2),
    (("stability", "gated", "cosine"), 2),
)


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
        Run(folder).write(Run(folder).evaluation_file, results[method].to_json())
    report = out / "report"
    figures = draw_figures({m: (out / m, r) for m, r in results.items()}, report)
    runs = [describe_run(models[m], out / m, splits[1]) for m in ("bayesncl", "ncl")]
    figures += galleries(runs[0], splits[1], report)
    atlas = build_atlas(out / "atlas", runs, splits[1], title="BayesNCL and NCL on the built-in scenes")
    table = summarise(results, ROWS)
    page = write_report(report, METHODS, table, [path.name for path in figures], results["bayesncl"].theory)
    print(write_table(("", *METHODS), [(label, *cells) for label, cells in table], left=1))
    display.note(f"report: {page}\natlas:  {atlas}")
    if open_browser and has_screen():
        webbrowser.open(page.resolve().as_uri())


def has_screen() -> bool:
    """Whether a browser would have a place to show: on Linux a display, elsewhere it is taken for granted."""
    return not sys.platform.startswith("linux") or any(os.environ.get(k) for k in ("DISPLAY", "WAYLAND_DISPLAY"))


def trained(recipe: Recipe, folder: Path, images: Any, display: Display) -> Encoder:
    """The finished run of a recipe: found, gone on with, or trained now."""
    if Run(folder).finished() and Run(folder).recipe() == recipe:
        display.note(f"{folder} is trained already")
        return load_model(folder)
    if Run(folder).recipe_file.exists() and Run(folder).recipe() != recipe:
        raise InputError(f"{folder} holds a run of another recipe: remove it, or choose another --out")
    return train(recipe, images, folder, display=display)

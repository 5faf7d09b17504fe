"""The demonstration: readable codes of textures and their atlas; or the paper's three methods on scenes, in a table."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import webbrowser
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from rich.console import Console
from rich.table import Table

from .atlas import AtlasRun, build_atlas, galleries
from .codes import ReadableCodes
from .data import load, scenes
from .data.images import Images
from .errors import InputError
from .evaluate import evaluate
from .explore import describe_run
from .features import extract
from .figures import draw_figures
from .files import write_atomic
from .measure.probe import fast_probe
from .measure.report import to_json
from .model import WEIGHTS, Encoder
from .model import load as load_model
from .progress import Display
from .recipes import Recipe, change, named
from .runs import read_recipe
from .train import Interrupted, train

DIMENSIONS, KEPT = 64, 5  # of the codes of textures, and how many of them a crop keeps
STRONGEST, ALIKE = 10, 7  # a dimension is clear if so many of its strongest crops come from one photograph
SHOWN = 64  # pixels of a crop on the page: the same crops as in training, at twice the resolution
METHODS = ("cl", "ncl", "bayesncl")


class Row(NamedTuple):
    """A row of the table: what evaluation.json says at `path`, whether more is better, what two seeds may differ by."""

    label: str
    path: tuple[str, ...]
    decimals: int
    more: bool
    apart: float  # about twice the largest standard deviation over seeds in docs/scenes.md


ROWS = (
    Row("object read from h (%)", ("balanced", "object", "acc1"), 1, True, 4),
    Row("background read from h (%)", ("balanced", "background", "acc1"), 1, True, 6),
    Row("images of a dimension that share a class (%)", ("sound", "consistency"), 1, True, 5),
    Row("active dimensions per image", ("sound", "l0"), 1, False, 1),
    Row("nearest 5 images of the same class (%)", ("retrieval", "sound", "all", "5"), 1, True, 9),
    Row("error from a shared background, relative", ("conflict", "gated", "error_relative"), 2, False, 0.9),
)
EVEN = "even: no further apart than two seeds of one method"
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
    """Train an encoder on textures unless that is done, fit codes to it, write their atlas, say what was found."""
    recipe = change(named("textures-cl"), changes)
    train_crops, test_crops = (load(recipe.data, split, display.count) for split in ("train", "test"))
    names = test_crops.class_names or ()
    display.note(f"{len(train_crops):,} crops of {len(names)} photographs: {', '.join(names)}")
    model = trained(recipe, out / "encoder", train_crops, display)
    h, h_test = (extract(model, crops, progress=display.count).h for crops in (train_crops, test_crops))
    codes = ReadableCodes(dim=DIMENSIONS, keep=KEPT, random_state=recipe.run.seed).fit(h, progress=display.count)
    display.close()
    if codes.interrupted_:
        raise Interrupted("stopped while fitting the codes")
    codes.save(out / "codes.safetensors")
    z = codes.transform(h_test)
    shown = load(dataclasses.replace(recipe.data, size=max(SHOWN, recipe.data.size)), "test")
    share = clear_share(z, test_crops)
    found = (
        f"For {100 * share:.0f} % of the {DIMENSIONS} dimensions at least {ALIKE} of the {STRONGEST} strongest "
        "test crops come from one photograph."
    )
    sentence = f"{DIMENSIONS} dimensions learnt without labels from crops of {len(names)} photographs. {found}"
    page = build_atlas(out / "atlas", [AtlasRun("textures", z, sentence=sentence)], shown, title="Textures")
    print(f"{found} No label was used to learn them.\natlas: {page}")
    show_page(page, open_browser)


def clear_share(z: np.ndarray, images: Images) -> float:
    """Share of dimensions for which ALIKE of the STRONGEST images have one label; images at 0 do not count."""
    assert images.labels is not None
    strongest = np.argsort(-z, axis=0, kind="stable")[:STRONGEST]  # [10, D]
    fires = np.take_along_axis(z, strongest, axis=0) > 0
    of_class = images.labels[strongest][None] == np.unique(images.labels)[:, None, None]  # [C, 10, D]
    return float(((of_class & fires).sum(1).max(0) >= ALIKE).mean())


def run_methods(out: Path, changes: list[str], open_browser: bool, display: Display) -> None:
    """Train and evaluate what is not yet, write report and atlas, print the table, which says who is better at what."""
    recipes = {method: change(named(f"scenes-{method}"), changes) for method in METHODS}
    splits = [load(recipes["cl"].data, split, display.count) for split in ("train", "test")]
    models, results = {}, {}
    for method, recipe in recipes.items():
        models[method] = trained(recipe, out / method, splits[0], display)
        results[method] = evaluated(models[method], out / method, splits[0], splits[1], display)
    report = out / "report"
    figures = draw_figures({m: (out / m, r) for m, r in results.items()}, report)
    runs = [describe_run(models[m], out / m, splits[1]) for m in ("bayesncl", "ncl")]
    galleries(runs[0], splits[1], report)
    atlas = build_atlas(out / "atlas", runs, splits[1], title="BayesNCL and NCL on the built-in scenes")
    table = summary(results)
    page = write_report(report, table, [path.name for path in figures], results)
    print_table(table)
    print(f"{EVEN}\n\nreport: {page}\natlas:  {atlas}")
    show_page(page, open_browser)


def show_page(page: Path, wanted: bool) -> None:
    """Open a page in the browser, if there is a screen to show it on."""
    if wanted and has_screen():
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


def evaluated(model: Encoder, folder: Path, train_images: Images, test: Images, display: Display) -> dict[str, Any]:
    """Every measure of a finished run on scenes, from its evaluation.json if that is there.

    Beside what `evaluate` measures, `balanced`: probes for object and background fitted on scenes where the two are
    independent. A probe fitted on the training images, where they are tied, takes one for the other.
    """
    path = folder / "evaluation.json"
    if path.exists() and "balanced" in (found := json.loads(path.read_text())):
        return dict(found)
    results = evaluate(model, train_images, test, progress=display.count)
    fit = scenes.load(model.recipe.data, "val")
    h, h_test = (extract(model, images, progress=display.count).h for images in (fit, test))
    labels = {"object": (fit.labels, test.labels), "background": (fit.backgrounds, test.backgrounds)}
    results["balanced"] = {what: fast_probe(h, y, h_test, y_test) for what, (y, y_test) in labels.items()}
    display.close()
    text = to_json(results)
    write_atomic(path, text)
    return dict(json.loads(text))


def dig(tree: Any, path: tuple[str, ...]) -> Any:
    """What a tree of dicts holds at a path, or None."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def summary(results: dict[str, dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """The rows of the table: a cell per method, then which are better."""
    table = []
    for row in ROWS:
        found = {method: dig(result, row.path) for method, result in results.items()}
        cells = ["-" if value is None else f"{value:.{row.decimals}f}" for value in found.values()]
        table.append((row.label, [*cells, better(found, row)]))
    return table


def better(found: dict[str, float | None], row: Row) -> str:
    """The methods as good as the best one, but for what seeds may do; "even" if that is all of them."""
    gains = {method: value if row.more else -value for method, value in found.items() if value is not None}
    good = [method for method, gain in gains.items() if gain > max(gains.values()) - row.apart]
    return "-" if len(gains) < len(found) else "even" if len(good) == len(found) else ", ".join(good)


def print_table(rows: list[tuple[str, list[str]]]) -> None:
    """The table on the terminal."""
    table = Table("", *METHODS, "better", box=None, show_edge=False)
    for column in table.columns[1:-1]:
        column.justify = "right"
    for label, cells in rows:
        table.add_row(label, *cells)
    Console(width=96, highlight=False).print(table)


def write_report(folder: Path, table: list[tuple[str, list[str]]], figures: list[str], results: dict[str, Any]) -> Path:
    """An HTML page with the table, the figures, the two galleries and links to the atlas and the raw numbers."""
    template = jinja2.Template((resources.files(__package__) / "report.html").read_text(), autoescape=True)
    shown = [name for name in (*figures, "high-entropy.png", "most-suppressed.png") if (folder / name).exists()]
    page = folder / "index.html"
    theory = results["bayesncl"].get("theory", [])
    captions = [(name, CAPTIONS.get(name, "")) for name in shown]
    columns = (*METHODS, "better")
    write_atomic(page, template.render(methods=columns, table=table, figures=captions, theory=theory, even=EVEN))
    write_atomic(folder / "table.json", json.dumps(dict(table), indent=2) + "\n")
    return page

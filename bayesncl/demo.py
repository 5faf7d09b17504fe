"""The demonstration: readable codes of textures and their atlas; or the paper's three methods on scenes, in a table."""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
import webbrowser
from pathlib import Path

from .atlas import build_atlas, galleries
from .atlas.sources import MAKING, describe_codes, describe_run, heat_of_codes
from .codes_folder import CodesFolder
from .data import load
from .data.images import Images
from .errors import InputError
from .evaluate import evaluate
from .fit import Options, fit
from .measure.readable import ALIKE, TOP, readable
from .measure.result import Result
from .measure.sparse import strongest_images
from .model import Encoder
from .progress import Display
from .recipes import Recipe, change, named
from .report.html import EVEN, Row, summarise, write_report
from .report.plots import draw_figures
from .report.tables import write as write_table
from .run import Run
from .train import find_device, train

DIMENSIONS, KEPT = 64, 5  # of the codes of textures, and how many of them a crop keeps
SHOWN = 64  # pixels of a crop on the page: the same crops as in training, at twice the resolution
METHODS = ("cl", "ncl", "bayesncl")
# The last number is about twice the largest standard deviation over seeds in docs/scenes.md.
ROWS = (
    Row("object read from h (%)", ("balanced", "object", "acc1"), 1, True, 4),
    Row("background read from h (%)", ("balanced", "background", "acc1"), 1, True, 6),
    Row("images of a dimension that share a class (%)", ("sound", "consistency"), 1, True, 5),
    Row("active dimensions per image", ("sound", "l0"), 1, False, 1),
    Row("nearest 5 images of the same class (%)", ("retrieval", "sound", "all", "5"), 1, True, 9),
    Row("error from a shared background, relative", ("conflict", "gated", "error_relative"), 2, False, 0.9),
)


def run_demo(out: Path, changes: list[str], open_browser: bool, display: Display) -> None:
    """Train an encoder on textures unless that is done, fit codes to it, write their atlas, say what was found."""
    recipe = change(named("textures-cl"), changes)
    crops, test = (load(recipe.data, split, display.count) for split in ("train", "test"))
    names = test.class_names or ()
    display.note(f"{len(crops):,} crops of {len(names)} photographs: {', '.join(names)}")
    trained(recipe, out / "encoder", crops, display)
    options = Options(dim=DIMENSIONS, keep=KEPT, seed=recipe.run.seed)
    fit(out / "encoder", out / "codes", options, find_device(), display)
    codes = CodesFolder(out / "codes")
    z = codes.codes().transform(codes.embeddings(codes.about())[-len(test) :])  # the test crops come last
    assert test.labels is not None
    clear = int(readable(strongest_images(z, TOP), [test.labels]).sum())
    found = (
        f"{clear} of the {DIMENSIONS} dimensions show one photograph each: "
        f"at least {ALIKE} of their {TOP} strongest crops come from it."
    )
    learnt = (
        f"Learnt without labels from {len(crops):,} crops of {len(names)} photographs. "
        f"The {len(test):,} crops shown come from parts of them that training never saw."
    )
    shown = load(dataclasses.replace(recipe.data, size=max(SHOWN, recipe.data.size)), "test")
    run = describe_codes(codes, "textures", z, learnt, heat_of_codes(codes, test, z, True, None, display))
    display.busy(MAKING)
    page = build_atlas(out / "atlas", [run], shown, title=f"{len(names)} photographs")
    display.close()
    print(textwrap.fill(f"{found} No label was used to learn them.", 80), f"open {page}", sep="\n")
    show_page(page, open_browser)


def run_methods(out: Path, changes: list[str], open_browser: bool, display: Display) -> None:
    """Train and evaluate what is not yet, write report and atlas, print the table, which says who is better at what."""
    recipes = {method: change(named(f"scenes-{method}"), changes) for method in METHODS}
    seen, test = (load(recipes["cl"].data, split, display.count) for split in ("train", "test"))
    models, results = {}, {}
    for method, recipe in recipes.items():
        models[method] = trained(recipe, out / method, seen, display)
        results[method] = evaluated(models[method], out / method, seen, test, display)
    report, columns = out / "report", (*METHODS, "better")
    figures = draw_figures({m: (out / m, r) for m, r in results.items()}, report)
    runs = [describe_run(models[m], out / m, test, display) for m in ("bayesncl", "ncl")]
    figures += galleries(runs[0], test, report)
    atlas = build_atlas(out / "atlas", runs, test, title="BayesNCL and NCL on the built-in scenes")
    display.close()
    table = summarise(results, ROWS)
    verdicts = {name: each.verdict for name, each in results.items() if each.verdict}
    page = write_report(report, columns, table, [path.name for path in figures], results["bayesncl"].theory, verdicts)
    print(write_table(("", *columns), [(label, *cells) for label, cells in table], left=1))
    print(f"{EVEN}\n\nreport: {page}\natlas:  {atlas}")
    show_page(page, open_browser)


def trained(recipe: Recipe, folder: Path, images: Images, display: Display) -> Encoder:
    """The finished run of a recipe: found, gone on with, or trained now."""
    run = Run(folder)
    if run.finished() and run.recipe() == recipe:
        display.note(f"{folder} is trained already")
        return run.model()
    if run.recipe_file.exists() and run.recipe() != recipe:
        raise InputError(f"{folder} holds a run of another recipe: remove it, or choose another --out")
    return train(recipe, images, folder, display=display)


def evaluated(model: Encoder, folder: Path, seen: Images, test: Images, display: Display) -> Result:
    """Every measure of a finished run on scenes, from its evaluation.json if that is there."""
    run = Run(folder)
    found = run.evaluation()
    if found is not None and "balanced" in found:
        return Result.from_dict(found, str(run.evaluation_file))
    result = evaluate(model, seen, test, progress=display.count)
    display.close()
    run.write(run.evaluation_file, result.to_json())
    return result


def show_page(page: Path, wanted: bool) -> None:
    """Open a page in the browser, if there is a screen to show it on: on Linux a display, elsewhere it is assumed."""
    screen = not sys.platform.startswith("linux") or any(os.environ.get(k) for k in ("DISPLAY", "WAYLAND_DISPLAY"))
    if wanted and screen:
        webbrowser.open(page.resolve().as_uri())

"""The command demo: readable codes of built-in photographs, and their atlas."""

from __future__ import annotations

import dataclasses
import os
import sys
import textwrap
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from bayesncl.cli import common
from bayesncl.cli.common import flag, out_folder
from bayesncl.recipes import Recipe, find_recipe

if TYPE_CHECKING:
    from bayesncl.progress import Display

COMPONENTS, ACTIVE = 64, 5
CROP_PIXELS = 64  # side of a crop on the page, twice the side in training


def demo(
    out: Path = out_folder("Folder to write.", default=Path("runs/demo")),
    changes: list[str] | None = common.CHANGES,
    open_browser: bool = flag("--open/--no-open", "Open the page in a browser.", True),
    quiet: bool = common.QUIET,
) -> None:
    """Run everything once on built-in photographs.

    Trains a small encoder, fits codes to its embeddings and opens their atlas. Takes a minute on
    two cores.
    """
    recipe = find_recipe("textures-cl", changes)
    display = common.open_display(quiet)
    from bayesncl.training.loop import Interrupted

    with common.stoppable(display, Interrupted, "stopped; run the same command to continue"):
        page = run_demo(recipe, out, display)
    screens = ("DISPLAY", "WAYLAND_DISPLAY")
    if open_browser and (sys.platform != "linux" or any(map(os.environ.get, screens))):
        webbrowser.open(page.resolve().as_uri())


def run_demo(recipe: Recipe, out: Path, display: Display) -> Path:
    """Train an encoder on textures, fit codes to it, and write their atlas; return the page."""
    from bayesncl.atlas import build_atlas
    from bayesncl.atlas.sources import AtlasOptions, describe_codes
    from bayesncl.codes.fit import Options, fit
    from bayesncl.codes.folder import CodesFolder
    from bayesncl.data import load
    from bayesncl.device import find_device
    from bayesncl.training.loop import train

    crops, test = (load(recipe.data, split, display.count) for split in ("train", "test"))
    names = test.class_names or ()
    crops_of = f"{len(crops):,} crops of {len(names)} photographs"
    display.note(f"{crops_of}: {', '.join(names)}")
    train(recipe, crops, out / "encoder", display=display)  # nothing is left to do the next time
    options = Options(n_components=COMPONENTS, n_active=ACTIVE, seed=recipe.run.seed)
    fit(out / "encoder", out / "codes", options, find_device(), display)
    codes = CodesFolder(out / "codes")
    readable = (codes.verdict() or {})["lines"][0]
    rows = slice(-len(test), None)  # the test crops come last
    run = describe_codes(codes, rows, test, display, AtlasOptions(heat=True))
    learned = (
        f"Learned without labels from {crops_of}. The {len(test):,} crops shown come from parts of "
        "the photographs that training never saw."
    )
    shown = load(dataclasses.replace(recipe.data, size=max(CROP_PIXELS, recipe.data.size)), "test")
    run = dataclasses.replace(run, name="textures", sentence=learned)
    display.busy("writing the page")
    page = build_atlas(out / "atlas", [run], shown, title=f"{len(names)} photographs")
    found = (
        f"{readable['figure']} dimensions show one photograph each "
        f"({readable['measured_by']}). They were learned without labels."
    )
    display.show(f"{textwrap.fill(found, 80)}\nopen {page}")
    return page

"""Commands around training: demo, recipes, train, resume, views, download."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import textwrap
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt, out_file, out_folder
from bayesncl.errors import InputError
from bayesncl.recipes import (
    METHODS,
    PARTS,
    SETTINGS,
    Recipe,
    change,
    find_recipe,
    revise,
    shorthands,
    with_root,
)

if TYPE_CHECKING:
    from bayesncl.progress import Display

LISTING = """\
Where to start
  bayesncl train scenes                         built-in images; takes minutes
  bayesncl train folder --data PHOTOS           tens of thousands of your images
  bayesncl fit PHOTOS -o DIR                    fewer images: pretrained encoder
  bayesncl train cifar100-bayesncl --data DIR   the paper's main run

A recipe is named DATASET-METHOD, with DATASET one of
{datasets}
and METHOD one of
{methods}
A plain DATASET means DATASET-bayesncl. `bayesncl recipes NAME` explains one."""
DEMO_COMPONENTS, DEMO_ACTIVE = 64, 5
DEMO_PIXELS = 64  # side of a crop on the page, twice the side in training


def demo(
    out: Path = out_folder("Folder to write.", default=Path("runs/demo")),
    changes: list[str] | None = common.CHANGES,
    open_browser: bool = flag("--open/--no-open", "Open the atlas in a browser.", True),
    quiet: bool = common.QUIET,
) -> None:
    """Try the whole workflow on built-in photographs.

    Trains a small encoder, fits codes to its embeddings and opens the atlas, a page that shows the
    dimensions. Takes about a minute on two cores.
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
    options = Options(n_components=DEMO_COMPONENTS, n_active=DEMO_ACTIVE, seed=recipe.run.seed)
    fit(out / "encoder", out / "codes", options, find_device(), display)
    codes = CodesFolder(out / "codes")
    readable = (codes.verdict() or {})["lines"][0]
    rows = slice(-len(test), None)  # the test crops come last
    run = describe_codes(codes, rows, test, display, AtlasOptions(heat=True))
    learned = (
        f"Learned without labels from {crops_of}. The {len(test):,} crops shown come from parts of "
        "the photographs that training never saw."
    )
    shown = load(dataclasses.replace(recipe.data, size=max(DEMO_PIXELS, recipe.data.size)), "test")
    run = dataclasses.replace(run, name="textures", sentence=learned)
    display.busy("writing the page")
    page = build_atlas(out / "atlas", [run], shown, title=f"{len(names)} photographs")
    found = (
        f"{readable['figure']} dimensions show one photograph each "
        f"({readable['measured_by']}). They were learned without labels."
    )
    display.show(f"{textwrap.fill(found, 80)}\nopen {page}")
    return page


def recipes(name: str | None = arg("RECIPE", "Show every field of this recipe.", None)) -> None:
    """List all recipes, or every field of one."""
    if name is not None:
        print(explain_recipe(find_recipe(name)))
        return
    datasets, methods = (
        textwrap.indent(textwrap.fill(" ".join(names), 78, break_on_hyphens=False), "  ")
        for names in (SETTINGS, METHODS)
    )
    print(LISTING.format(datasets=datasets, methods=methods))


def explain_recipe(recipe: Recipe) -> str:
    """Every field of a recipe with its value and description."""
    width = shutil.get_terminal_size((1000, 1)).columns
    lines = [recipe.name]
    for part, cls in PARTS.items():
        lines += ["", f"{part}: {cls.__doc__}"]
        for field in dataclasses.fields(cls):
            value = str(getattr(getattr(recipe, part), field.name)) or "''"
            head = f"  {part + '.' + field.name:26} = {value:13} "
            if len(head) > 45:  # the description begins below a long value
                lines.append(head.rstrip())
                head = " " * 45
            doc = textwrap.TextWrapper(width, head, " " * 45, break_on_hyphens=False)
            lines.append(doc.fill(field.metadata["doc"]))
    return "\n".join(lines)


def train(
    recipe: str = common.RECIPE,
    data: str | None = common.DATA,
    epochs: int | None = opt("N", "Number of epochs."),
    batch: int | None = opt("N", "Images per step."),
    size: int | None = opt("N", "Side of the training views in pixels."),
    backbone: str | None = opt("NAME", "resnet18, resnet50, small, medium, or timm:NAME."),
    changes: list[str] | None = common.CHANGES,
    out: Path | None = out_folder("Run folder (default: runs/RECIPE, then RECIPE-2, ...)."),
    tensorboard: bool = flag("--tensorboard", "Also log to TensorBoard."),
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Train an encoder with a recipe.

    `bayesncl resume` continues a stopped run.
    """
    chosen = find_recipe(recipe, root=data)
    short: dict[str, Any] = {"epochs": epochs, "batch": batch, "size": size, "backbone": backbone}
    change(chosen, [*shorthands(chosen, **short), *(changes or [])])  # report mistakes at once
    display = common.open_display(quiet)
    from bayesncl import distributed
    from bayesncl.training.loop import Interrupted
    from bayesncl.training.loop import train as train_model
    from bayesncl.training.run_folder import RunFolder

    distributed.start()
    if distributed.world_size() > 1 and out is None:  # not numbered: all need the same folder
        out = Path("runs") / chosen.name
    if out is not None and RunFolder(out).recipe_file.exists() and not distributed.restarted():
        raise InputError(f"{out} already has a run: use `bayesncl resume {out}` or another --out")
    with common.stoppable(display, Interrupted):
        train_model(
            recipe, data=data, out=out, changes=changes or (), device=device, display=display,
            tensorboard=tensorboard, **short,
        )  # fmt: skip
    distributed.stop()


def resume(
    run: Path = common.RUN, data: str | None = common.DATA,
    changes: list[str] | None = common.CHANGES,
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Continue a run that was stopped or killed.

    The result is the same as without the interruption (on a GPU, up to rounding).
    `--set run.epochs=N` trains longer: from then on, the learning rate follows the schedule of an
    N-epoch run.
    """
    display = common.open_display(quiet)
    from bayesncl import distributed
    from bayesncl.training.loop import Interrupted
    from bayesncl.training.loop import train as train_model
    from bayesncl.training.prepare import next_commands, short_schedule
    from bayesncl.training.run_folder import RunFolder

    folder = RunFolder(run)
    before = with_root(folder.recipe(), data)
    recipe = revise(before, changes or [])
    distributed.start()
    display.close()
    if folder.finished() and recipe.run.epochs == before.run.epochs:
        return display.note(f"{run} is finished")
    for note in short_schedule(recipe) if changes else []:
        display.note(note)
    with common.stoppable(display, Interrupted):
        train_model(recipe, out=run, device=device, display=display, revise=bool(changes))
    display.note(next_commands(folder), wrap=False)
    distributed.stop()


def views(
    recipe: str = common.RECIPE, data: str | None = common.DATA,
    changes: list[str] | None = common.CHANGES,
    out: Path = out_file("FILE.png", "File to write.", "-o", "--out", default=Path("views.png")),
    count: int = opt("N", "Number of images.", default=12, min=1, max=64),
) -> None:  # fmt: skip
    """Draw augmented views of a few images as a PNG file."""
    display = common.open_display()
    import torch

    from bayesncl.method.augment import make_views
    from bayesncl.report.plots import plot_sheet
    from bayesncl.training.prepare import load_split

    chosen = find_recipe(recipe, changes, data)
    pixels = load_split(chosen, "train", display).pixels[:count].copy()
    both = torch.from_numpy(pixels), torch.arange(len(pixels))
    drawn = [make_views(*both, epoch, chosen.run.seed, chosen.views) for epoch in range(4)]
    columns = (torch.cat(drawn) * 255).round().byte().unflatten(0, (8, -1)).numpy()
    rows = {str(i): [image, *columns[:, i]] for i, image in enumerate(pixels)}
    display.show(f"wrote {plot_sheet(rows, out, chosen.views.size)}")


def download(
    name: str = arg("NAME", "cifar10 or cifar100."),
    root: Path = opt("DIR", "Target folder.", "--data", default=Path("data")),
) -> None:
    """Download a dataset. Resumes partial downloads and verifies the checksum."""
    display = common.open_display()
    from bayesncl.data import download as download_dataset

    path = download_dataset(name, root, display.count)
    display.show(f"{path}: use it with --data {root}")

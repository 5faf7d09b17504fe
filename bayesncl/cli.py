"""The commands: one thin function each. Bad input is one line on stderr and exit status 2."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import __version__
from .cpu import rest_when_busy
from .errors import InputError
from .files import check_folder, check_place, write_atomic
from .recipes import DATASETS, METHODS, PARTS, RECIPES, Recipe, change, explain, named, recipe_from_json, with_root

if TYPE_CHECKING:
    from .data.images import Images
    from .model import Encoder
    from .progress import Display
    from .run import Run

app = typer.Typer(
    help="Image encoders whose feature dimensions a person can read.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RecipeName = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="DATASET-METHOD, a plain DATASET, or a recipe.json; see: bayesncl recipes"),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")]
Trained = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder or a model file")]
DataDir = Annotated[str | None, typer.Option("--data", metavar="DIR", help="where the images are")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PART.FIELD=VALUE", help="change a field of the recipe; may be repeated"),
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; default the GPU if there is one")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]


def written(*names: str, help: str | None = None, metavar: str = "FILE") -> Any:
    """An option for a file to write; a path that cannot be written is refused before the work, not after it."""
    return typer.Option(*names, metavar=metavar, callback=check_place, help=help)


Json = Annotated[Path | None, written("--json", help="write the results as JSON")]
Csv = Annotated[Path | None, written("--csv", help="... as CSV")]
Markdown = Annotated[Path | None, written("--markdown", help="... as a Markdown table")]
Latex = Annotated[Path | None, written("--latex", help="... as a LaTeX table")]
Everything = Annotated[bool, typer.Option("--all", help="print every measure, also spectrum, thresholds and curves")]


NO_MEMORY = ("out of memory", "can't allocate memory", "can't start new thread")  # torch's two ways and Python's


def main() -> None:
    """Runs a command and turns what can go wrong into one line and an exit status."""
    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"bayesncl: note: {message}", file=sys.stderr)
    rest_when_busy()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here a full disk or a closed pipe is an error like others
    except InputError as error:
        fail(str(error), 2)
    except KeyboardInterrupt:
        fail("stopped", 130)
    except MemoryError:
        fail("out of memory", 1)
    except RuntimeError as error:
        if "home directory" in str(error):
            fail(f"{error} Give whole paths instead of ~", 2)
        if not any(words in str(error) for words in NO_MEMORY):
            raise
        fail("out of memory", 1)
    except OSError as error:
        fail(f"{error.filename or 'i/o'}: {error.strerror or error}", 1)
    except ImportError as error:  # a damaged installation; or too little memory, or too few files, to load it
        fail(f"cannot load {error.name or 'what it needs'}: {(error.__cause__ or error)!s:.300}", 1)
    except Warning as warning:  # python -W error
        fail(str(warning), 1)


def fail(message: str, status: int) -> None:
    """Say what is wrong in one line and leave; other processes of a group must not be waited for."""
    line = " ".join(message.split())  # and nothing that a terminal would obey: names come from strangers' files
    with suppress(OSError, ValueError):  # nobody may be listening
        print("bayesncl:", "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line), file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains once more when it leaves
    sys.exit(status)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="print the version and leave")] = False) -> None:
    # a docstring would stand in for the help of the whole
    if show:
        print(__version__)
        raise typer.Exit


@app.command()
def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="show this one with an explanation of every field")
    ] = None,
) -> None:
    """List the recipes, or show one."""
    if name is None:
        print(f"DATASET-METHOD, with DATASET one of\n  {' '.join(DATASETS)}\nand METHOD one of\n  {' '.join(METHODS)}")
        print(
            f"A plain DATASET means DATASET-bayesncl. {len(RECIPES)} recipes; bayesncl recipes NAME explains one."
        )
        return
    recipe = find_recipe(name)
    print(recipe.name)
    for part in PARTS:
        print(f"\n{part}: {PARTS[part].__doc__}")
        values = dataclasses.asdict(getattr(recipe, part))
        for field, doc in explain(part):
            value = values[field] if values[field] != "" else "''"
            print(f"  {part + '.' + field:26} = {value!s:28} {doc}")


@app.command()
def train(
    recipe: RecipeName,
    data: DataDir = None,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="run folder; default runs/RECIPE, numbered if it exists")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="also write RUN/tensorboard")] = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train a recipe. Everything goes into a run folder; bayesncl resume continues a run that was stopped or killed."""
    from . import distributed
    from .dynamics import recorder
    from .run import Run, new_run
    from .train import fit_batch, short_schedule
    from .train import train as train_model

    chosen = find_recipe(recipe, changes, data)
    distributed.start()
    place = open_device(device)  # a device that is not there is refused before the images are read
    run = Run(out or Path("runs") / chosen.name)
    numbered = distributed.world_size() == 1 and out is None
    if not numbered and run.recipe_file.exists() and not distributed.restarted():
        raise InputError(f"{run} holds a run already: bayesncl resume {run}, or choose another --out")
    display = open_display(quiet)
    images = load_split(chosen, "train", display)
    chosen, note = fit_batch(chosen, len(images))
    for text in (note, short_schedule(chosen)):
        if text:
            display.note(text)
    if numbered:
        run = new_run(run.folder.parent, run.folder.name)
    if tensorboard:
        display = open_display(quiet, run.inside(run.board))
    with training(display, run):
        train_model(chosen, images, run.folder, device=place, display=display, after_epoch=recorder(images, chosen))


@app.command()
def resume(run: RunDir, data: DataDir = None, device: Device = None, quiet: Quiet = False) -> None:
    """Continue a run after a crash, a kill or Ctrl-C; the result is the same as without the interruption."""
    from . import distributed
    from .dynamics import recorder
    from .run import Run
    from .train import train as train_model

    found = Run(run)
    recipe = with_root(found.recipe(), data)
    distributed.start()
    display = open_display(quiet, found.inside(found.board) if found.board.is_dir() else None)
    if found.finished():
        display.note(f"{run} is finished")
        return
    images, place = load_split(recipe, "train", display), open_device(device)
    with training(display, found):
        train_model(recipe, images, run, device=place, display=display, after_epoch=recorder(images, recipe))


@app.command()
def evaluate(
    run: Trained,
    data: DataDir = None,
    paper_probe: Annotated[
        bool, typer.Option("--paper-probe", help="also the published 50-epoch linear probe (minutes)")
    ] = False,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", callback=check_folder, help="also draw the figures there")
    ] = None,
    everything: Everything = False,
    json: Json = None,
    csv: Csv = None,
    markdown: Markdown = None,
    latex: Latex = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Every measure of a run, printed as a table and saved as RUN/evaluation.json."""
    from . import distributed
    from .data.images import printable
    from .evaluate import evaluate as evaluate_model
    from .evaluate import scarce
    from .report.figures import draw_figures
    from .report.tables import show
    from .run import Run

    display = open_display(quiet)
    model, recipe = open_run(run, device, data)
    splits = [load_split(recipe, split, display) for split in ("train", "test")]
    if (few := scarce(*splits)) is not None:
        display.note(few)
    results = evaluate_model(model, *splits, paper_probe=paper_probe, progress=display.count)
    display.close()
    if distributed.rank() != 0:
        return
    results.parameters["recipe"] = recipe.to_dict()
    if trained_on := (Run(run).environment() or {}).get("device"):
        results.parameters["trained_on"] = trained_on = printable(str(trained_on))
        if "threads" in trained_on:
            display.note(f"trained on {trained_on}: another number of threads rounds otherwise, like another seed")
    try:
        if run.is_dir():  # it may be a model file
            Run(run).write(Run(run).evaluation_file, results.to_json())
    finally:  # a folder that cannot be written to does not cost the results
        show(results, {"json": json, "csv": csv, "markdown": markdown, "latex": latex}, everything)
    if plots is not None:
        for path in draw_figures({recipe.name: (run, results)}, plots):
            display.note(f"wrote {path}")


@app.command()
def measure(
    features: Annotated[
        Path, typer.Argument(metavar="FILE", help="z [N, D] and y [N] in .npz, .csv, ...; or .npy of z with --labels")
    ],
    labels: Annotated[
        Path | None, typer.Option("--labels", metavar="FILE", help=".npy of y, beside a .npy of z")
    ] = None,
    everything: Everything = False,
    json: Json = None,
    csv: Csv = None,
    markdown: Markdown = None,
    latex: Latex = None,
    quiet: Quiet = False,
) -> None:
    """The same measures for the features of any model, of any size."""
    from .evaluate import measure_file
    from .report.tables import show

    display = open_display(quiet)
    spectrum = everything or json is not None or csv is not None  # it takes longest, and only these show it
    results = measure_file(features, labels, spectrum=spectrum, progress=display.count)
    display.close()
    show(results, {"json": json, "csv": csv, "markdown": markdown, "latex": latex}, everything)


@app.command()
def cost(
    recipes: Annotated[list[str], typer.Argument(metavar="RECIPE ...", help="one recipe, or several side by side")],
    changes: Changes = None,
    timed: Annotated[bool, typer.Option("--time", help="also run steps: seconds and peak memory, measured")] = False,
    device: Device = None,
    json: Json = None,
) -> None:
    """Parameters, multiply-adds in the paper's counting, and operations of a training step."""
    from .cost import cost as count_cost
    from .cost import time_steps
    from .measure.result import to_json
    from .report.tables import compare

    chosen = [find_recipe(name, changes) for name in recipes]
    names = [recipe.name for recipe in chosen]
    if len(set(names)) < len(names):  # recipe.json files of one recipe with other values
        names = recipes
    results = {}
    for name, recipe in zip(names, chosen):
        results[name] = count_cost(recipe) | (time_steps(recipe, open_device(device)) if timed else {})
    print(compare(results))
    if json is not None:
        write_atomic(json, to_json(results if len(results) > 1 else results[names[0]]))


@app.command()
def embed(
    run: Trained,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="a folder of images, or one image")],
    out: Annotated[
        Path, written("-o", "--out", metavar="FILE", help=".npz (z [N, D], names, y), .csv or .parquet")
    ] = Path("embedding.npz"),
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="keep only each image's strongest dimensions")
    ] = None,
    ungated: Annotated[bool, typer.Option("--ungated", help="features before the gates")] = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Features of one's own images."""
    from .embed import embed_images

    display = open_display(quiet)
    model, _ = open_run(run, device)
    count, width = embed_images(model, images, out, keep=keep, gated=not ungated, progress=display.count)
    display.close()
    display.note(f"{out}: {count} images x {width} dimensions")


@app.command()
def atlas(
    runs: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN...", help="runs or model files, finished or not")
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            "--features", metavar="FILE.npz", help="instead of a run: arrays z, images, and y if there are labels"
        ),
    ] = None,
    data: DataDir = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="DIR", help="default RUN/atlas")] = None,
    images: Annotated[int, typer.Option("--images", min=1, help="at most this many test images")] = 10_000,
    serve: Annotated[bool, typer.Option("--serve", help="then serve it on localhost")] = False,
    port: Annotated[int, typer.Option("--port", help="port to serve on; 0 takes a free one")] = 8000,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """The page that shows what each dimension means; opens from disk in any browser."""
    from .atlas import serve as serve_folder
    from .atlas.sources import atlas_of_arrays, atlas_of_runs, default_place

    display = open_display(quiet)
    if (features is None) == (not runs):
        raise InputError("atlas takes one RUN or more, or --features FILE.npz")
    if features is not None:
        page = atlas_of_arrays(features, out or default_place(features))
    else:
        assert runs
        page = atlas_of_runs(runs, out or default_place(runs[0]), data, images, open_device(device), display)
    display.close()
    display.note(f"open {page}")
    if serve:
        serve_folder(page.parent, port)


@app.command()
def quiz(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="results that the atlas's quiz exported")],
    json: Json = None,
) -> None:
    """Join several people's answers to the intruder quiz: the share found by method and dimension."""
    from .quiz import join_quizzes, quiz_json, render_quiz

    joined = join_quizzes(files)
    if json is not None:
        write_atomic(json, quiz_json(joined))
    print(render_quiz(joined))


@app.command()
def views(
    recipe: RecipeName,
    data: DataDir = None,
    changes: Changes = None,
    out: Annotated[Path, written("-o", "--out", metavar="FILE.png")] = Path("views.png"),
    count: Annotated[int, typer.Option("--count", min=1, max=64, help="images shown")] = 12,
) -> None:
    """A contact sheet of augmented views, to look at before training."""
    import torch

    from .augment import contact_sheet

    chosen = find_recipe(recipe, changes, data)
    images = load_split(chosen, "train", open_display(False))
    index = torch.arange(min(count, len(images)))
    contact_sheet(torch.from_numpy(images.pixels[: len(index)].copy()), index, 0, chosen.run.seed, chosen.views, out)
    print(f"wrote {out}")


@app.command()
def download(
    name: Annotated[str, typer.Argument(metavar="cifar10|cifar100")],
    root: Annotated[Path, typer.Option("--data", metavar="DIR", help="where to put the archive")] = Path("data"),
) -> None:
    """Fetch a data set from its home, with resume and checksum."""
    from .data import download as fetch

    display = open_display(False)
    path = fetch(name, root, display.count)
    display.close()
    print(f"{path}: use it with --data {root}")


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="a table or figure of the paper, or all")] = None,
    listing: Annotated[bool, typer.Option("--list", help="what exists, what has been run, what it would cost")] = False,
    scale: Annotated[
        str, typer.Option("--scale", help="smoke: scenes on a CPU in a minute; paper: full size")
    ] = "paper",
    data: DataDir = None,
    results: Annotated[Path, typer.Option("--results", metavar="DIR", help="the ledger")] = Path("results"),
    pages: Annotated[Path | None, typer.Option("--pages", metavar="DIR", help="write page and figures there")] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="show from the ledger alone; train nothing")] = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """A table or figure of the paper by name: theirs next to ours."""
    from .reproduce import command
    from .train import Interrupted

    display = open_display(quiet)
    try:
        command.reproduce(
            name, listing=listing, scale=scale, data=data, results=results, pages=pages, dry=dry, device=device,
            display=display,
        )  # fmt: skip
    except Interrupted:
        display.close()
        display.note("stopped; the same command continues from here")
        raise typer.Exit(130) from None


@app.command()
def record(
    run: RunDir,
    results: Annotated[Path, typer.Option("--results", metavar="DIR", help="the ledger")] = Path("results"),
    data: DataDir = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Put a finished run into a ledger; it is evaluated first if it was not."""
    from .reproduce.runner import record_run

    display = open_display(quiet)
    path = record_run(run, results, data, device=open_device(device), display=display)
    display.close()
    print(f"recorded {path}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="for runs, report, atlas")] = Path("runs/demo"),
    changes: Changes = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="open the report in a browser")] = True,
    quiet: Quiet = False,
) -> None:
    """Train CL, NCL and BayesNCL on the built-in scenes, print one table, write a report and an atlas."""
    from .demo import run_demo
    from .train import Interrupted

    display = open_display(quiet)
    try:
        run_demo(out, changes or [], open_browser, display)
    except Interrupted as stop:
        display.close()
        display.note(f"stopped after {stop.done} of {stop.total} steps; the same command continues")
        raise typer.Exit(130) from None


def find_recipe(name: str, changes: list[str] | None = None, root: str | None = None) -> Recipe:
    """A recipe by name or from a file, with changes."""
    if name.endswith(".json"):
        try:
            recipe = recipe_from_json(Path(name).read_text(), name)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read {name}: {error}") from None
    else:
        recipe = named(name)
    return with_root(change(recipe, changes) if changes else recipe, root)


def open_display(quiet: bool, board: Path | None = None) -> Display:
    """Where progress goes."""
    from .progress import Display

    return Display(quiet, board)


def open_device(name: str | None) -> Any:
    """The device a person asked for, or the best there is."""
    from .train import find_device

    return find_device(name)


def open_run(run: Path, device: str | None, root: str | None = None) -> tuple[Encoder, Recipe]:
    """The trained model of a run, with its data at `root` if that is given."""
    from . import distributed
    from .model import load

    distributed.start()
    model = load(run, open_device(device))
    model.recipe = with_root(model.recipe, root)
    return model, model.recipe


def load_split(recipe: Recipe, split: str, display: Display) -> Images:
    """A split of the recipe's images; one process builds a cache first, the others then find it."""
    from . import distributed
    from .data import load

    progress: Callable[[int, int, str], None] = display.count
    if distributed.rank() == 0:
        images = load(recipe.data, split, progress)
    distributed.barrier()
    if distributed.rank() != 0:
        images = load(recipe.data, split, progress)
    display.close()
    return images


@contextmanager
def training(display: Display, run: Run) -> Iterator[None]:
    """Around the training of a run: what is said at its end, and the exit status of one that was stopped."""
    from . import distributed
    from .train import Interrupted

    try:
        yield
    except Interrupted as stop:
        display.close()
        display.note(str(stop))
        raise typer.Exit(130) from None
    finally:
        display.close()
    display.note(f"trained: {run}")
    distributed.stop()

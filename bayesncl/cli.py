"""The commands: one thin function each. Bad input is one line on stderr and exit status 2."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from . import __version__
from .errors import InputError, say
from .files import check_folder, check_other, is_codes, write_atomic

# isort: off
from .options import (
    Backbone, Batch, Changes, Csv, DataDir, Device, Epochs, Everything, Json, Latex, Markdown, Quiet, RecipeName,
    RunDir, Size, Trained, written,
)  # fmt: skip
from .recipes import DATASETS, METHODS, PARTS, change, find_recipe, revise, shorthands, with_root
# isort: on

if TYPE_CHECKING:
    from .model import Encoder
    from .progress import Display

app = typer.Typer(
    help="Readable codes of any images from any encoder, and the paper's experiments. Start with bayesncl demo.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


NO_MEMORY = ("out of memory", "can't allocate memory", "can't start new thread")  # torch's two ways and Python's


def main() -> None:
    """Runs a command and turns what can go wrong into one line and an exit status."""
    warnings.showwarning = lambda text, *_a, **_k: say(f"note: {text}")
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
        fail(f"{str(error.filename or 'i/o')[:300]}: {error.strerror or error}", 1)
    except ImportError as error:  # a damaged installation; or too little memory, or too few files, to load it
        fail(f"cannot load {error.name or 'what it needs'}: {(error.__cause__ or error)!s:.300}", 1)
    except Warning as warning:  # python -W error
        fail(str(warning), 1)


def fail(message: str, status: int) -> None:
    """Say what is wrong in one line and leave; other processes of a group must not be waited for."""
    with suppress(OSError, ValueError):  # nobody may be listening
        say(message)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains once more when it leaves
    sys.exit(status)


from . import cli_codes  # noqa: E402 (registers its commands first)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, Option("--version", help="print the version and leave")] = False) -> None:
    # a docstring would stand in for the help of the whole
    if show:
        print(__version__)
        raise typer.Exit


LISTING = f"""\
Where to start
  bayesncl train scenes                         built-in images, minutes
  bayesncl train folder --data PHOTOS           your own images, by the thousand
  bayesncl fit PHOTOS -o DIR                    fewer images: no training
  bayesncl train cifar100-bayesncl --data DIR   the paper's main run

A recipe is DATASET-METHOD, with DATASET one of
  {' '.join(DATASETS)}
and METHOD one of
{textwrap.indent(textwrap.fill(' '.join(METHODS), 78, break_on_hyphens=False), '  ')}
A plain DATASET means DATASET-bayesncl. There are {len(DATASETS) * len(METHODS)} recipes.
bayesncl recipes NAME explains one."""


@app.command()
def recipes(
    name: Annotated[
        str | None, Argument(metavar="[RECIPE]", help="show this one with an explanation of every field")
    ] = None,
) -> None:
    """List the recipes, or show one."""
    if name is None:
        print(LISTING)
        return
    from rich.console import Console

    recipe = find_recipe(name)
    print(recipe.name)
    width = Console().width if Console().is_terminal else 1000
    for part in PARTS:
        print(f"\n{part}: {PARTS[part].__doc__}")
        for field in dataclasses.fields(PARTS[part]):
            value = str(getattr(getattr(recipe, part), field.name)) or "''"
            head = f"  {part + '.' + field.name:26} = {value:13} "
            doc = field.metadata["doc"]
            print(textwrap.fill(doc, width, initial_indent=head, subsequent_indent=" " * 45, break_on_hyphens=False))


@app.command()
def train(
    recipe: RecipeName,
    data: DataDir = None,
    epochs: Epochs = None,
    batch: Batch = None,
    size: Size = None,
    backbone: Backbone = None,
    changes: Changes = None,
    out: Annotated[
        Path | None, Option(metavar="DIR", help="run folder; default runs/RECIPE, numbered if it exists")
    ] = None,
    tensorboard: Annotated[bool, Option("--tensorboard", help="also write RUN/tensorboard")] = False,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train an encoder by a recipe. Everything goes into a run folder; bayesncl resume continues it."""
    chosen = find_recipe(recipe, root=data)
    short: dict[str, Any] = {"epochs": epochs, "batch": batch, "size": size, "backbone": backbone}
    change(chosen, [*shorthands(chosen, **short), *(changes or [])])  # mistakes are reported at once
    display = open_display(quiet)
    from . import distributed
    from .plan import plan_run
    from .run import Run, new_run, next_commands
    from .train import train as train_model

    distributed.start()
    place = open_device(device)  # a device that is not there is refused before the images are read
    run = Run(out or Path("runs") / chosen.name)
    numbered = distributed.world_size() == 1 and out is None
    if not numbered and run.recipe_file.exists() and not distributed.restarted():
        raise InputError(f"{run} holds a run already: bayesncl resume {run}, or choose another --out")
    chosen, images = plan_run(recipe, changes or [], data, place, display, **short)
    if numbered:
        run = new_run(run.folder.parent, run.folder.name)
    if tensorboard:
        display = open_display(quiet, run.inside(run.board))
    with interruptible(display):
        train_model(chosen, images, run.folder, device=place, display=display)
    display.note(next_commands(run), wrap=False)
    distributed.stop()


@app.command()
def resume(
    run: RunDir, data: DataDir = None, changes: Changes = None, device: Device = None, quiet: Quiet = False
) -> None:
    """Continue a run that was stopped or killed. The result is as without the interruption, on a GPU but for rounding.

    --set run.epochs=N makes it longer or shorter: the learning rates left are those of a run of N epochs.
    """
    display = open_display(quiet)
    from . import distributed
    from .plan import load_split
    from .run import Run, next_commands
    from .train import short_schedule
    from .train import train as train_model

    found = Run(run)
    before = with_root(found.recipe(), data)
    recipe = revise(before, changes or [])
    distributed.start()
    if found.finished() and recipe.run.epochs == before.run.epochs:
        display.close()
        display.note(f"{run} is finished")
        return
    if found.board.is_dir():
        display.close()
        display = open_display(quiet, found.inside(found.board))
    if changes and (note := short_schedule(recipe)):
        display.note(note)
    place, images = open_device(device), load_split(recipe, "train", display)
    with interruptible(display):
        train_model(recipe, images, run, device=place, display=display, revise=bool(changes))
    display.note(next_commands(found), wrap=False)
    distributed.stop()


@app.command()
def evaluate(
    run: Trained,
    data: DataDir = None,
    paper_probe: Annotated[
        bool, Option("--paper-probe", help="also the published 50-epoch linear probe (minutes)")
    ] = False,
    again: Annotated[
        Path | None, Option(metavar="RUN", help="the same method with another seed: same dimensions?")
    ] = None,
    plots: Annotated[
        Path | None, Option(metavar="DIR", callback=check_folder, help="also draw the figures there")
    ] = None,
    everything: Everything = False,
    json: Json = None,
    csv: Csv = None,
    markdown: Markdown = None,
    latex: Latex = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Say how readable a run's dimensions are.

    Prints a verdict; --all prints every measure there is, and RUN/evaluation.json has them all.
    """
    display = open_display(quiet)
    with importing():
        from . import distributed
        from .errors import printable
        from .evaluate import evaluate as evaluate_model
        from .evaluate import scarce
        from .plan import load_split
        from .report.tables import show
        from .run import Run

    files = {"json": json, "csv": csv, "markdown": markdown, "latex": latex}
    if is_codes(run):
        given = {"--again": again, "--plots": plots, "--paper-probe": paper_probe, "--data": data, "--device": device}
        return cli_codes.show_codes(run, files, everything, display, given, save=True)
    model = open_run(run, device, data)
    recipe = model.recipe
    splits = [load_split(recipe, split, display) for split in ("train", "test")]
    if (few := scarce(*splits)) is not None:
        display.note(few)
    twin = None if again is None else open_run(again, device, data)
    results = evaluate_model(
        model, *splits, paper_probe=paper_probe, again=twin, everything=everything, progress=display.count
    )
    display.close()
    if distributed.rank() != 0:
        return
    results.parameters["recipe"] = recipe.to_dict()
    if trained_on := (Run(run).environment() or {}).get("device"):
        results.parameters["trained_on"] = trained_on = printable(str(trained_on))
        if "thread" in trained_on:
            display.note(f"trained on {trained_on}: another number of threads gives other rounding, like another seed")
    try:
        if run.is_dir():  # it may be a model file
            Run(run).write(Run(run).evaluation_file, results.to_json())
    finally:  # a folder that cannot be written to does not cost the results
        show(results, files, everything)
    if plots is not None:
        from .report.plots import draw_figures  # matplotlib takes half a second to import

        for path in draw_figures({recipe.name: (run, results)}, plots):
            display.note(f"wrote {path}")


@app.command()
def measure(
    features: Annotated[
        Path, Argument(metavar="FILE", help="z [N, D], and y [N] if labelled, in .npz, .csv, ...; or codes of fit")
    ],
    labels: Annotated[Path | None, Option(metavar="FILE", help="labels of its rows: a table, or .npy of y")] = None,
    embeddings: Annotated[
        Path | None, Option(metavar="FILE", help="a second encoder's embeddings of the images, to judge by")
    ] = None,
    everything: Everything = False,
    json: Json = None,
    csv: Csv = None,
    markdown: Markdown = None,
    latex: Latex = None,
    quiet: Quiet = False,
) -> None:
    """Say how readable the features of any model are.

    Labels are not needed; files may be of any size.
    """
    display = open_display(quiet)
    with importing():
        from .evaluate import measure_file
        from .report.tables import show

    files = {"json": json, "csv": csv, "markdown": markdown, "latex": latex}
    for out in files.values():
        check_other(out, features, labels, embeddings)
    if is_codes(features):
        given = {"--labels": labels, "--embeddings": embeddings}
        return cli_codes.show_codes(features, files, everything, display, given, save=False)
    spectrum = everything or json is not None or csv is not None  # it takes longest, and only these show it
    display.busy("measuring")
    results = measure_file(
        features, labels, embeddings, spectrum=spectrum, everything=everything, progress=display.count
    )
    display.close()
    show(results, files, everything)


@app.command()
def cost(
    recipes: Annotated[list[str], Argument(metavar="RECIPE", help="one recipe, or several side by side")],
    data: Annotated[str | None, Option(metavar="DIR", help="also tell the time for the images there")] = None,
    changes: Changes = None,
    timed: Annotated[bool, Option("--time", help="also run steps: seconds and peak memory, measured")] = False,
    device: Device = None,
    json: Json = None,
) -> None:
    """Count parameters and operations of a recipe. Multiply-adds are counted as in the paper."""
    from .measure.result import to_json
    from .plan import count_costs
    from .report.tables import compare

    results = count_costs(recipes, changes, data, open_device(device) if timed or data else None)
    print(compare(results))
    if json is not None:
        write_atomic(json, to_json(results if len(results) > 1 else next(iter(results.values()))))


@app.command()
def atlas(
    runs: Annotated[
        list[Path] | None, Argument(metavar="RUN", help="runs or model files, finished or not; or codes")
    ] = None,
    features: Annotated[
        Path | None, Option(metavar="FILE.npz", help="instead of a run: arrays z, images, and y if there are labels")
    ] = None,
    data: DataDir = None,
    out: Annotated[Path | None, Option("-o", "--out", metavar="DIR", help="default RUN/atlas")] = None,
    images: Annotated[int, Option(min=1, help="at most this many test images")] = 10_000,
    heat: Annotated[bool, Option("--heat", help="of codes of photos: also where in a photo they fire")] = False,
    encoder: Annotated[str | None, Option(metavar="E", help="for --heat: as for fit")] = None,
    serve: Annotated[bool, Option("--serve", help="then serve it on localhost")] = False,
    port: Annotated[int, Option(help="port to serve on; 0 takes a free one")] = 8000,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Make the page that shows what each dimension means. It opens from disk in any browser."""
    display = open_display(quiet)
    from .atlas import serve as serve_folder
    from .atlas.sources import MAKING, atlas_of_arrays, atlas_of_codes, atlas_of_runs, default_place

    if (features is None) == (not runs):
        raise InputError("atlas takes one RUN or more, or --features FILE.npz")
    runs = runs or []
    out = out or default_place(features or runs[0])
    if features is not None:
        display.busy(MAKING)
        page = atlas_of_arrays(features, out)
    elif any(map(is_codes, runs)):
        if strange := [run for run in runs if not is_codes(run)]:
            raise InputError(f"{strange[0]} is not a folder of codes: an atlas shows codes or runs, not both")
        page = atlas_of_codes(runs, out, data, images, display, heat, encoder)
    else:
        page = atlas_of_runs(runs, out, data, images, open_device(device), display)
    display.close()
    display.note(f"open {page}")
    if serve:
        serve_folder(page.parent, port)


@app.command()
def quiz(
    files: Annotated[list[Path], Argument(metavar="FILE", help="results that the atlas's quiz exported")],
    json: Json = None,
) -> None:
    """Join several people's answers to the atlas's intruder quiz. Gives the share found by method and dimension."""
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
    count: Annotated[int, Option(min=1, max=64, help="images shown")] = 12,
) -> None:
    """Draw augmented views of some images. Look at them before training."""
    import torch

    from .augment import contact_sheet
    from .plan import load_split

    chosen = find_recipe(recipe, changes, data)
    images = load_split(chosen, "train", open_display(False))
    contact_sheet(torch.from_numpy(images.pixels[:count].copy()), chosen.run.seed, chosen.views, out)
    print(f"wrote {out}")


@app.command()
def download(
    name: Annotated[str, Argument(metavar="cifar10|cifar100")],
    root: Annotated[Path, Option("--data", metavar="DIR", help="where to put the archive")] = Path("data"),
) -> None:
    """Fetch a data set from its home. A broken download resumes; what comes is checked."""
    from .data import download as fetch

    display = open_display(False)
    path = fetch(name, root, display.count)
    display.close()
    print(f"{path}: use it with --data {root}")


from . import cli_paper  # noqa: E402, F401 (registers its commands here)


@contextmanager
def importing() -> Iterator[None]:
    """Around imports of torch, which makes half a million objects: no search for garbage among them, then or later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def open_display(quiet: bool, board: Path | None = None) -> Display:
    """Where progress goes; who shows it has long work to do, on files that others may cut meanwhile."""
    from .bus import explain_bus_errors
    from .progress import Display

    explain_bus_errors()
    display = Display(quiet, board)
    display.busy("starting")  # importing torch takes seconds
    return display


def open_device(name: str | None) -> Any:
    """The device a person asked for, or the best there is."""
    from .train import find_device

    return find_device(name)


def open_run(run: Path, device: str | None, root: str | None) -> Encoder:
    """The trained model of a run, with its data at `root` if that is given."""
    from . import distributed
    from .model import load_run as load

    distributed.start()
    model = load(run, open_device(device))
    model.recipe = with_root(model.recipe, root)
    return model


@contextmanager
def interruptible(display: Display, remark: str = "{stop}", kind: type[BaseException] | None = None) -> Iterator[None]:
    """Around work that can be stopped and continued: leaves the terminal as it was.

    Where an exception of `kind` (default: `Interrupted`, by training) stops the work, this says how to continue, and
    exits. `remark` is a format string that may use the exception: {stop}, {stop.done}, {stop.total}.
    """
    from .train import Interrupted

    kind = kind or Interrupted
    try:
        yield
    except kind as stop:
        display.note(remark.format(stop=stop))
        raise typer.Exit(130) from None
    finally:
        display.close()

"""`bayesncl reproduce` and `record`: list, run what is missing, show published next to ours.

`reproduce` completes the runs of each experiment, `do_run` trains one, `enter` measures and records
it. Runs are recorded one after another; a killed call resumes when repeated.
"""

import gc
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from bayesncl import data as datasets
from bayesncl.data.images import Images
from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.evaluate import evaluate
from bayesncl.io import check_output_folder, write_atomic
from bayesncl.measure.result import Result
from bayesncl.method.encoder import Encoder
from bayesncl.paper import figures, ledger, measures, page, tables
from bayesncl.paper.tables import Experiment, Table
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, replace_fields, with_root
from bayesncl.report.tables import format_table, open_console
from bayesncl.training.loop import train
from bayesncl.training.run_folder import RunFolder

LEDGER = Path("results")
SMOKE_LEDGER = Path("runs/smoke/results")  # smoke runs stay out of the repository's ledger
WORK = {LEDGER: Path("runs/reproduce"), SMOKE_LEDGER: Path("runs/smoke")}
BACKGROUND_SETS = ("waterbirds", "waterbirds-like")  # folders
RESNET50_TIME = 2.3  # times that of ResNet-18, by multiply-adds


@dataclass(frozen=True)
class Workspace:
    """Where runs are done and recorded."""

    results: Path  # the ledger
    models: Path  # run folders: a finished run there is only measured, a stopped one resumed
    data: str | None = None  # holds a folder per dataset, or is the only dataset
    device: torch.device | None = None
    display: Display = field(default_factory=partial(Display, quiet=True))

    def path(self, name: str) -> str:
        """Path of a dataset."""
        if self.data is None:
            return ""
        root = Path(self.data).expanduser().resolve()
        return str(root / name if (root / name).exists() else root)

    def rooted(self, recipe: Recipe) -> Recipe:
        """The recipe with the path of its images."""
        return replace_fields(recipe, data={"root": self.path(recipe.data.name)})

    def backgrounds(self, smoke: bool) -> dict[str, str]:
        """Paths of the datasets with backgrounds that exist, by their key in `extra`.

        At smoke scale the scenes, which have backgrounds, stand in: "" is the model's own dataset.
        """
        paths = {name.replace("-", "_"): self.path(name) for name in BACKGROUND_SETS}
        if smoke:
            return dict.fromkeys(paths, "")
        return {key: path for key, path in paths.items() if path != self.path("")}


def reproduce(
    name: str | None, *, listing: bool = False, scale: str = "paper", data: str | None = None,
    results: Path = LEDGER, pages: Path | None = None, dry: bool = False,
    seeds: str = "", changes: Sequence[str] = (), keep_weights: Path | None = None,
    device: str | None = None, display: Display | None = None,
) -> None:  # fmt: skip
    """Show a table or figure of the paper next to our runs, after doing those that are missing.

    The options are those of the command. Without `name` the experiments are listed, as by
    `listing`; without `data` nothing is trained at paper scale; without `pages` figures go to
    runs/reproduce/figures.
    """
    if scale not in tables.SCALES:
        raise InputError(f"scale must be paper or smoke, got {scale!r}")
    if dry and pages is not None:
        raise InputError("a dry run writes nothing: leave out --dry-run or --pages")
    smoke = scale == "smoke"
    if smoke and results == LEDGER:
        results = SMOKE_LEDGER
    chosen = tables.choose(name, seeds, changes, smoke)
    if listing or name is None:
        show_list(chosen, ledger.read(results), results)
        return
    place = find_device(device or ("cpu" if smoke else None))
    known, display = {p.resolve(): w for p, w in WORK.items()}, display or Display(quiet=True)
    work = known.get(results.resolve(), results / "work")  # never inside the repository's ledger
    space = Workspace(results, keep_weights or work / "models", data, place, display)
    for experiment in [] if dry else chosen:
        complete(experiment, space)
    entries = ledger.read(results)
    if not entries:
        display.note(f"no runs in {results}; a clone of the repository has ours in {LEDGER}")
    found = ledger.by_setting(entries)
    for experiment in chosen:
        table = tables.fill(experiment, found)
        show(experiment, table)
        if experiment.is_figure and not dry and (pages is None or smoke):
            draw(experiment, table, (pages or work) / "figures", space)
    if entries and pages is not None and not smoke:
        display.note(f"wrote {page.write(pages, entries)}")


def complete(experiment: Experiment, space: Workspace) -> None:
    """Do the missing runs of an experiment, if their images exist."""
    if space.data is not None and not Path(space.data).expanduser().exists():
        raise InputError(f"{space.data}: no such folder")
    todo = missing(experiment, ledger.read(space.results))
    name, note = experiment.name, space.display.note
    if todo and not experiment.smoke and space.data is None:
        note(f"{name}: {len(todo)} runs are missing; --data DIR does them")
    elif todo and experiment.background not in (None, *space.backgrounds(experiment.smoke)):
        note(f"{name}: no {experiment.background} under {space.data}")
    elif todo:
        for folder in (space.results, space.models):  # before hours of training, not after
            check_output_folder(folder)
        cost = f", about {sum(map(estimate, todo)):.0f} min on an H200"
        note(f"{name}: {len(todo)} runs{'' if experiment.smoke else cost}")
        run_list(todo, experiment, space)


def run_list(recipes: Sequence[Recipe], experiment: Experiment, space: Workspace) -> list[Path]:
    """Do the runs that an experiment lacks, in order; paths of the entries written.

    Each run is recorded as soon as it is measured, so several processes can share a list. A run
    that fails is reported and skipped.
    """
    done = []
    for recipe in recipes:
        if not lacking(ledger.find(space.results, recipe), experiment):
            continue
        try:
            done.append(do_run(recipe, experiment, space))
            note = f"recorded {done[-1]}"
        except InputError as error:
            note = f"not run: {Path(ledger.file_name(recipe)).stem}: {error}"
        finally:
            space.display.close()
        space.display.note(note)
    return done


def do_run(recipe: Recipe, experiment: Experiment, space: Workspace) -> Path:
    """Train a run unless its weights exist, measure what the ledger lacks, and record it."""
    recipe, display = space.rooted(recipe), space.display
    images, test = (datasets.load(recipe.data, s, display.count) for s in ("train", "test"))
    if torch.cuda.is_available():  # forget the previous run and its compiled step
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    run = RunFolder(space.models / Path(ledger.file_name(recipe)).stem)
    if run.finished():
        model = run.model(space.device or find_device())
    else:
        model = train(recipe, images, run.folder, device=space.device, display=display)
    with run.lock():
        known = ledger.find(space.results, recipe)
        needs = lacking(known, experiment)
        if not needs:
            raise InputError("another process has recorded it")
        # on scenes most measures are about backgrounds: only experiments on them take those
        plain, plain_test = (replace(split, backgrounds=None) for split in (images, test))
        path = enter(
            space.results, run, recipe, model, (plain, plain_test), test, display,
            probe=not experiment.smoke and (known is None or tables.PROBE in needs),
            backgrounds=space.backgrounds(experiment.smoke) if experiment.background else {},
        )  # fmt: skip
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    return path


def record_run(
    run: RunFolder, results: Path, *, root: str | None, background: str | None, paper_probe: bool,
    device: torch.device, display: Display,
) -> Path:  # fmt: skip
    """Record a finished run, or add to its entry what that lacks.

    `root` is the path of the images, if they moved; `background` that of a dataset in the layout of
    waterbirds, to probe for the background.
    """
    recipe = with_root(run.recipe(), root)
    model, paths = run.model(device), {}
    if background is not None:
        name = Path(background).expanduser().resolve().name
        paths[name.replace("-", "_")] = background
    with run.lock():
        images, test = (datasets.load(recipe.data, s, display.count) for s in ("train", "test"))
        return enter(
            results, run, recipe, model, (images, test), test, display,
            probe=paper_probe, backgrounds=paths,
        )  # fmt: skip


def enter(
    results: Path, run: RunFolder, recipe: Recipe, model: Encoder, splits: tuple[Images, Images],
    shown: Images, display: Display, *, probe: bool, backgrounds: dict[str, str],
) -> Path:  # fmt: skip
    """Record a run with all its measures, or add to its entry the probes that it lacks.

    An existing evaluation.json is used as it is. `splits` are the training and test images to
    measure on, `shown` those of the exemplars; `backgrounds` are paths of datasets to probe for the
    background, by their key in `extra`.
    """
    new, result, file = ledger.find(results, recipe) is None, None, run.evaluation_file
    if file.is_file():
        result = Result.from_json(file.read_text(), str(file))
    elif new:
        more = partial(measures.paper_measures, progress=display.count)
        result = evaluate(model, *splits, extra=more, progress=display.count)
        write_atomic(file, result.to_json())
    published = result.probe.get("paper") if result else None
    if probe and published is None:
        published = measures.run_published_probe(model, *splits, progress=display.count)
    return ledger.enter(
        results, run, recipe, result, probe=published,
        exemplars=measures.exemplars(model, shown) if new else {},
        extra={key: measures.probe_background(model, path) for key, path in backgrounds.items()},
    )  # fmt: skip


def lacking(entry: ledger.Entry | None, experiment: Experiment) -> set[str]:
    """The branches of an entry that an experiment needs and the entry lacks; of None all."""
    needed = {"measures", *filter(None, experiment.branches)}
    if experiment.smoke:
        needed.discard(tables.PROBE)
    return {path for path in needed if entry is None or not tables.measured(entry, path)}


def missing(experiment: Experiment, entries: list[ledger.Entry]) -> list[Recipe]:
    """The runs that the ledger lacks, or has without a measure that the experiment shows."""
    known, needed = ledger.by_identity(entries), tables.runs(experiment)
    return [r for r in needed if lacking(known.get(ledger.identity(r)), experiment)]


def estimate(recipe: Recipe) -> float:
    """Minutes of a run on one H200."""
    factor = RESNET50_TIME if recipe.model.backbone == "resnet50" else 1.0
    return datasets.DATASETS[recipe.data.name].seconds * recipe.run.epochs * factor / 60


def show_list(chosen: list[Experiment], entries: list[ledger.Entry], results: Path) -> None:
    """Print what exists, what is in the ledger, what the rest costs, and what is filled."""
    left: dict[str, Recipe] = {}
    rows = []
    for experiment in chosen:
        needed, todo = len(tables.runs(experiment)), missing(experiment, entries)
        left.update({ledger.identity(recipe): recipe for recipe in todo})
        counts = needed, needed - len(todo), round(sum(map(estimate, todo)))
        rows.append([experiment.name, experiment.title, *map(str, counts)])
    console = open_console()
    header = ("name", "shows", "runs", "complete", "GPU minutes left")
    print(format_table(header, rows, width=console.width), end="")
    total = sum(map(estimate, left.values()))
    console.print(
        f"{len(entries)} runs in the ledger ({results}). Tables share runs: {len(left)} are "
        f"missing or lack a measure, about {total:.0f} minutes on one H200."
    )
    filled, published = tables.count_filled(ledger.by_setting(entries))
    console.print(f"{filled} of {published} published numbers have a run beside them")


def show(experiment: Experiment, table: Table) -> None:
    """Print a table; without the spreads where they do not fit the terminal."""
    console = open_console()
    for dataset, lines in table.items():
        header, rows = tables.text(lines)
        widths = [2 + max(map(len, column)) for column in zip(header, *rows)]
        if sum(widths) - 2 > console.width:
            rows = [[re.sub(r" ± [0-9.]+", "", cell) for cell in row] for row in rows]
        title = datasets.DATASETS[dataset].title
        console.print(f"{experiment.name}: {experiment.title}, {title}", style="bold")
        print(format_table(header, rows, width=console.width))
    # our notes are about our runs
    if not experiment.smoke and any(map(tables.has_runs, table.values())):
        for note in page.notes().get(experiment.name, []):
            console.print(note)


def draw(experiment: Experiment, table: Table, folder: Path, space: Workspace) -> None:
    """Draw a figure for each dataset with runs; sheets of images only if the images exist."""
    name = experiment.name
    written = figures.draw(name, table, folder)
    for dataset, entry in figures.sheet_entries(name, table).items():
        print(page.exemplar_table(name, entry))
        if space.data is not None or experiment.smoke:
            recipe = space.rooted(ledger.recipe_in(entry))
            test = datasets.load(recipe.data, "test", space.display.count)
            path = folder / figures.file_name(name, dataset)
            written.append(figures.draw_sheet(name, entry, test, path))
    for path in written:
        space.display.note(f"wrote {path}")
    if not written:
        space.display.note(f"{name}: nothing to draw yet")

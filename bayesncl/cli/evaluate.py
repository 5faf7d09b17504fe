"""Commands that measure, and those around the paper's results: evaluate to record."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesncl.cli import common
from bayesncl.cli.common import arg, flag, opt, out_folder
from bayesncl.errors import InputError
from bayesncl.io import check_not_input, is_codes, read_object, write_atomic
from bayesncl.recipes import with_root

if TYPE_CHECKING:
    from bayesncl.data.images import Progress
    from bayesncl.measure.result import Result
    from bayesncl.progress import Display


LEDGER = opt("DIR", "The ledger: a folder of recorded runs.", "--results", default=Path("results"))


def evaluate(
    run: Path = common.TRAINED, data: str | None = common.DATA,
    paper_probe: bool = common.PAPER_PROBE, background: str | None = common.BACKGROUND,
    again: Path | None = opt("RUN", "A run of this recipe with another seed; measures stability."),
    plots: Path | None = out_folder("Draw figures into this folder."),
    everything: bool = common.EVERYTHING, json: Path | None = common.JSON,
    csv: Path | None = common.CSV, markdown: Path | None = common.MARKDOWN,
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Measure how readable the dimensions of a run or of codes are.

    Prints a verdict and saves all measures in MODEL/evaluation.json.
    """
    display = common.open_display(quiet)
    from bayesncl import distributed
    from bayesncl.evaluate import measure_codes
    from bayesncl.report.tables import show
    from bayesncl.training.run_folder import Folder

    options: dict[str, Any] = {"everything": everything, "progress": measuring(display)}
    if is_codes(run):
        common.refuse_for_codes(
            run, again=again, plots=plots, paper_probe=paper_probe, data=data,
            background=background,
        )  # fmt: skip
        result = measure_codes(run, spectrum=True, **options)
    else:
        extra = {"published_probe": paper_probe, "background": background}
        result = evaluate_run(run, again, data, device, display, extra, options)
    display.close()
    if distributed.rank() != 0:  # another process reports
        return
    show(result, {"json": json, "csv": csv, "markdown": markdown}, everything)
    if run.is_dir():  # not a model file
        write_atomic(Folder(run).evaluation_file, result.to_json())
    if plots is not None:
        from bayesncl.report.plots import draw_figures  # imports matplotlib

        for path in draw_figures(result.parameters["recipe"]["name"], run, result, plots):
            display.note(f"wrote {path}")


def measuring(display: Display) -> Progress:
    """Report that measuring goes on, and counted work while there is any."""

    def count(done: int, total: int, title: str) -> None:
        display.count(done, total, title)
        if done >= total:
            display.busy("measuring")

    display.busy("measuring")
    return count


def evaluate_run(
    run: Path, again: Path | None, data: str | None, device: str, display: Display,
    extra: dict[str, Any], options: dict[str, Any],
) -> Result:  # fmt: skip
    """Evaluate a trained run, with the paper's measures."""
    from bayesncl import distributed
    from bayesncl.device import find_device
    from bayesncl.evaluate import evaluate as evaluate_model
    from bayesncl.evaluate import warn_of_few
    from bayesncl.paper.measures import paper_measures
    from bayesncl.training.prepare import load_split
    from bayesncl.training.run_folder import RunFolder, load_run

    distributed.start()
    model = load_run(run, find_device(device))
    twin = None if again is None else load_run(again, find_device(device))
    recipe = model.recipe = with_root(model.recipe, data)
    train, test = (load_split(recipe, split, display) for split in ("train", "test"))
    if (note := warn_of_few(train, test)) is not None:
        display.note(note)
    paper = partial(paper_measures, progress=options["progress"], **extra)
    result = evaluate_model(model, train, test, again=twin, extra=paper, **options)
    result.parameters["recipe"] = recipe.to_dict()
    if trained_on := read_object(RunFolder(run).environment_file).get("device"):
        result.parameters["trained_on"] = str(trained_on)
    return result


def measure(
    features: Path = arg("FILE", "An array file (z [N, D], optionally y [N]) or codes from `fit`."),
    labels: Path | None = opt("FILE", "Labels of the rows: a table with a column label, or .npy."),
    embeddings: Path | None = opt("FILE", "Also judge features by a second encoder's embeddings."),
    factor: list[str] | None = opt(
        "NAME=FILE", "Labels of another factor; shows how well codes separate factors. Repeatable."
    ),
    everything: bool = common.EVERYTHING, json: Path | None = common.JSON,
    csv: Path | None = common.CSV, markdown: Path | None = common.MARKDOWN,
    quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Measure how readable the features in a file are.

    Labels are optional.
    """
    display = common.open_display(quiet)
    from bayesncl.evaluate import measure_codes, measure_file
    from bayesncl.report.tables import show

    files = {"json": json, "csv": csv, "markdown": markdown}
    for out in files.values():
        check_not_input(out, features, labels, embeddings)
    factors = {}
    for pair in factor or []:
        name, _, path = pair.partition("=")
        if not name or not path or name in factors:
            raise InputError(f"--factor takes NAME=FILE, each name once, got {pair!r}")
        factors[name] = Path(path)
    spectrum = everything or json is not None or csv is not None  # slow, shown only there
    options = {"spectrum": spectrum, "everything": everything, "progress": measuring(display)}
    if is_codes(features):
        common.refuse_for_codes(features, labels=labels, embeddings=embeddings)
        result = measure_codes(features, factors, **options)
    else:
        result = measure_file(features, labels, embeddings, factors, **options)
    display.close()
    show(result, files, everything)


def cost(
    recipes: list[str] = arg("RECIPE", "One or more recipes."),
    data: str | None = opt("DIR", "Also estimate the time of a run on these images."),
    changes: list[str] | None = common.CHANGES,
    timed: bool = flag("--time", "Also measure the time and peak memory of a step."),
    device: str = common.DEVICE, json: Path | None = common.JSON,
) -> None:  # fmt: skip
    """Count the parameters and operations of a recipe's model.

    Counts multiply-adds per image, as the paper does.
    """
    from bayesncl.device import find_device
    from bayesncl.measure.result import to_json
    from bayesncl.paper.cost import count_costs
    from bayesncl.report.tables import render_costs

    results = count_costs(recipes, changes, data, find_device(device) if timed or data else None)
    print(render_costs(results))
    if json is not None:
        write_atomic(json, to_json(results if len(results) > 1 else next(iter(results.values()))))


def reproduce(
    name: str | None = arg("NAME", "A table, a figure or all (default: list them).", None),
    listing: bool = flag("--list", "List experiments, runs and costs."),
    scale: str = opt("NAME", "paper, or smoke: tiny runs, a minute on a CPU.", default="paper"),
    data: str | None = common.DATA,
    results: Path = LEDGER,
    pages: Path | None = opt("DIR", "Write the results page into this folder."),
    dry: bool = flag("--dry-run", "Show the ledger's results; write nothing."),
    seeds: str = opt("0,1,2", "Seeds to use instead of the experiment's own.", default=""),
    changes: list[str] | None = common.CHANGES,
    keep_weights: Path | None = out_folder("Keep the run folders, with weights, in this folder."),
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Reproduce a table or figure of the paper.

    Trains the runs missing from the ledger and prints our numbers beside the published ones.
    """
    display = common.open_display(quiet)
    from bayesncl.paper.reproduce import reproduce as run_experiments
    from bayesncl.training.loop import Interrupted

    display.close()  # tables are printed between runs
    with common.stoppable(display, Interrupted, "stopped; run the same command to continue"):
        run_experiments(
            name, listing=listing, scale=scale, data=data, results=results, pages=pages, dry=dry,
            seeds=seeds, changes=changes or (), keep_weights=keep_weights,
            device=None if device == "auto" else device, display=display,
        )  # fmt: skip


def record(
    run: Path = common.RUN, results: Path = LEDGER, data: str | None = common.DATA,
    paper_probe: bool = common.PAPER_PROBE, background: str | None = common.BACKGROUND,
    device: str = common.DEVICE, quiet: bool = common.QUIET,
) -> None:  # fmt: skip
    """Add a finished run to the ledger of recorded runs.

    If the run is already recorded, adds the measures that its entry lacks.
    """
    display = common.open_display(quiet)
    from bayesncl.device import find_device
    from bayesncl.paper.reproduce import record_run
    from bayesncl.training.run_folder import RunFolder

    path = record_run(
        RunFolder(run), results, root=data, background=background, paper_probe=paper_probe,
        device=find_device(device), display=display,
    )  # fmt: skip
    display.show(f"recorded {path}")

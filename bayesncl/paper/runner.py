"""Train, evaluate and record runs one after another; a killed call resumes when repeated."""

from __future__ import annotations

import gc
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
from bayesncl.io import write_atomic
from bayesncl.measure.result import Result
from bayesncl.method.encoder import Encoder
from bayesncl.paper import ledger
from bayesncl.paper.dynamics import recorder
from bayesncl.paper.experiments import ACCURACIES, DYNAMICS, Experiment
from bayesncl.paper.measures import (
    exemplars,
    paper_measures,
    probe_background,
    run_published_probe,
)
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, replace_fields, with_root
from bayesncl.training.loop import train
from bayesncl.training.run_folder import RunFolder

BACKGROUND_SETS = {"waterbirds": "waterbirds", "waterbirds-like": "waterbirds_like"}  # folder: key


@dataclass(frozen=True)
class Workspace:
    """Where runs are done and recorded.

    Attributes
    ----------
    results : the ledger.
    models : run folders: a finished run there is only measured, a stopped one resumed.
    data : holds a folder (or .tar) per dataset, or is the only dataset.
    scale : `paper` or `smoke`.
    """

    results: Path
    models: Path
    data: str | None = None
    scale: str = "paper"
    device: torch.device | None = None
    display: Display = field(default_factory=partial(Display, quiet=True))

    def path(self, name: str) -> str:
        """Path of a dataset."""
        if self.data is None:
            return ""
        root = Path(self.data).expanduser().resolve()
        options = root / name, root / f"{name}.tar"
        return str(next((path for path in options if path.exists()), root))

    def rooted(self, recipe: Recipe) -> Recipe:
        """The recipe with the path of its images."""
        return replace_fields(recipe, data={"root": self.path(recipe.data.name)})

    def backgrounds(self) -> dict[str, str]:
        """Paths of the datasets with backgrounds that exist, by their key in `extra`."""
        paths = {key: self.path(name) for name, key in BACKGROUND_SETS.items()}
        return {key: path for key, path in paths.items() if path != self.path("")}


def lacking(entry: ledger.Entry | None, experiment: Experiment, scale: str = "paper") -> set[str]:
    """What an experiment needs and an entry lacks: `run`, `probe`, `dynamics`, a background key."""
    if entry is None:
        return {"run"}
    columns, out = set(experiment.columns), set()
    probed = scale == "smoke" or "paper" in entry["measures"].get("probe", {})
    if columns & set(ACCURACIES) and not probed:
        out.add("probe")
    if columns & set(DYNAMICS) and not entry["dynamics"]:
        out.add("dynamics")
    if experiment.background:
        name = entry["recipe"]["data"]["name"]
        key = name if datasets.DATASETS[name].second_label else experiment.background
        out |= {key} - set(entry["extra"])
    return out


def run_list(recipes: Sequence[Recipe], experiment: Experiment, space: Workspace) -> list[Path]:
    """Do the runs that an experiment lacks, in order; paths of the entries written.

    Each run is recorded as soon as it is measured, so several processes can share a list. A run
    that fails is reported and skipped.
    """
    done = []
    for recipe in recipes:
        if not lacking(ledger.find(space.results, recipe), experiment, space.scale):
            continue
        try:
            path = do_run(recipe, experiment, space)
        except InputError as error:
            space.display.note(f"not run: {Path(ledger.file_name(recipe)).stem}: {error}")
            continue
        finally:
            space.display.close()
        space.display.note(f"recorded {path}")
        done.append(path)
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
        hook = recorder(images, recipe) if recipe.run.dynamics_every else None
        model = train(
            recipe, images, run.folder, device=space.device, display=display, after_epoch=hook
        )
    with run.lock():
        entry = ledger.find(space.results, recipe)
        needs = lacking(entry, experiment, space.scale)
        if not needs:
            raise InputError("another process has recorded it")
        own = datasets.DATASETS[recipe.data.name].second_label
        paths = {recipe.data.name: ""} if own else space.backgrounds()
        # on scenes most measures are about backgrounds: only experiments on them take those
        plain, plain_test = (replace(split, backgrounds=None) for split in (images, test))
        path = enter(
            space.results, run, recipe, model, (plain, plain_test), test, display,
            probe="probe" in needs or (entry is None and space.scale == "paper"),
            backgrounds=paths if experiment.background else {},
        )  # fmt: skip
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    return path


def record_run(
    run: RunFolder, results: Path, *, root: str | None, background: str | None, paper_probe: bool,
    device: torch.device, display: Display,
) -> Path:  # fmt: skip
    """Record a finished run, or add to its entry what that lacks.

    An existing evaluation.json is used as it is. `root` is the path of the images, if they moved;
    `background` that of a dataset in the layout of waterbirds, to probe for the background.
    """
    recipe = with_root(run.recipe(), root)
    model, result, paths = run.model(device), None, {}
    if background is not None:
        name = Path(background).expanduser().resolve().name
        paths[BACKGROUND_SETS.get(name, name.replace("-", "_"))] = background
    with run.lock():
        if run.evaluation_file.is_file():
            text = run.evaluation_file.read_text()
            result = Result.from_json(text, str(run.evaluation_file))
        images, test = (datasets.load(recipe.data, s, display.count) for s in ("train", "test"))
        return enter(
            results, run, recipe, model, (images, test), test, display,
            result=result, probe=paper_probe, backgrounds=paths,
        )  # fmt: skip


def enter(
    results: Path, run: RunFolder, recipe: Recipe, model: Encoder, splits: tuple[Images, Images],
    shown: Images, display: Display, *, probe: bool, backgrounds: dict[str, str],
    result: Result | None = None,
) -> Path:  # fmt: skip
    """Record a run with all its measures, or add to its entry the probes that it lacks.

    `splits` are the training and test images to measure on, `shown` those of the exemplars;
    `backgrounds` are paths of datasets to probe for the background, by their key in `extra`.
    """
    entry = ledger.find(results, recipe)
    if entry is None and result is None:
        more = partial(paper_measures, progress=display.count)
        result = evaluate(model, *splits, extra=more, progress=display.count)
        write_atomic(run.evaluation_file, result.to_json())
    probed = ((result and result.probe) or {}).get("paper")
    if probe and probed is None:
        probed = run_published_probe(model, *splits, progress=display.count)
    extra = {key: probe_background(model, path) for key, path in backgrounds.items()}
    if entry is not None or result is None:
        return ledger.add(results, run, recipe, probe=probed, extra=extra)
    if probed:
        result.probe = (result.probe or {}) | {"paper": probed}
    return ledger.record(
        results, run, result, recipe, exemplars=exemplars(model, shown), extra=extra
    )

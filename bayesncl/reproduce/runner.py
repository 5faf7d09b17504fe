"""Doing the runs: train, evaluate, record, one after the other; killed at any point, the same call resumes."""

from __future__ import annotations

import dataclasses
import gc
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import data as datasets
from ..data.images import Images
from ..errors import InputError
from ..evaluate import KINDS, background_probes, evaluate
from ..features import extract
from ..measure.dimensions import describe, most_mixed, most_suppressed
from ..measure.result import Result
from ..model import Encoder
from ..progress import Display
from ..recipes import Data, Recipe, replace_fields, with_root
from ..run import Run
from ..train import find_device, train
from . import ledger
from .experiments import BACKGROUND_SETS

DEEPER = 2.3  # ResNet-50 over ResNet-18, by multiply-adds
SHOWN_DIMS, SHOWN_IMAGES = 3, 10  # of the figures that show what dimensions respond to


def run_experiment_run(
    recipe: Recipe, library: Library, results: Path, models: Path, device: torch.device | None, paper_probe: bool,
    background: bool, complete: Callable[[ledger.Entry], bool],
) -> Path:  # fmt: skip
    """Train a recipe, resume it, or take it if finished; then measure it and enter it in the ledger. See `run_list`.

    InputError, and nothing is changed, where another process has made a complete entry meanwhile.
    """
    images, test = splits = library.load(recipe)
    own = datasets.DATASETS[recipe.data.name].second_label
    roots = ({recipe.data.name: ""} if own else library.backgrounds()) if background else {}
    recipe, count = library.rooted(recipe), library.display.count
    if torch.cuda.is_available():  # forget the run before, and its compiled step: only eight versions are kept
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    run = Run(models / Path(ledger.file_name(recipe)).stem)
    if run.finished():
        model = run.model(device or find_device())
    else:
        model = train(recipe, images, run.folder, device=device, display=library.display)
    # on scenes the probes for the background are most of the work: they are left to the experiments that ask for them
    plain = [dataclasses.replace(split, backgrounds=None) for split in splits]
    with run.lock():  # several processes may share a list
        known = ledger.by_identity(ledger.read(results)).get(ledger.identity(recipe))
        if known is not None and complete(known):
            raise InputError("another process has measured it meanwhile")
        evaluation = evaluate(model, plain[0], plain[1], paper_probe=paper_probe, progress=count)
        extra = {key: background_like(model, root) for key, root in roots.items()}
        path = ledger.record(results, run.folder, evaluation, recipe, exemplars=exemplars(model, test), extra=extra)
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    return path


def background_like(model: Encoder, root: str) -> dict[str, Any]:
    """Probes for the background with a frozen encoder, on images scaled to its view size.

    `root` is that of a data set in the layout of waterbirds; an empty one takes the model's own images. Gives `acc1`
    (percent), `acc1_spread` over probe seeds and `acc1_chance` for each of `h`, `z`, `gated`; `worst_group` of the
    object probe on h; `size` and `images` (training, test).
    """
    own, size = model.recipe.data, model.recipe.views.size
    data = dataclasses.replace(own, name="waterbirds", root=root, size=size) if root else own
    train_split, test_split = (datasets.load(data, split) for split in ("train", "test"))
    found = [extract(model, split) for split in (train_split, test_split)]
    probes, group = background_probes(found[0], train_split, found[1], test_split)
    return {
        **{k: {m: probes[k][m] for m in ("acc1", "acc1_spread", "acc1_chance")} for k in KINDS},
        "worst_group": {k: group[k] for k in ("worst", "average", "balanced")},
        "size": size,
        "images": [len(train_split), len(test_split)],
    }


def exemplars(model: Encoder, test: Images) -> dict[str, Any]:
    """Find the most mixed dimensions and, with gates, the most suppressed ones, with the images that drive them.

    Returns the lists `high_entropy` (of the gated features) and `suppressed`, or neither without labels. Each item has
    `dim`, `value` (nats; share), `support`, `images` (numbers in the test split, strongest first) and `classes` (their
    names).
    """
    if test.labels is None:
        return {}
    labels, names = test.labels.tolist(), test.class_names

    def shown(order: np.ndarray, value: np.ndarray | None, support: np.ndarray, z: np.ndarray) -> list[dict[str, Any]]:
        rows = []
        for dim in order[:SHOWN_DIMS].tolist():
            images = np.argsort(-z[:, dim], kind="stable")[:SHOWN_IMAGES].tolist()
            classes = [names[labels[i]] if names else str(labels[i]) for i in images]
            row = {"dim": dim, "value": float(value[dim]), "support": int(support[dim])}  # type: ignore[index]
            rows.append(row | {"images": images, "classes": classes})
        return rows

    features = extract(model, test)
    table = describe(features.gated, test.labels)
    found = {"high_entropy": shown(most_mixed(table), table.entropy_sum, table.support, features.gated)}
    if features.open is not None:
        table = describe(features.z, open=features.open)
        closed = np.asarray(table.closed_rate) / 100
        found["suppressed"] = shown(most_suppressed(table), closed, table.support, features.z)
    return found


def record_run(run: Run, results: Path, root: str | None, device: torch.device, display: Display) -> Path:
    """Enter a finished run in a ledger; an evaluation.json in its folder is taken as it is, else it is evaluated.

    `root` says where the images are, if they have moved.
    """
    recipe = with_root(run.recipe(), root)
    model = run.model(device)
    with run.lock():
        test = datasets.load(recipe.data, "test", display.count)
        if run.evaluation_file.is_file():
            result = Result.from_json(run.evaluation_file.read_text(), str(run.evaluation_file))
        else:
            result = evaluate(model, datasets.load(recipe.data, "train", display.count), test, progress=display.count)
            run.write(run.evaluation_file, result.to_json())
        return ledger.record(results, run.folder, result, recipe, exemplars=exemplars(model, test))


def estimate(recipe: Recipe, entries: Iterable[ledger.Entry] = ()) -> float:
    """Seconds a run will take, by the fastest of its kind in the ledger (others may share a GPU), else as stated."""
    times = []
    for entry in entries:
        known, seconds = entry["recipe"], entry["seconds"]
        same = known["data"]["name"] == recipe.data.name and known["model"]["backbone"] == recipe.model.backbone
        if same and seconds["train"] is not None:
            times.append((seconds["train"] + (seconds["evaluate"] or 0.0)) / entry["epochs"])
    if times:
        return min(times) * recipe.run.epochs
    per_epoch = datasets.DATASETS[recipe.data.name].seconds
    return per_epoch * recipe.run.epochs * (DEEPER if recipe.model.backbone == "resnet50" else 1.0)


class Library:
    """Images by data set, each split read once; the root holds a folder (or .tar) named after each, or is the only."""

    def __init__(self, root: str | None, display: Display) -> None:
        self.root, self.display = root, display
        self.splits: dict[Data, list[Images]] = {}
        self.missing: dict[str, InputError] = {}

    def place(self, name: str) -> str:
        """Where a data set lies."""
        if self.root is None:
            return ""
        whole = Path(self.root).expanduser().resolve()
        return next((str(path) for path in (whole / name, whole / f"{name}.tar") if path.exists()), str(whole))

    def rooted(self, recipe: Recipe) -> Recipe:
        """The recipe with the place of its images."""
        return replace_fields(recipe, data={"root": self.place(recipe.data.name)})

    def load(self, recipe: Recipe) -> list[Images]:
        """Training and test images of a recipe; InputError, at once the second time, where there are none."""
        data = self.rooted(recipe).data
        if data.name in self.missing:
            raise self.missing[data.name]
        if data not in self.splits:
            try:
                self.splits[data] = [datasets.load(data, split, self.display.count) for split in ("train", "test")]
            except InputError as error:
                self.missing[data.name] = error
                raise
        return self.splits[data]

    def backgrounds(self) -> dict[str, str]:
        """Roots of the data sets with backgrounds that are there, by their key in an entry's `extra`."""
        found = {key: self.place(name) for name, key in BACKGROUND_SETS.items()}
        whole = self.place("")
        return {key: root for key, root in found.items() if root != whole}


def run_list(
    runs: Sequence[Recipe], data: str | None, results: Path, models: Path, *, device: torch.device | None = None,
    paper_probe: bool = False, background: bool = False, display: Display | None = None,
    complete: Callable[[ledger.Entry], bool] = lambda entry: True,
) -> list[Path]:  # fmt: skip
    """Do runs in order, each entered in the ledger as soon as it exists; paths of the new entries.

    `data` holds a folder for each data set, or is the one data set. A half-finished run found under `models` is
    resumed, a finished one only measured: with the published 50-epoch linear probe (`paper_probe`), and for the
    background, on the sets found under `data`. A run with a `complete` entry in the ledger is passed over, one that
    fails is noted and left out: several processes can share one list.
    """
    display = display or Display(quiet=True)
    library = Library(data, display)
    done = []
    for recipe in runs:
        known = ledger.by_identity(ledger.read(results)).get(ledger.identity(recipe))
        if known is not None and complete(known):
            continue
        try:
            path = run_experiment_run(recipe, library, results, models, device, paper_probe, background, complete)
        except InputError as error:
            display.note(f"not run: {Path(ledger.file_name(recipe)).stem}: {error}")
            continue
        finally:
            display.close()
        display.note(f"recorded {path}")
        done.append(path)
    return done

"""Train, evaluate and record runs one after another; a killed call resumes when repeated."""

from __future__ import annotations

import dataclasses
import gc
import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesncl import data as datasets
from bayesncl.data.images import Images
from bayesncl.device import find_device
from bayesncl.errors import InputError
from bayesncl.evaluate import evaluate
from bayesncl.io import write_atomic
from bayesncl.measure.dimensions import describe, most_mixed, most_suppressed
from bayesncl.measure.result import Result
from bayesncl.method.encoder import Encoder
from bayesncl.method.features import extract
from bayesncl.paper import ledger
from bayesncl.paper.dynamics import recorder
from bayesncl.paper.experiments import ACCURACIES, BACKGROUND_SETS, DYNAMICS, Experiment
from bayesncl.paper.measures import paper_measures, probe_background, run_published_probe
from bayesncl.progress import Display
from bayesncl.recipes import Recipe, replace_fields, with_root
from bayesncl.training.loop import train
from bayesncl.training.run_folder import RunFolder

RESNET50_TIME = 2.3  # times that of ResNet-18, by multiply-adds
SHOWN_DIMS, SHOWN_IMAGES, SHOWN_PAIRS = 3, 10, 6  # in the sheets of images
PAIR_IMAGES = 20  # strongest images of a dimension among which pairs are sought


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


@dataclasses.dataclass(frozen=True)
class Library:
    """Images by dataset: `root` holds a folder (or .tar) of each name, or is the only dataset."""

    root: str | None
    display: Display

    def path(self, name: str) -> str:
        """Path of a dataset."""
        if self.root is None:
            return ""
        root = Path(self.root).expanduser().resolve()
        options = root / name, root / f"{name}.tar"
        return str(next((path for path in options if path.exists()), root))

    def rooted(self, recipe: Recipe) -> Recipe:
        """The recipe with the path of its images."""
        return replace_fields(recipe, data={"root": self.path(recipe.data.name)})

    def load(self, recipe: Recipe, split: str) -> Images:
        """One split; InputError without it."""
        return datasets.load(self.rooted(recipe).data, split, self.display.count)

    def backgrounds(self) -> dict[str, str]:
        """Paths of the datasets with backgrounds that exist, by their key in `extra`."""
        paths = {key: self.path(name) for name, key in BACKGROUND_SETS.items()}
        return {key: path for key, path in paths.items() if path != self.path("")}


def run_list(
    recipes: Sequence[Recipe], experiment: Experiment, results: Path, models: Path, *,
    scale: str = "paper", data: str | None = None, device: torch.device | None = None,
    display: Display | None = None,
) -> list[Path]:  # fmt: skip
    """Do the runs that an experiment lacks, in order; paths of the entries written.

    Each run is recorded as soon as it is measured, so several processes can share a list. A run
    that fails is reported and skipped. `models` holds the run folders: a finished run there is only
    measured, a stopped one resumed.
    """
    display = display or Display(quiet=True)
    library = Library(data, display)
    done = []
    for recipe in recipes:
        if not lacking(ledger.find(results, recipe), experiment, scale):
            continue
        try:
            path = do_run(recipe, experiment, scale, library, results, models, device)
        except InputError as error:
            display.note(f"not run: {Path(ledger.file_name(recipe)).stem}: {error}")
            continue
        finally:
            display.close()
        display.note(f"recorded {path}")
        done.append(path)
    return done


def do_run(
    recipe: Recipe, experiment: Experiment, scale: str, library: Library, results: Path,
    models: Path, device: torch.device | None,
) -> Path:  # fmt: skip
    """Train a run unless its weights exist, measure what the ledger lacks, and record it."""
    images, test = (library.load(recipe, split) for split in ("train", "test"))
    recipe, display = library.rooted(recipe), library.display
    if torch.cuda.is_available():  # forget the previous run and its compiled step
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    run = RunFolder(models / Path(ledger.file_name(recipe)).stem)
    if run.finished():
        model = run.model(device or find_device())
    else:
        after_epoch = recorder(images, recipe) if recipe.run.dynamics_every else None
        model = train(
            recipe, images, run.folder, device=device, display=display, after_epoch=after_epoch
        )
    with run.lock():
        entry = ledger.find(results, recipe)
        needs = lacking(entry, experiment, scale)
        if not needs:
            raise InputError("another process has recorded it")
        own = datasets.DATASETS[recipe.data.name].second_label
        paths = {recipe.data.name: ""} if own else library.backgrounds()
        probe = "probe" in needs or (entry is None and scale == "paper")
        # on scenes most measures are about backgrounds: only experiments on them take those
        plain, plain_test = (dataclasses.replace(s, backgrounds=None) for s in (images, test))
        path = enter(
            results, run, recipe, model, (plain, plain_test), test, None, probe,
            paths if experiment.background else {}, display,
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
            results, run, recipe, model, (images, test), test, result, paper_probe, paths, display
        )


def enter(
    results: Path, run: RunFolder, recipe: Recipe, model: Encoder, splits: tuple[Images, Images],
    shown: Images, result: Result | None, probe: bool, backgrounds: dict[str, str],
    display: Display,
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
    if result is not None and probed:
        result.probe = (result.probe or {}) | {"paper": probed}
    if entry is not None or result is None:
        return ledger.add(results, run, recipe, probe=probed, extra=extra)
    return ledger.record(
        results, run, result, recipe, exemplars=exemplars(model, shown), extra=extra
    )


def exemplars(model: Encoder, test: Images) -> dict[str, Any]:
    """Dimensions to look at, each with the test images to look at; empty without labels.

    Returns the lists `high_entropy` (dimensions of the highest class entropy), `pairs` (see
    `shared_pairs`) and, with gates, `suppressed`. Each item has `dim`, `value` (nats, a product of
    two features, the share of closed gates), `support`, `images` (indices) and `classes` (names).
    """
    if test.labels is None:
        return {}

    def item(dim: int, value: float, support: np.ndarray, images: list[int]) -> dict[str, Any]:
        row = {"dim": int(dim), "value": float(value), "support": int(support[dim])}
        return row | {"images": images, "classes": [describe_image(test, i) for i in images]}

    def strongest(z: np.ndarray, dim: int) -> list[int]:
        return np.argsort(-z[:, dim], kind="stable")[:SHOWN_IMAGES].tolist()

    features = extract(model, test)
    z, table = features.gated, describe(features.gated, test.labels)
    entropy, support = table.entropy_sum, table.support
    assert entropy is not None
    mixed, pairs = most_mixed(table), shared_pairs(z, test.labels, test.backgrounds)
    out = {
        "high_entropy": [
            item(d, entropy[d], support, strongest(z, d)) for d in mixed[:SHOWN_DIMS]
        ],
        "pairs": [item(d, value, support, both) for d, value, both in pairs[:SHOWN_PAIRS]],
    }
    if features.open is not None:
        z, table = features.z, describe(features.z, open=features.open)
        closed, support = table.closed_rate, table.support
        assert closed is not None
        dims = most_suppressed(table)[:SHOWN_DIMS]
        out["suppressed"] = [item(d, closed[d] / 100, support, strongest(z, d)) for d in dims]
    return out


def describe_image(images: Images, i: int) -> str:
    """Class of an image, with its background if that is known."""

    def name(index: np.ndarray, names: Sequence[str] | None) -> str:
        return names[int(index[i])] if names else str(int(index[i]))

    assert images.labels is not None
    text = name(images.labels, images.class_names)
    if images.backgrounds is None:
        return text
    return f"{text} on {name(images.backgrounds, images.background_names)}"


def shared_pairs(
    z: np.ndarray, labels: np.ndarray, backgrounds: np.ndarray | None
) -> list[tuple[int, float, list[int]]]:
    """Pairs of images of different classes found by their most similar shared dimension.

    For each dimension k, of its 20 strongest images: the pair of different classes (on the same
    background, if known) with the greatest z_k z'_k among the pairs that have it in k. Items are
    (k, product, images), greatest product first; dimensions without such a pair are left out.
    """
    found = []
    for k in range(z.shape[1]):
        top = np.argsort(-z[:, k], kind="stable")[:PAIR_IMAGES]
        product = z[top, None] * z[None, top]  # [20, 20, D]
        allowed = np.triu(labels[top, None] != labels[None, top]) & (product.argmax(2) == k)
        if backgrounds is not None:
            allowed &= backgrounds[top, None] == backgrounds[None, top]
        value = np.where(allowed, product[:, :, k], 0)
        i, j = np.unravel_index(value.argmax(), value.shape)
        if value[i, j] > 0:
            found.append((k, float(value[i, j]), [int(top[i]), int(top[j])]))
    return sorted(found, key=lambda pair: -pair[1])


def estimate(recipe: Recipe, entries: Iterable[ledger.Entry] = ()) -> float:
    """Seconds of a run: as the fastest of its kind in the ledger (others share GPUs), or stated."""
    times = []
    for entry in entries:
        other, seconds = entry["recipe"], entry["seconds"]
        same = other["data"]["name"] == recipe.data.name
        if same and other["model"]["backbone"] == recipe.model.backbone and seconds["train"]:
            times.append((seconds["train"] + (seconds["evaluate"] or 0.0)) / entry["epochs"])
    if times:
        return min(times) * recipe.run.epochs
    factor = RESNET50_TIME if recipe.model.backbone == "resnet50" else 1.0
    return datasets.DATASETS[recipe.data.name].seconds * recipe.run.epochs * factor

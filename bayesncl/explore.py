"""From runs, or from plain arrays, to the atlas."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from .atlas import AtlasRun, build_atlas
from .data import arrays, load
from .data.images import Images
from .errors import InputError
from .features import extract
from .model import Encoder
from .model import load as load_model
from .progress import Display
from .recipes import Data, Recipe, with_root

FEW = 500  # images: fewer give a poor picture of a dimension
TRAINED_ON = "The images shown include those it was trained on."
HELD_OUT = ("folder", "shards", "arrays")  # data sets whose test images may be held out of the same pile


def atlas_of_runs(runs: list[Path], out: Path, root: str | None, most: int, device: Any, display: Display) -> Path:
    """The atlas of one run, or of two on the same test images (the training images where nothing is held out)."""
    if len(runs) > 2:
        raise InputError(f"an atlas shows one or two runs, got {len(runs)}")
    models = [load_model(run, device or "cpu") for run in runs]
    recipes = [with_root(model.recipe, root) for model in models]
    same = Data()  # but for how pixels are normalised
    free = {name: getattr(same, name) for name in ("mean", "std", "paper_mean", "paper_std")}
    shown = [dataclasses.replace(recipe.data, **free) for recipe in recipes]
    if shown[0] != shown[-1]:
        raise InputError(f"{runs[0]} and {runs[1]} are of different images: an atlas compares runs on the same ones")
    split, trained_on = shown_split(recipes[0], display)
    images = thin_out(split, most)
    described = [describe_run(model, run, images, display) for model, run in zip(models, runs)]
    if described[0].name == described[-1].name and len(runs) > 1:
        places = ["/".join(run.resolve().parts[-2:]) for run in runs]  # of model files the folder tells, too
        described = [dataclasses.replace(each, name=place) for each, place in zip(described, places)]
    if trained_on:
        described = [dataclasses.replace(run, sentence=f"{run.sentence} {TRAINED_ON}") for run in described]
    return build_atlas(out, described, images, title=" and ".join(run.name for run in described))


def default_place(source: Path) -> Path:
    """Where an atlas goes: into the folder of its run, or beside the file it is made from."""
    return source.with_name(source.stem + "-atlas") if source.is_file() else source / "atlas"


def describe_run(model: Encoder, run: Path, images: Images, display: Display | None = None) -> AtlasRun:
    """Features of the images, with the headline numbers of the run's evaluation where it has one."""
    found = extract(model, images, "sound", progress=display.count if display else None)
    recipe = model.recipe
    sentence = (
        f"{recipe.name}: {recipe.model.dim} dimensions learnt from {recipe.data.name} without labels, "
        f"{recipe.run.epochs} epochs, seed {recipe.run.seed}."
    )
    return AtlasRun(
        recipe.name, found.z, found.gated if model.gate is not None else None, found.open, read_summary(run), sentence
    )


def read_summary(run: Path) -> dict[str, dict[str, float]] | None:
    """Headline numbers of RUN/evaluation.json."""
    path = run / "evaluation.json"
    if not path.is_file():
        return None
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(results, dict):
        return None
    return {name: results[name] for name in ("paper", "sound") if isinstance(results.get(name), dict)}


def atlas_of_arrays(path: Path, out: Path) -> Path:
    """The atlas of any model's features: an .npz with images, z [N, D] and, where there are such, y, gated and open."""
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected an .npz")
    try:
        found = arrays.read_npz(path, ("z", "gated", "open", "images"))
    except InputError:
        raise
    except arrays.UNREADABLE as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    for name in ("z", "images"):
        if name not in found:
            raise InputError(f"{path}: no array named {name} in it")
    side = sorted(found["images"].shape[1:])[1:]  # of [3, H, W] or [H, W, 3]
    data = Data(name="arrays", root=str(path), holdout=0.0, size=min([*side, 1024]) if side else 32)
    images = arrays.load(data, "train")
    run = AtlasRun(path.stem, found["z"], found.get("gated"), found.get("open"), None, f"Features from {path.name}.")
    return build_atlas(out, [run], images, title=path.stem)


def shown_split(recipe: Recipe, display: Display) -> tuple[Images, bool]:
    """The test split; the whole set (and True) where there is none, or where too few were held out to look at."""
    try:
        images = load(recipe.data, "test", display.count)
        if len(images) >= FEW or recipe.data.name not in HELD_OUT:
            return images, False
        reason = f"only {len(images)} images are held out"
    except InputError as error:
        reason = str(error)
    display.note(f"{reason}: the training images are shown too")
    return load(dataclasses.replace(recipe.data, holdout=0.0), "train", display.count), True


def thin_out(images: Images, most: int) -> Images:
    """At most `most` images, spread evenly over the split."""
    if len(images) <= most:
        return images
    rows = np.linspace(0, len(images) - 1, most).astype(np.int64)
    picked = {
        field: None if (value := getattr(images, field)) is None else value[rows]
        for field in ("pixels", "labels", "backgrounds")
    }
    names = None if images.names is None else tuple(images.names[i] for i in rows)
    return dataclasses.replace(images, **picked, names=names)  # type: ignore[arg-type]

"""From runs, or from plain arrays, to the atlas."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import read_arrays, unit_rows
from ..checkpoint import open_model
from ..data import DATASETS, load
from ..data import arrays as array_images
from ..data.images import Images
from ..errors import InputError
from ..features import extract
from ..files import digest
from ..heat import see_model, strongest_heat
from ..model import Encoder
from ..names import FINGERPRINT
from ..progress import Display
from ..recipes import Data, Recipe, with_root
from ..run import Run
from .build import MOST_RUNS, build_atlas, check_out
from .contents import AtlasRun

FEW = 500  # images: fewer give a poor picture of a dimension
TRAINED_ON = "The images shown include those it was trained on."
OTHER_IMAGES = "The images shown are not those it was trained on."


def atlas_of_runs(runs: list[Path], out: Path, root: str | None, most: int, device: Any, display: Display) -> Path:
    """The atlas of runs on the same test images (the training images where nothing is held out)."""
    if len(runs) > MOST_RUNS:
        raise InputError(f"an atlas shows one to {MOST_RUNS} runs, got {len(runs)}")
    check_out(out)
    models, remarks = zip(*(open_model(run, device or "cpu") for run in runs))
    recipes = [with_root(model.recipe, root) for model in models]
    same = Data()  # but for how pixels are normalised
    free = {name: getattr(same, name) for name in ("mean", "std", "paper_mean", "paper_std")}
    shown = [dataclasses.replace(recipe.data, **free) for recipe in recipes]
    for run, data in zip(runs, shown):
        if data != shown[0]:
            raise InputError(f"{runs[0]} and {run} are of different images: an atlas compares runs on the same ones")
    others = other_images(models[0].recipe, root)
    if others:
        split, remark = load(dataclasses.replace(recipes[0].data, holdout=0.0), "train", display.count), OTHER_IMAGES
    else:
        split, trained_on = shown_split(recipes[0], display)
        remark = TRAINED_ON if trained_on else ""
    images = thin_out(split, most)
    described = [describe_run(model, run, images, display) for model, run in zip(models, runs)]
    if len({each.name for each in described}) < len(described):
        places = ["/".join(run.resolve().parts[-2:]) for run in runs]  # of model files the folder tells, too
        described = [dataclasses.replace(each, name=place) for each, place in zip(described, places)]
    said = [" ".join(filter(None, (each.sentence, own, remark))) for each, own in zip(described, remarks)]
    described = [dataclasses.replace(each, sentence=text) for each, text in zip(described, said)]
    return build_atlas(out, described, images, title=" and ".join(run.name for run in described))


def other_images(recipe: Recipe, root: str | None) -> bool:
    """Whether `root` is another pile of images than the one a run was trained on."""
    known = recipe.data.root
    if root is None or not DATASETS[recipe.data.name].holdout or not known:
        return False
    return Path(root).resolve() != Path(known).resolve()


def default_place(source: Path) -> Path:
    """Where an atlas goes: into the folder of its run, or beside the file it is made from."""
    return source.with_name(source.stem + "-atlas") if source.is_file() else Run(source).atlas


def describe_run(model: Encoder, run: Path, images: Images, display: Display | None = None) -> AtlasRun:
    """Features of the images, with the headline numbers of the run's evaluation where it has one."""
    found = extract(model, images, "sound", progress=display.count if display else None)
    recipe = model.recipe
    sentence = (
        f"{recipe.name}: {recipe.model.dim} dimensions learnt from {recipe.data.name} without labels, "
        f"{recipe.run.epochs} epochs, seed {recipe.run.seed}."
    )
    gated = found.gated if model.head.kind is not None else None
    mark = digest(model.state_dict())[:FINGERPRINT]
    heat = strongest_heat(see_model(model), images.pixels, found.z if gated is None else gated)
    return AtlasRun(
        recipe.name, found.z, gated, found.open, read_summary(run), sentence, mark, heat,
        read_verdict((Run(run).evaluation() or {}).get("verdict")),
    )  # fmt: skip


def read_summary(run: Path) -> dict[str, dict[str, float]] | None:
    """Headline numbers of RUN/evaluation.json."""
    results = Run(run).evaluation()
    if results is None:
        return None
    return {name: results[name] for name in ("paper", "sound") if isinstance(results.get(name), dict)}


def read_verdict(found: object) -> tuple[tuple[str, str], ...]:
    """Lines of a verdict as JSON holds it; none of anything else."""
    lines = found.get("lines") if isinstance(found, dict) else None
    return tuple(
        (str(line.get("text", "")), str(line.get("measured_by", "")))
        for line in (lines if isinstance(lines, list) else [])
        if isinstance(line, dict)
    )


def atlas_of_arrays(path: Path, out: Path) -> Path:
    """The atlas of any model's features: an .npz with images, z [N, D] and, where there are such, y, gated and open."""
    check_out(out)
    found = read_arrays(path, ("z", "gated", "open", "images"), needed=("z", "images"))
    z, gated = unit_rows(found["z"]), unit_rows(found["gated"]) if "gated" in found else None
    side = sorted(found["images"].shape[1:])[1:]  # of [3, H, W] or [H, W, 3]
    data = Data(name="arrays", root=str(path), holdout=0.0, size=min([*side, 1024]) if side else 32)
    images = array_images.load(data, "train")
    run = AtlasRun(path.stem, z, gated, found.get("open"), None, f"Features from {path.name}.")
    return build_atlas(out, [run], images, title=path.stem)


def shown_split(recipe: Recipe, display: Display) -> tuple[Images, bool]:
    """The test split; the whole set (and True) where there is none, or where too few were held out to look at."""
    try:
        images = load(recipe.data, "test", display.count)
        if len(images) >= FEW or not DATASETS[recipe.data.name].holdout:
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

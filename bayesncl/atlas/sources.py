"""From runs, from folders of codes or from plain arrays to the atlas."""

from __future__ import annotations

import dataclasses
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import read_arrays
from ..checkpoint import open_model
from ..codes_folder import About, CodesFolder, Rows
from ..data import DATASETS, load
from ..data import arrays as array_images
from ..data.images import Images, spread_evenly
from ..encoders import PhotoEncoder
from ..errors import InputError, first_line, printable
from ..features import extract
from ..files import digest
from ..heat import Heat, see_codes, see_model, strongest_heat
from ..measure.kept import keep
from ..measure.readable import KEPT
from ..model import Encoder
from ..names import FINGERPRINT
from ..progress import Display
from ..recipes import Data, Recipe, recipe_from_json, with_root
from ..run import Run
from .build import build_atlas, check_out
from .contents import AtlasRun
from .pictures import Photos, read_with

FEW = 500  # images: fewer give a poor picture of a dimension
THREADS = 8  # that decode photos
CHECKED_PHOTOS = 128  # for heat maps: each goes through the encoder seven times
TRAINED_ON = "The images shown include those it was trained on."
OTHER_IMAGES = "The images shown are not those it was trained on."
MAKING = "making the page"  # which takes a minute or more for many images
ASK = "bayesncl atlas --heat finds it, which takes every photo through the encoder again"


def atlas_of_runs(runs: list[Path], out: Path, root: str | None, most: int, device: Any, display: Display) -> Path:
    """The atlas of runs on the same test images (the training images where nothing is held out)."""
    check_out(out, len(runs))
    models, remarks = zip(*(open_model(run, device or "cpu") for run in runs))
    for unfinished in filter(None, remarks):
        display.note(unfinished)
    recipes = [with_root(model.recipe, root) for model in models]
    same = Data()  # but for how pixels are normalised
    free = {name: getattr(same, name) for name in ("mean", "std", "paper_mean", "paper_std")}
    shown = [dataclasses.replace(recipe.data, **free) for recipe in recipes]
    for run, data in zip(runs, shown):
        if data != shown[0]:
            raise InputError(f"{runs[0]} and {run} are of different images: an atlas compares runs on the same ones")
    if other_images(models[0].recipe, root):
        split, remark = load(dataclasses.replace(recipes[0].data, holdout=0.0), "train", display.count), OTHER_IMAGES
    else:
        split, trained_on = shown_split(recipes[0], display)
        remark = TRAINED_ON if trained_on else ""
    images = thin_out(split, most)
    described = [describe_run(model, run, images, display) for model, run in zip(models, runs)]
    names = tell_apart([each.name for each in described], runs)  # of model files the folder tells, too
    said = [" ".join(filter(None, (each.sentence, own, remark))) for each, own in zip(described, remarks)]
    described = [dataclasses.replace(each, name=n, sentence=text) for each, n, text in zip(described, names, said)]
    display.busy(MAKING)
    return build_atlas(out, described, images, title=" and ".join(names))


def tell_apart(names: list[str], places: list[Path]) -> list[str]:
    """The names, or the ends of the paths where two have the same one."""
    return names if len(set(names)) == len(names) else ["/".join(place.resolve().parts[-2:]) for place in places]


def other_images(recipe: Recipe, root: str | None) -> bool:
    """Whether `root` is another pile of images than the one a run was trained on."""
    known = recipe.data.root
    if root is None or not DATASETS[recipe.data.name].holdout or not known:
        return False
    return Path(root).resolve() != Path(known).resolve()


def default_place(source: Path) -> Path:
    """Where an atlas goes: into the folder of its run, or beside the file it is made from."""
    run = Run(source)
    return source.with_name(source.stem + "-atlas") if source.is_file() else run.inside(run.atlas)


def describe_run(model: Encoder, run: Path, images: Images, display: Display) -> AtlasRun:
    """Features of the images, with the headline numbers and the verdict of the run's evaluation where it has one."""
    found = extract(model, images, "sound", progress=display.count)
    recipe = model.recipe
    sentence = (
        f"{recipe.name}: {recipe.model.dim} dimensions learnt from {recipe.data.name} without labels, "
        f"{recipe.run.epochs} epochs, seed {recipe.run.seed}."
    )
    gated = found.gated if model.head.kind is not None else None
    mark = digest(model.state_dict())[:FINGERPRINT]
    display.busy("trying heat maps")
    heat = strongest_heat(see_model(model), images.pixels, found.z if gated is None else gated)
    results = Run(run).evaluation() or {}
    summary, verdict = {k: results.get(k) for k in ("paper", "sound")}, read_verdict(results.get("verdict"))
    return AtlasRun(recipe.name, found.z, gated, found.open, summary, sentence, mark, heat, verdict)


def read_verdict(found: object) -> tuple[tuple[str, str], ...]:
    """Lines of a verdict as JSON holds it; none of anything else."""
    lines = found.get("lines") if isinstance(found, dict) else None
    return tuple(
        (str(line.get("text", "")), str(line.get("measured_by", "")))
        for line in (lines if isinstance(lines, list) else [])
        if isinstance(line, dict)
    )


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
    rows = spread_evenly(len(images), most)
    known = {field: getattr(images, field) for field in ("pixels", "labels", "backgrounds")}
    picked: dict[str, Any] = {field: value[rows] for field, value in known.items() if value is not None}
    names = None if images.names is None else tuple(images.names[i] for i in rows)
    return dataclasses.replace(images, **picked, names=names)


def atlas_of_arrays(path: Path, out: Path) -> Path:
    """The atlas of any model's features: an .npz with images, z [N, D] and, where there are such, y, gated and open."""
    check_out(out)
    found = read_arrays(path, ("z", "gated", "open", "images"), needed=("z", "images"))
    side = sorted(found["images"].shape[1:])[1:]  # of [3, H, W] or [H, W, 3]
    data = Data(name="arrays", root=str(path), holdout=0.0, size=min([*side, 1024]) if side else 32)
    images = array_images.load(data, "train")
    run = AtlasRun(path.stem, found["z"], found.get("gated"), found.get("open"), None, f"Features from {path.name}.")
    return build_atlas(out, [run], images, title=path.stem)


def atlas_of_codes(
    folders: list[Path], out: Path, root: str | None, most: int, display: Display, heat: bool = False,
    encoder: str | None = None,
) -> Path:  # fmt: skip
    """The atlas of codes of the same images: those held out, or all where these are few.

    Heat maps of photos are made on request; an encoder that is code must be named for them.
    """
    check_out(out, len(folders), "codes")
    known = [CodesFolder(path) for path in folders]
    abouts = [folder.about() for folder in known]
    rows = [folder.rows(about) for folder, about in zip(known, abouts)]
    for path, other in zip(folders, rows):
        if sorted(other.names) != sorted(rows[0].names):
            raise InputError(f"{folders[0]} and {path} are of different images: an atlas compares codes of one set")
    first = len(rows[0]) - rows[0].held if rows[0].held >= FEW else 0
    chosen = first + spread_evenly(len(rows[0]) - first, most)
    images = _images(known[0], abouts[0], rows[0], chosen, root, display)
    titles = tell_apart([path.resolve().name for path in folders], folders)
    runs = []
    for title, folder, about, each in zip(titles, known, abouts, rows):
        here: Any = chosen
        if each.names != rows[0].names:
            place = {name: i for i, name in enumerate(each.names)}
            if len(place) < len(each):
                raise InputError(f"{folder} has images of one name, in another order than {folders[0]}")
            here = [place[rows[0].names[i]] for i in chosen]
        codes = folder.codes()
        z: Any = codes.transform(np.asarray(folder.embeddings(about)[here]))
        through = "" if about.encoder is None else f" through {Path(str(about.encoder.get('spec'))).name}"
        mirrored = " and their mirror images" if (about.encoder or {}).get("mirror") else ""
        what = f"{len(each) - each.held:,} images{mirrored}{through}"
        sentence = f"{codes.dim_} dimensions read from {what} by {codes.method}."
        maps = heat_of_codes(folder, images, z, heat, encoder, display)
        if heat and isinstance(maps, str):
            display.note(f"no heat maps: {maps}")
        if codes.keep is None and not codes.head_.zeros:  # or every dimension would fire on every image
            z = keep(z, KEPT)
            sentence += f" Each image is shown with its {KEPT} strongest."
        runs.append(describe_codes(folder, title, z, sentence if first else f"{sentence} {TRAINED_ON}", maps))
    display.busy(MAKING)
    return build_atlas(out, runs, images, title=" and ".join(titles))


def describe_codes(folder: CodesFolder, title: str, z: Any, sentence: str, heat: Heat | str) -> AtlasRun:
    """Codes of the images of an atlas, with the verdict that `fit` wrote."""
    verdict = read_verdict(folder.verdict())
    return AtlasRun(title, z, sentence=sentence, fingerprint=folder.fingerprint(), heat=heat, verdict=verdict)


def heat_of_codes(
    folder: CodesFolder, images: Images | Photos, z: np.ndarray, asked: bool, encoder: str | None, display: Display
) -> Heat | str:
    """Where each image's strongest dimensions fire, or in words why that is not shown."""
    if folder.about().encoder is None:
        return "the codes were fitted on an array, and no encoder is known"
    if isinstance(images, Photos) and not asked:
        return ASK
    try:
        model = folder.model("cpu", encoder)
        sight = see_codes(model)
        if isinstance(images, Images):
            return strongest_heat(sight, images.pixels, z, tell=display.count)
        view = model.encoder.view
        share = view.crop / max(view.resize, view.crop)
        display.busy("trying heat maps")
        photos = Prepared(images, model.encoder)
        return strongest_heat(sight, photos, z, share=share, tell=display.count, checked=CHECKED_PHOTOS)
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever a stranger's network raises when it is looked into
        return f"its encoder cannot be looked into ({first_line(error)})"


class Prepared:
    """Photos as an encoder takes them, uint8 [N, 3, S, S], read when they are asked for."""

    def __init__(self, photos: Photos, encoder: PhotoEncoder) -> None:
        self.photos, self.encoder = photos, encoder

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, rows: Any) -> np.ndarray:
        paths = [self.photos.paths[i] for i in np.arange(len(self))[rows]]
        read, side = self.encoder.read, self.encoder.view.crop
        with ThreadPoolExecutor(THREADS) as pool:
            return np.stack(list(pool.map(lambda path: read_with(path, read, side), paths)))


def _images(
    folder: CodesFolder, about: About, rows: Rows, chosen: np.ndarray, root: str | None, display: Display
) -> Images | Photos:
    """The images of some rows: photos by their paths, or those of a run's data set."""
    labels = None if rows.labels is None else rows.labels[chosen]
    names = tuple(rows.names[i] for i in chosen)
    if about.kind != "run":
        paths = folder.photo_paths(rows, chosen, root)
        if (gone := paths.count(None)) or root is None:
            base = printable(str(root or folder.place(about.images or "")), 300)
            display.note(f"images from {base}" + (f"; {gone:,} are gone or changed, shown in grey" if gone else ""))
        known = [path or Path("\0") for path in paths]  # which is no file
        return Photos(known, labels, class_names=rows.class_names, names=names)
    recipe = with_root(recipe_from_json(json.dumps(about.recipe), str(folder.about_file)), root)
    places = [place for name in names if (place := re.fullmatch(r"(train|test)/([0-9]{1,9})", name))]
    if not places or len(places) < len(names):
        raise folder.damaged(folder.rows_file)
    used = {place[1] for place in places}
    splits = {split: load(recipe.data, split, display.count) for split in ("train", "test") if split in used}
    found = [(splits[place[1]], int(place[2])) for place in places]
    if any(i >= len(split) for split, i in found):
        raise InputError(f"{folder} is of other images: its data set has changed")
    pixels = np.stack([split.pixels[i] for split, i in found])
    grounds = np.array([-1 if split.backgrounds is None else split.backgrounds[i] for split, i in found])
    both = None if (grounds < 0).all() else grounds
    return Images(pixels, labels, both, rows.class_names, found[0][0].background_names, names)

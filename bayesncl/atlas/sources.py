"""The atlas of runs, of codes folders, or of plain arrays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from bayesncl.atlas.build import build_atlas, check_out
from bayesncl.atlas.page_data import AtlasRun, JobPage
from bayesncl.atlas.pictures import Photos, read_photo
from bayesncl.codes.encoders import PhotoEncoder
from bayesncl.codes.folder import CodesFolder, Rows, file_stat
from bayesncl.codes.heat import Heatmaps, heatmaps_of_codes, heatmaps_of_run, strongest_heatmaps
from bayesncl.codes.names import FINGERPRINT_DIGITS, clean_names
from bayesncl.data import DATASETS, load
from bayesncl.data import arrays as array_images
from bayesncl.data.cache import map_in_threads
from bayesncl.data.folder import safe_name
from bayesncl.data.images import Images, spread_evenly
from bayesncl.errors import InputError, as_input_error, first_line, printable
from bayesncl.inputs import read_arrays
from bayesncl.io import digest
from bayesncl.jobs.audit import KINDS, audit_folder, stored_findings
from bayesncl.jobs.explain import read_saved
from bayesncl.jobs.saved import load_result, save_result
from bayesncl.measure.figures import KEPT
from bayesncl.measure.topk import keep
from bayesncl.method.encoder import Encoder
from bayesncl.method.features import extract
from bayesncl.progress import Display
from bayesncl.recipes import Data, Recipe, recipe_from_json, with_root
from bayesncl.training.checkpoint import open_model
from bayesncl.training.run_folder import RunFolder

MIN_IMAGES = 500  # of a held-out split; fewer show too little of a dimension
HEAT_CHECK_PHOTOS = 128  # each goes through the encoder seven times
FINDINGS_PER_KIND = 200  # on the page, the worst ones
TRAINED_ON = "The images shown include training images."
OTHER_IMAGES = "It was not trained on the images shown."
NO_HEAT = "run bayesncl atlas with --heat, which encodes all photos again"


def atlas_of_runs(
    runs: list[Path], out: Path, root: str | None, max_images: int, device: Any, display: Display
) -> Path:
    """Write the atlas of runs on the same test images, or training images if none are held out."""
    check_out(out, len(runs))
    models, remarks = zip(*(open_model(run, device or "cpu") for run in runs))
    for remark in filter(None, remarks):
        display.note(remark)
    recipes = [with_root(model.recipe, root) for model in models]
    pixels = {name: getattr(Data(), name) for name in ("mean", "std", "paper_mean", "paper_std")}
    sets = [dataclasses.replace(recipe.data, **pixels) for recipe in recipes]  # without the scaling
    for run, data in zip(runs, sets):
        if data != sets[0]:
            raise InputError(f"{runs[0]} and {run} were trained on different images")
    if other_images(models[0].recipe, root):
        images, source = load_all(recipes[0], display), OTHER_IMAGES
    else:
        images, trained_on = shown_split(recipes[0], display)
        source = TRAINED_ON if trained_on else ""
    images = thin_out(images, max_images)
    described = [describe_run(model, run, images, display) for model, run in zip(models, runs)]
    return _build(out, described, runs, [f"{each} {source}" for each in remarks], images, display)


def _build(
    out: Path, runs: list[AtlasRun], paths: list[Path], remarks: list[str],
    images: Images | Photos, display: Display, pages: dict[str, JobPage] | None = None,
) -> Path:  # fmt: skip
    """Build the atlas; runs with the same name are named by the ends of their paths."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = ["/".join(path.resolve().parts[-2:]) for path in paths]
    for r, (name, remark) in enumerate(zip(names, remarks)):
        sentence = " ".join(f"{runs[r].sentence} {remark}".split())
        runs[r] = dataclasses.replace(runs[r], name=name, sentence=sentence)
    display.busy("writing the page")
    return build_atlas(out, runs, images, " and ".join(names), pages)


def other_images(recipe: Recipe, root: str | None) -> bool:
    """Whether `root` is another folder of images than the one a run was trained on."""
    own = recipe.data.root
    if root is None or not own or not DATASETS[recipe.data.name].holdout:
        return False
    return Path(root).resolve() != Path(own).resolve()


def default_out(source: Path) -> Path:
    """Where an atlas goes by default: into the folder of the run, or beside the file."""
    if source.is_file():
        return source.with_name(source.stem + "-atlas")
    run = RunFolder(source)
    return run.atlas


def describe_run(model: Encoder, run: Path, images: Images, display: Display) -> AtlasRun:
    """Encode the images; add the figures and the verdict of the evaluation, if there is one."""
    features = extract(model, images, "sound", progress=display.count)
    recipe = model.recipe
    sentence = (
        f"{recipe.name}: {recipe.model.dim} dimensions learned from {recipe.data.name} without "
        f"labels, {recipe.run.epochs} epochs, seed {recipe.run.seed}."
    )
    gated = features.gated if model.head.kind is not None else None
    display.busy("checking heat maps")
    codes = features.z if gated is None else gated
    heat = strongest_heatmaps(heatmaps_of_run(model), images.pixels, codes)
    results = RunFolder(run).evaluation() or {}
    summary = {name: results.get(name) for name in ("paper", "sound")}
    return AtlasRun(
        recipe.name, features.z, gated, features.open, summary, sentence,
        digest(model.state_dict())[:FINGERPRINT_DIGITS], heat,
        verdict_lines(results.get("verdict")),
    )  # fmt: skip


def verdict_lines(verdict: Any) -> tuple[tuple[str, str], ...]:
    """The lines of a verdict as read from JSON; none if it is malformed."""
    try:
        return tuple((str(x["text"]), str(x["measured_by"])) for x in verdict["lines"])
    except (TypeError, KeyError):
        return ()


def shown_split(recipe: Recipe, display: Display) -> tuple[Images, bool]:
    """The test split; or all images, and True, if there is none or it is too small."""
    try:
        images = load(recipe.data, "test", display.count)
        if len(images) >= MIN_IMAGES or not DATASETS[recipe.data.name].holdout:
            return images, False
        reason = f"only {len(images)} images are held out"
    except InputError as error:
        reason = str(error)
    display.note(f"{reason}: showing the training images too")
    return load_all(recipe, display), True


def load_all(recipe: Recipe, display: Display) -> Images:
    """All images of a dataset without a test split."""
    return load(dataclasses.replace(recipe.data, holdout=0.0), "train", display.count)


def thin_out(images: Images, max_images: int) -> Images:
    """At most `max_images` images, spread evenly over the split."""
    if len(images) <= max_images:
        return images
    rows = spread_evenly(len(images), max_images)
    arrays = {name: getattr(images, name) for name in ("pixels", "labels", "backgrounds")}
    picked: Any = {name: x[rows] for name, x in arrays.items() if x is not None}
    names = None if images.names is None else tuple(images.names[i] for i in rows)
    return dataclasses.replace(images, **picked, names=names)


def atlas_of_arrays(path: Path, out: Path, display: Display) -> Path:
    """Write the atlas of an .npz with images, z [N, D] and, optionally, y, gated and open."""
    check_out(out)
    display.busy("writing the page")
    arrays = read_arrays(path, ("z", "gated", "open", "images"), needed=("z", "images"))
    side = sorted(arrays["images"].shape[1:])[1:]  # of [3, H, W] or [H, W, 3]
    size = min([*side, 1024]) if side else 32
    images = array_images.load(Data(name="arrays", root=str(path), holdout=0.0, size=size), "train")
    sentence = f"Features from {path.name}."
    run = AtlasRun(path.stem, arrays["z"], arrays.get("gated"), arrays.get("open"), None, sentence)
    return build_atlas(out, [run], images, path.stem)


def atlas_of_codes(
    folders: list[Path], out: Path, root: str | None, max_images: int, display: Display,
    heat: bool = False, encoder: str | None = None, audit: bool = False,
) -> Path:  # fmt: skip
    """Write the atlas of codes of the same images: the held-out ones, or all if those are few.

    `heat` computes heat maps of photos; an encoder that is code must then be named in `encoder`.
    Findings of the first codes are those of the last `bayesncl audit`, or new ones with `audit`.
    """
    check_out(out, len(folders))
    opened = [CodesFolder(path) for path in folders]
    rows = [folder.rows() for folder in opened]
    first = len(rows[0]) - rows[0].held if rows[0].held >= MIN_IMAGES else 0
    chosen = first + spread_evenly(len(rows[0]) - first, max_images)
    here = [_find_rows(path, own, folders[0], rows[0], chosen) for path, own in zip(folders, rows)]
    images = _load_images(opened[0], rows[0], chosen, root, display)
    runs = [
        describe_codes(folder, index, images, display, heat, encoder)
        for folder, index in zip(opened, here)
    ]
    remarks = ["" if first else TRAINED_ON] * len(runs)
    if audit:
        display.busy("looking for things to check")
        save_result(opened[0], "audit", {"findings": audit_folder(opened[0])})
    pages = {"check": load_findings(opened[0], rows[0], root), "new": load_new(opened[0])}
    found = {key: page for key, page in pages.items() if page is not None}
    return _build(out, runs, folders, remarks, images, display, found)


def load_findings(folder: CodesFolder, rows: Rows, root: str | None) -> JobPage | None:
    """The worst findings of each kind of the last audit, with their images; None without one."""
    found = stored_findings(folder)
    if found is None:
        return None
    index = {name: i for i, name in enumerate(rows.names)}
    by_kind = {kind: [f for f in found if f.kind == kind and f.image in index] for kind in KINDS}
    shown = [f for some in by_kind.values() for f in some[:FINDINGS_PER_KIND]]
    classes = rows.class_names or ()
    clean = dict(zip(classes, clean_names(list(classes))))
    named = dict.fromkeys(name for f in shown for name in f[1:3] if name in index)
    number = {name: i for i, name in enumerate(named)}
    findings = [
        [f.kind, number[f.image], number.get(f.other, -1), clean.get(f.label, f.label),
         clean.get(f.suggested, f.suggested), f.score]
        for f in shown
    ]  # fmt: skip
    chosen = np.array([index[name] for name in named], int)
    images = _load_images(folder, rows, chosen, root, Display(quiet=True)) if shown else None
    totals = {kind: len(some) for kind, some in by_kind.items()}
    return JobPage({"findings": findings, "totals": totals}, images)


def load_new(folder: CodesFolder) -> JobPage | None:
    """What the last comparison found; files of another size than then are not shown."""
    tree = load_result(folder, "compare")
    if tree is None:
        return None
    with as_input_error(f"{folder}/compare.json is damaged", TypeError, ValueError, LookupError):
        base, width = folder.place(tree["source"]), folder.codes("cpu").n_components_
        there: dict[str, Path] = {}
        images = []
        for name, score, size in tree["images"]:
            path = base / (safe_name(name) or "\0")
            if file_stat(path)[0] == size:
                there[name] = path
            images.append((str(name), float(score), len(there) - 1 if name in there else -1))
        changes = [(range(width)[int(k)], float(a), float(b)) for k, a, b in tree["changes"]]
        plain = {"headline": str(tree["headline"]), "images": images, "changes": changes}
    return JobPage(plain, Photos(list(there.values()), names=tuple(there)))


def _find_rows(path: Path, rows: Rows, first: Path, wanted: Rows, chosen: np.ndarray) -> np.ndarray:
    """Rows of the `chosen` images of the first folder in another folder of the same images."""
    if rows.names == wanted.names:
        return chosen
    if sorted(rows.names) != sorted(wanted.names):
        raise InputError(f"{first} and {path} have codes of different images")
    place = {name: i for i, name in enumerate(rows.names)}
    if len(place) < len(rows):
        raise InputError(f"{path} has duplicate image names in another order than {first}")
    return np.array([place[wanted.names[i]] for i in chosen])


def describe_codes(
    folder: CodesFolder, index: Any, images: Images | Photos, display: Display,
    heat: bool = False, encoder: str | None = None,
) -> AtlasRun:  # fmt: skip
    """Codes of the rows `index` of a folder, which are `images`, with the verdict of `fit`."""
    codes, rows, spec = folder.codes(), folder.rows(), folder.about().encoder or {}
    z: Any = codes.transform(np.asarray(folder.embeddings()[index]))
    source = f"embeddings of {len(rows) - rows.held:,} images"
    source += " and their mirror images" if spec.get("mirror") else ""
    source += f" (encoder {Path(str(spec.get('spec'))).name})" if spec else ""
    sentence = f"{codes.n_components_} dimensions fitted by {codes.method} to {source}."
    maps = heat_of_codes(folder, images, z, heat, encoder, display)
    if heat and isinstance(maps, str):
        display.note(f"no heat maps: {maps}")
    groups = codes.groups_ if codes.groups_.any() else None
    if codes.n_active is None and not codes.head_.zeros:  # else all dimensions fire on all images
        z = keep_in_groups(z, groups)
        each = "" if groups is None else " in each group"
        sentence += f" The page shows the {KEPT} strongest dimensions of each image{each}."
    name, verdict = folder.folder.resolve().name, verdict_lines(folder.verdict())
    names, fingerprint = folder.names(codes), folder.fingerprint()
    return AtlasRun(
        name, z, None, None, None, sentence, fingerprint, maps, verdict, read_saved(folder),
        names, seen_share(spec), groups,
    )  # fmt: skip


def keep_in_groups(z: np.ndarray, groups: np.ndarray | None) -> Any:
    """The strongest dimensions of each image, of each group where there are groups."""
    if groups is None:
        return keep(z, KEPT)
    kept = sum(keep(np.where(groups == g, z, 0), KEPT).toarray() for g in np.unique(groups))
    return np.where(kept > 0, z, 0)


def seen_share(spec: dict[str, Any]) -> float | None:
    """Side of the square that an encoder sees of a photo, by its shorter side; None if unknown."""
    try:
        view = json.loads(spec["signature"]["view"])
        return min(1.0, view["crop"] / view["resize"])
    except (KeyError, TypeError, ValueError):  # an array, or a transform of the encoder's own
        return None


def heat_of_codes(
    folder: CodesFolder, images: Images | Photos, z: np.ndarray, wanted: bool,
    encoder: str | None, display: Display,
) -> Heatmaps | str:  # fmt: skip
    """Heat maps of the strongest dimensions of each image, or the reason why there are none."""
    if folder.about().encoder is None:
        return "the codes were fitted on an array, without an encoder"
    if isinstance(images, Photos) and not wanted:
        return NO_HEAT
    try:
        model = folder.model("cpu", encoder)
        sight = heatmaps_of_codes(model)
        if isinstance(images, Images):
            return strongest_heatmaps(sight, images.pixels, z, progress=display.count)
        view = model.encoder.view
        pixels, share = PhotoPixels(images, model.encoder), view.crop / max(view.resize, view.crop)
        return strongest_heatmaps(sight, pixels, z, share, display.count, HEAT_CHECK_PHOTOS)
    except InputError as error:
        return str(error)
    except Exception as error:  # a user's network may raise anything when hooked
        return f"hooking its encoder failed ({first_line(error)})"


class PhotoPixels:
    """Photos as the encoder takes them, uint8 [N, 3, S, S], decoded when sliced."""

    def __init__(self, photos: Photos, encoder: PhotoEncoder) -> None:
        self.photos, self.encoder = photos, encoder

    def __len__(self) -> int:
        return len(self.photos)

    def __getitem__(self, rows: Any) -> np.ndarray:
        paths = [self.photos.paths[i] for i in np.arange(len(self))[rows]]
        read, side = self.encoder.read, self.encoder.view.crop
        return np.stack(list(map_in_threads(lambda path: read_photo(path, read, side), paths)))


def _load_images(
    folder: CodesFolder, rows: Rows, chosen: np.ndarray, root: str | None, display: Display
) -> Images | Photos:
    """The images of some rows: photos by path, or those of a run's dataset."""
    about = folder.about()
    labels = None if rows.labels is None else rows.labels[chosen]
    names = tuple(rows.names[i] for i in chosen)
    if about.kind != "run":
        paths = folder.photo_paths(rows, chosen, root)
        missing = paths.count(None)
        if missing or root is None:
            base = printable(str(root or folder.place(about.images or "")), 300)
            note = f"; {missing:,} are missing or changed and shown in gray" if missing else ""
            display.note(f"images from {base}{note}")
        known = [path or Path("\0") for path in paths]  # "\0" is never a file
        return Photos(known, labels, class_names=rows.class_names, names=names)
    recipe = with_root(recipe_from_json(json.dumps(about.recipe), str(folder.about_file)), root)
    keys = [name.split("/") for name in names]  # such as test/17
    splits = {s: load(recipe.data, s, display.count) for s in dict(keys)}
    if any(int(i) >= len(splits[s]) for s, i in keys):
        raise InputError(f"the dataset of {folder} has changed: it has fewer images")
    pixels = np.stack([splits[s].pixels[int(i)] for s, i in keys])
    one, backgrounds = splits[keys[0][0]], None
    if one.backgrounds is not None:
        both: Any = {s: images.backgrounds for s, images in splits.items()}
        backgrounds = np.array([both[s][int(i)] for s, i in keys])
    return Images(pixels, labels, backgrounds, rows.class_names, one.background_names, names)

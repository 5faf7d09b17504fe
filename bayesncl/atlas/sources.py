"""The atlas of runs, of codes folders, or of plain arrays."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse

from bayesncl.atlas.build import build_atlas, check_out
from bayesncl.atlas.page_data import AtlasRun, JobPage
from bayesncl.atlas.pictures import Photos, read_photos
from bayesncl.codes.encoders import PhotoEncoder, Request
from bayesncl.codes.folder import CodesFolder, Rows, file_stat
from bayesncl.codes.heat import Heatmaps, heatmaps_of_codes, heatmaps_of_run, strongest_heatmaps
from bayesncl.codes.names import clean_names, fingerprint
from bayesncl.codes.open import PhotoCodes
from bayesncl.data import DATASETS, load
from bayesncl.data import arrays as array_images
from bayesncl.data.folder import safe_name
from bayesncl.data.images import Images, spread_evenly
from bayesncl.device import find_device
from bayesncl.errors import InputError, first_line, printable
from bayesncl.evaluate import images_of_run
from bayesncl.inputs import read_arrays
from bayesncl.io import is_codes, read_object
from bayesncl.jobs.audit import KINDS, Finding, audit_folder
from bayesncl.measure.topk import KEPT, keep
from bayesncl.method.encoder import Encoder, extract
from bayesncl.progress import Display
from bayesncl.recipes import Data, Recipe, with_root
from bayesncl.training.checkpoint import open_model
from bayesncl.training.run_folder import RunFolder

MIN_IMAGES = 500  # of a held-out split; fewer show too little of a dimension
HEAT_CHECK_PHOTOS = 128  # each goes through the encoder seven times
FINDINGS_PER_KIND = 200  # on the page, the worst ones
TRAINED_ON = "The images shown include training images."
OTHER_IMAGES = "It was not trained on the images shown."
NO_HEAT = "run bayesncl atlas with --heat, which encodes all photos again"

Shown = tuple[list[AtlasRun], Images | Photos, dict[str, JobPage]]  # runs, images, pages of jobs


class AtlasOptions(NamedTuple):
    """What an atlas shows."""

    root: str | None = None  # where the images are now; default where they were
    max_images: int = 10_000  # of more, as many are shown, spread evenly
    device: str | torch.device = "cpu"  # where runs encode their images
    heat: bool = False  # compute heat maps of photos
    encoder: str | None = None  # for `heat`: an encoder that is code must be named
    audit: bool = False  # audit the first codes; else show the findings of the last audit


def make_atlas(sources: Sequence[Path], out: Path, options: AtlasOptions, display: Display) -> Path:
    """Write the atlas of runs, of codes folders, or of one .npz; return the path of the page.

    Several sources must be of the same images. The images are held-out ones where there are
    enough of them.
    """
    check_out(out, len(sources))
    codes = [is_codes(path) for path in sources]
    if any(codes) and not all(codes):
        other = sources[codes.index(False)]
        raise InputError(f"an atlas shows runs or codes, not both: {other} is not codes")
    arrays = sources[0].suffix == ".npz"
    show = show_codes if codes[0] else show_arrays if arrays else show_runs
    runs, images, pages = show(sources, options, display)
    if len({run.name for run in runs}) < len(runs):
        ends = ("/".join(path.resolve().parts[-2:]) for path in sources)
        runs = [dataclasses.replace(run, name=name) for run, name in zip(runs, ends)]
    display.busy("writing the page")
    return build_atlas(out, runs, images, " and ".join(run.name for run in runs), pages)


def show_arrays(paths: Sequence[Path], options: AtlasOptions, display: Display) -> Shown:
    """An .npz with images, z [N, D] and, optionally, y, gated and open."""
    path = paths[0]
    arrays = read_arrays(path, ("z", "gated", "open", "images"), needed=("z", "images"))
    side = sorted(arrays["images"].shape[1:])[1:]  # of [3, H, W] or [H, W, 3]
    data = Data(name="arrays", root=str(path), holdout=0.0, size=min([*side, 1024], default=32))
    gates, sentence = (arrays.get("gated"), arrays.get("open")), f"Features from {path.name}."
    run = AtlasRun(path.stem, arrays["z"], *gates, sentence=sentence)
    return [run], array_images.load(data, "train"), {}


def show_runs(paths: Sequence[Path], options: AtlasOptions, display: Display) -> Shown:
    """Trained runs on the test images of their dataset."""
    device = find_device(options.device)
    opened = [open_model(path, device) for path in paths]
    recipe = opened[0][0].recipe
    for note in (note for _, note in opened if note):
        display.note(note)
    scaling = {name: getattr(Data(), name) for name in ("mean", "std", "paper_mean", "paper_std")}
    trained_on = [with_root(model.recipe, options.root).data for model, _ in opened]
    if len({dataclasses.replace(data, **scaling) for data in trained_on}) > 1:
        raise InputError(f"{' and '.join(map(str, paths))} were trained on different images")
    images, remark = choose_images(recipe, options.root, display)
    if len(images) > options.max_images:
        rows = spread_evenly(len(images), options.max_images)
        names = images.names and tuple(images.names[i] for i in rows)
        images = dataclasses.replace(images.take(rows), names=names)
    runs = [
        describe_run(model, path, images, display, f"{note} {remark}")
        for path, (model, note) in zip(paths, opened)
    ]
    return runs, images, {}


def choose_images(recipe: Recipe, root: str | None, display: Display) -> tuple[Images, str]:
    """The test images of a run, and a remark if they are others.

    Another folder than that of training is shown whole, as is a small folder of one's own images.
    """
    data, own = with_root(recipe, root).data, DATASETS[recipe.data.name].holdout
    whole = dataclasses.replace(data, holdout=0.0)
    if own and recipe.data.root and Path(data.root).resolve() != Path(recipe.data.root).resolve():
        return load(whole, "train", display.count), OTHER_IMAGES
    try:
        images = load(data, "test", display.count)
        if len(images) >= MIN_IMAGES or not own:
            return images, ""
        reason = f"only {len(images)} images are held out"
    except InputError as error:
        reason = str(error)
    display.note(f"{reason}: showing the training images too")
    return load(whole, "train", display.count), TRAINED_ON


def describe_run(
    model: Encoder, run: Path, images: Images, display: Display, remark: str = ""
) -> AtlasRun:
    """Encode the images; add the figures and the verdict of the evaluation, if there is one."""
    features = extract(model, images, "sound", progress=display.count)
    recipe = model.recipe
    sentence = (
        f"{recipe.name}: {recipe.model.dim} dimensions learned from {recipe.data.name} without "
        f"labels, {recipe.run.epochs} epochs, seed {recipe.run.seed}. {remark}"
    )
    display.busy("checking heat maps")
    results = read_object(RunFolder(run).evaluation_file)
    return AtlasRun(
        recipe.name, features.z, features.gated, features.open,
        summary={name: results.get(name) for name in ("paper", "sound")},
        sentence=" ".join(sentence.split()),
        fingerprint=fingerprint(model.state_dict()),
        heat=strongest_heatmaps(heatmaps_of_run(model), images.pixels, features.gated),
        verdict=verdict_lines(results.get("verdict")),
    )  # fmt: skip


def verdict_lines(verdict: dict[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """The lines of a verdict as read from JSON, and how each was measured."""
    lines = [] if verdict is None else verdict["lines"]
    return tuple((line["text"], line["measured_by"]) for line in lines)


def show_codes(paths: Sequence[Path], options: AtlasOptions, display: Display) -> Shown:
    """Codes of the same images, with the results of jobs on the first of them."""
    folders = [CodesFolder(path) for path in paths]
    first, rows = folders[0], folders[0].rows()
    start = rows.fitted if rows.held >= MIN_IMAGES else 0
    chosen = start + spread_evenly(len(rows) - start, options.max_images)
    index = [chosen]
    for folder in folders[1:]:  # rows of the same images, by name
        there = folder.rows().index
        if there.keys() != rows.index.keys():
            raise InputError(f"{folder} has codes of different images")
        index.append(np.array([there[rows.names[i]] for i in chosen]))
    images = _load_images(first, rows, chosen, options.root, display)
    remark = "" if start else TRAINED_ON
    runs = [
        describe_codes(folder, here, images, display, options, remark)
        for folder, here in zip(folders, index)
    ]
    if options.audit:
        display.busy("looking for things to check")
        audit_folder(first)
    pages = {"check": load_findings(first, rows, options.root), "new": load_new(first)}
    return runs, images, {key: page for key, page in pages.items() if page is not None}


def load_findings(folder: CodesFolder, rows: Rows, root: str | None) -> JobPage | None:
    """The worst findings of each kind of the last audit, with their images; None without one."""
    tree, index = folder.load_result("audit"), rows.index
    if tree is None:
        return None
    found = [Finding(*finding) for finding in tree["findings"]]
    by_kind = {kind: [f for f in found if f.kind == kind and f.image in index] for kind in KINDS}
    shown = [f for some in by_kind.values() for f in some[:FINDINGS_PER_KIND]]
    clean = clean_classes(rows)
    findings = [(*f[:3], *(clean.get(word, word) for word in f[3:5]), f.score) for f in shown]
    chosen = np.array([*dict.fromkeys(index[x] for f in shown for x in f[1:3] if x in index)], int)
    images = _load_images(folder, rows, chosen, root, Display(quiet=True)) if shown else None
    totals = {kind: len(some) for kind, some in by_kind.items()}
    return {"findings": findings, "totals": totals}, images


def load_explanation(folder: CodesFolder) -> dict[str, Any] | None:
    """What the last explanation found, its classes named as elsewhere; None without one."""
    tree, clean = folder.load_result("explain"), clean_classes(folder.rows())
    for weight in () if tree is None else tree["weights"]:
        weight["label"] = clean.get(weight["label"], weight["label"])
    for score in () if tree is None else tree["scores"].values():
        name, comma, group = score.get("where", "").partition(", ")
        score["where"] = clean.get(name, name) + comma + group
    return tree


def clean_classes(rows: Rows) -> dict[str, str]:
    """Class names as the page shows them."""
    classes = list(rows.class_names or ())
    return dict(zip(classes, clean_names(classes)))


def load_new(folder: CodesFolder) -> JobPage | None:
    """What the last comparison found; files of another size than then are not shown."""
    tree = folder.load_result("compare")
    if tree is None:
        return None
    base = folder.place(tree.pop("source"))
    paths = {name: base / (safe_name(name) or "\0") for name, _, _ in tree["images"]}
    there = [name for name, _, size in tree["images"] if file_stat(paths[name])[0] == size]
    images = [(name, score) for name, score, _ in tree["images"]]
    return tree | {"images": images}, Photos([paths[name] for name in there], names=tuple(there))


def describe_codes(
    folder: CodesFolder, index: Any, images: Images | Photos, display: Display,
    options: AtlasOptions, remark: str = "",
) -> AtlasRun:  # fmt: skip
    """Codes of the rows `index` of a folder, which are `images`, with the verdict of `fit`."""
    codes, rows, encoder = folder.codes(), folder.rows(), folder.about().encoder
    z: Any = codes.transform(np.asarray(folder.embeddings()[index]))
    source = f"embeddings of {rows.fitted:,} images"
    if encoder is not None:
        source += " and their mirror images" if encoder.mirror else ""
        source += f" (encoder {Path(encoder.spec).name})"
    sentence = f"{codes.n_components_} dimensions fitted by {codes.method} to {source}."
    maps = heat_of_codes(folder, images, z, options, display)
    if options.heat and isinstance(maps, str):
        display.note(f"no heat maps: {maps}")
    groups = codes.groups_ if codes.groups_.any() else None
    if codes.n_active is None and not codes.head_.zeros:  # else all dimensions fire on all images
        z = keep_in_groups(z, codes.groups_)
        each = "" if groups is None else " in each group"
        sentence += f" The page shows the {KEPT} strongest dimensions of each image{each}."
    return AtlasRun(
        folder.folder.resolve().name, z, sentence=f"{sentence} {remark}".strip(),
        fingerprint=folder.fingerprint(), heat=maps, verdict=verdict_lines(folder.verdict()),
        explain=load_explanation(folder), names=folder.names(codes), seen=seen_share(encoder),
        groups=groups,
    )  # fmt: skip


def keep_in_groups(z: np.ndarray, groups: np.ndarray) -> sparse.csr_array:
    """The strongest dimensions of each image in each group."""
    kept = sum(keep(np.where(groups == g, z, 0), KEPT) for g in np.unique(groups))
    return sparse.csr_array((kept != 0).multiply(z))


def seen_share(encoder: Request | None) -> float | None:
    """Side of the square that an encoder sees of a photo, by its shorter side; None if unknown."""
    if encoder is None or encoder.signature is None:
        return None
    try:
        view = json.loads(encoder.signature["view"])
        return min(1.0, view["crop"] / view["resize"])
    except (KeyError, TypeError, ValueError):  # a transform of the encoder's own
        return None


def heat_of_codes(
    folder: CodesFolder, images: Images | Photos, z: np.ndarray, options: AtlasOptions,
    display: Display,
) -> Heatmaps | str:  # fmt: skip
    """Heat maps of the strongest dimensions of each image, or the reason why there are none."""
    if folder.about().encoder is None:
        return "the codes were fitted on an array, without an encoder"
    if isinstance(images, Photos) and not options.heat:
        return NO_HEAT
    try:
        model = PhotoCodes(folder, "cpu", options.encoder)
        heatmap_model = heatmaps_of_codes(model)
        if isinstance(images, Images):
            return strongest_heatmaps(heatmap_model, images.pixels, z, progress=display.count)
        view = model.encoder.view
        pixels, share = PhotoPixels(images, model.encoder), view.crop / max(view.resize, view.crop)
        return strongest_heatmaps(heatmap_model, pixels, z, share, display.count, HEAT_CHECK_PHOTOS)
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
        index, encoder = np.arange(len(self))[rows], self.encoder
        side = encoder.view.crop
        read = read_photos(self.photos, index, encoder.prepare, encoder.min_side, side)
        return np.stack(list(read))


def _load_images(
    folder: CodesFolder, rows: Rows, chosen: np.ndarray, root: str | None, display: Display
) -> Images | Photos:
    """The images of some rows: photos by path, or those of a run's dataset."""
    about = folder.about()
    if about.kind == "run":
        return images_of_run(folder, rows, chosen, root, display.count)
    paths = folder.photo_paths(rows, chosen, root)
    base, missing = os.path.abspath(root or folder.place(about.images or "")), paths.count(None)
    if missing or root is None:
        note = f"; {missing:,} are missing or changed and shown in gray" if missing else ""
        display.note(f"images from {printable(base, 300)}{note}")
    files = [path or Path("\0") for path in paths]  # "\0" is never a file
    labels = None if rows.labels is None else rows.labels[chosen]
    names = tuple(rows.names[i] for i in chosen)
    return Photos(files, labels, class_names=rows.class_names, names=names, root=base)

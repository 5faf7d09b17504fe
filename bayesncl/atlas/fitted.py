"""From folders of codes to the atlas: the images by path, or those of a run's data set."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from ..codes_folder import About, CodesFolder, Rows
from ..data import load
from ..data.images import Images, printable
from ..errors import InputError
from ..progress import Display
from ..recipes import recipe_from_json, with_root
from .build import MOST_RUNS, build_atlas
from .contents import AtlasRun
from .photos import Photos
from .sources import FEW, TRAINED_ON


def atlas_of_codes(folders: list[Path], out: Path, root: str | None, most: int, display: Display) -> Path:
    """The atlas of codes of the same images: those held out, or all where these are few."""
    if len(folders) > MOST_RUNS:
        raise InputError(f"an atlas shows one to {MOST_RUNS} codes, got {len(folders)}")
    known = [CodesFolder(path) for path in folders]
    abouts = [folder.about() for folder in known]
    rows = [folder.rows(about) for folder, about in zip(known, abouts)]
    for path, other in zip(folders, rows):
        if sorted(other.names) != sorted(rows[0].names):
            raise InputError(f"{folders[0]} and {path} are of different images: an atlas compares codes of one set")
    first = len(rows[0]) - rows[0].held if rows[0].held >= FEW else 0
    chosen = np.arange(first, len(rows[0]))
    if len(chosen) > most:
        chosen = chosen[np.linspace(0, len(chosen) - 1, most).astype(np.int64)]
    images = _images(known[0], abouts[0], rows[0], chosen, root, display)
    names = [rows[0].names[i] for i in chosen]
    remark = "" if first else TRAINED_ON
    titles = [path.resolve().name for path in folders]
    if len(set(titles)) < len(titles):
        titles = ["/".join(path.resolve().parts[-2:]) for path in folders]
    runs = []
    for title, folder, about, each in zip(titles, known, abouts, rows):
        place = {name: i for i, name in enumerate(each.names)}
        codes = folder.codes()
        z = codes.transform(np.asarray(folder.embeddings(about)[[place[name] for name in names]]))
        encoder = "" if about.encoder is None else f" through {Path(str(about.encoder.get('spec'))).name}"
        sentence = f"{codes.dim_} dimensions read from {len(each) - each.held:,} images{encoder} by {codes.method}."
        runs.append(AtlasRun(title, z, sentence=f"{sentence} {remark}".strip(), fingerprint=folder.fingerprint()))
    return build_atlas(out, runs, images, title=" and ".join(titles))


def _images(
    folder: CodesFolder, about: About, rows: Rows, chosen: np.ndarray, root: str | None, display: Display
) -> Images | Photos:
    labels = None if rows.labels is None else rows.labels[chosen]
    names = tuple(rows.names[i] for i in chosen)
    if about.kind != "run":
        paths = folder.photo_paths(rows, chosen, root)
        if (gone := paths.count(None)) or root is None:
            base = printable(str(root or folder.place(about.images or "")), 300)
            display.note(f"images from {base}" + (f"; {gone:,} are gone or changed, and grey" if gone else ""))
        known = [path or Path("\0") for path in paths]  # which is no file
        return Photos(known, labels, class_names=rows.class_names, names=names)
    recipe = with_root(recipe_from_json(json.dumps(about.recipe), str(folder.about_file)), root)
    places = [re.fullmatch(r"(train|test)/([0-9]{1,9})", name) for name in names]
    pixels: np.ndarray | None = None
    for split in ("train", "test"):
        mine = [(i, int(place[2])) for i, place in enumerate(places) if place is not None and place[1] == split]
        if mine:
            images = load(recipe.data, split, display.count)
            here, there = map(list, zip(*mine))
            if max(there) >= len(images):
                raise InputError(f"{folder} is of other images: its data set has changed")
            pixels = np.empty((len(names), *images.pixels.shape[1:]), np.uint8) if pixels is None else pixels
            pixels[here] = images.pixels[there]
    if pixels is None or None in places:
        raise folder.damaged(folder.rows_file)
    return Images(pixels, labels, class_names=rows.class_names, names=names)

"""From folders of codes to the atlas: the images by path, or those of a run's data set."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ..codes_folder import About, CodesFolder, Rows
from ..data import load
from ..data.images import Images, first_line, printable
from ..encoders import PhotoEncoder
from ..errors import InputError
from ..heat import Heat, see_codes, strongest_heat
from ..measure.kept import keep
from ..measure.readable import KEPT
from ..progress import Display
from ..recipes import recipe_from_json, with_root
from .build import MOST_RUNS, build_atlas, check_out
from .contents import AtlasRun
from .photos import Photos, read_with
from .sources import FEW, TRAINED_ON, read_verdict

THREADS = 8  # that decode photos
CHECKED_PHOTOS = 128  # for heat maps: each goes through the encoder seven times
ASK = "bayesncl atlas --heat finds it, which takes every photo through the encoder again"


def atlas_of_codes(
    folders: list[Path], out: Path, root: str | None, most: int, display: Display, heat: bool = False,
    encoder: str | None = None,
) -> Path:  # fmt: skip
    """The atlas of codes of the same images: those held out, or all where these are few.

    Heat maps of photos are made on request; an encoder that is code must be named for them.
    """
    if len(folders) > MOST_RUNS:
        raise InputError(f"an atlas shows one to {MOST_RUNS} codes, got {len(folders)}")
    check_out(out)
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
        here: Any = chosen
        if each.names != rows[0].names:
            place = {name: i for i, name in enumerate(each.names)}
            if len(place) < len(each):
                raise InputError(f"{folder} has images of one name, in another order than {folders[0]}")
            here = [place[name] for name in names]
        codes = folder.codes()
        z = codes.transform(np.asarray(folder.embeddings(about)[here]))
        through = "" if about.encoder is None else f" through {Path(str(about.encoder.get('spec'))).name}"
        sentence = f"{codes.dim_} dimensions read from {len(each) - each.held:,} images{through} by {codes.method}."
        maps = heat_of_codes(folder, images, z, heat, encoder, display)
        shown: Any = z
        if codes.keep is None and not codes.head_.zeros:  # or every dimension would fire on every image
            shown = keep(z, KEPT)
            sentence += f" Each image is shown with its {KEPT} strongest."
        runs.append(describe_codes(folder, title, shown, f"{sentence} {remark}".strip(), maps))
    return build_atlas(out, runs, images, title=" and ".join(titles))


def describe_codes(folder: CodesFolder, title: str, z: Any, sentence: str, heat: Heat | str) -> AtlasRun:
    """Codes of the images of an atlas, with the verdict that `fit` wrote."""
    verdict = read_verdict(folder.verdict())
    return AtlasRun(title, z, sentence=sentence, fingerprint=folder.fingerprint(), heat=heat, verdict=verdict)


def heat_of_codes(
    folder: CodesFolder, images: Images | Photos, z: np.ndarray, asked: bool, encoder: str | None, display: Display
) -> Heat | str:
    """Where each image's strongest dimensions fire, or in words why that is not shown."""
    about = folder.about()
    if about.encoder is None:
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
    places = [re.fullmatch(r"(train|test)/([0-9]{1,9})", name) for name in names]
    pixels: np.ndarray | None = None
    grounds, ground_names = np.full(len(names), -1), None
    for split in ("train", "test"):
        mine = [(i, int(place[2])) for i, place in enumerate(places) if place is not None and place[1] == split]
        if mine:
            images = load(recipe.data, split, display.count)
            here, there = map(list, zip(*mine))
            if max(there) >= len(images):
                raise InputError(f"{folder} is of other images: its data set has changed")
            pixels = np.empty((len(names), *images.pixels.shape[1:]), np.uint8) if pixels is None else pixels
            pixels[here] = images.pixels[there]
            if images.backgrounds is not None:
                grounds[here], ground_names = images.backgrounds[there], images.background_names
    if pixels is None or None in places:
        raise folder.damaged(folder.rows_file)
    both = None if (grounds < 0).all() else grounds
    return Images(pixels, labels, both, rows.class_names, ground_names, names)

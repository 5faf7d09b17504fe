"""Textures: crops of photographs that come with scikit-image, cut at run time, nothing downloaded; label = photograph.

Only files inside the installed package are used, of these only photographs, and only those whose licence the package
states (PHOTOGRAPHS). Files without such a statement (moon, page, motorcycle, faces of LFW) are left out, as are charts,
drawings and the clock (a bare wall at its right). A photograph is scaled to a short side of SIDE pixels; squares of 40
to 72 pixels are cut from it and shrunk. Test crops lie in the right 30 % of a photograph, training crops in the rest:
no pixel is in both.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from .. import recipes
from ..arrays import check_room
from ..errors import InputError
from . import Dataset
from .images import Images, Progress, counted

SIDE = 256  # short side of a photograph before it is cut
SMALLEST, LARGEST = 40.0, 72.0  # side of a crop, in pixels of the scaled photograph
TEST_SHARE = 0.3  # of a photograph's width, at its right
# name shown: (file of skimage/data, whose it is, what scikit-image says of its licence)
PHOTOGRAPHS = {
    "astronaut": ("astronaut.png", "NASA", "public domain"),
    "brick": ("brick.png", "CC0Textures", "CC0"),
    "camera": ("camera.png", "Lav Varshney", "CC0"),
    "cat": ("chelsea.png", "Stefan van der Walt", "CC0"),
    "coffee": ("coffee.png", "Rachel Michetti", "CC0"),
    "coins": ("coins.png", "Brooklyn Museum", "no known copyright restrictions"),
    "grass": ("grass.png", "linolafett, DeviantArt", "CC0"),
    "gravel": ("gravel.png", "CC0Textures", "CC0"),
    "retina": ("retina.jpg", "Mikael Häggström", "CC0"),
    "rocket": ("rocket.jpg", "SpaceX", "public domain"),
    "stars": ("hubble_deep_field.jpg", "NASA", "public domain"),
    "tissue": ("ihc.png", "Center for Microscopy and Molecular Imaging", "no known copyright restrictions"),
}
NAMES = tuple(PHOTOGRAPHS)


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Cut the crops of one split, data.size pixels each; the same crops at every size."""
    count = data.train_images if split == "train" else data.test_images
    rng = np.random.default_rng([data.seed, *f"{split} textures".encode()])
    labels = rng.permutation(np.arange(count) % len(NAMES))
    sides = rng.uniform(SMALLEST, LARGEST, count)
    places = rng.random((count, 2))  # from top to bottom, from left to right
    photos = _photos()
    check_room(count * 3 * data.size**2, f"{count:,} crops of {data.size} x {data.size}")
    pixels = np.empty((count, 3, data.size, data.size), np.uint8)
    plan = zip(pixels, labels, sides, places)
    for row, label, side, (down, across) in counted(plan, count, "cutting crops", progress):
        photo = photos[label]
        border = (1 - TEST_SHARE) * photo.width
        left, right = (0.0, border) if split == "train" else (border, float(photo.width))
        x, y = left + across * (right - left - side), down * (photo.height - side)
        crop = photo.resize((data.size, data.size), Image.Resampling.BICUBIC, box=(x, y, x + side, y + side))
        row[:] = np.asarray(crop).transpose(2, 0, 1)
    return Images(pixels, labels.astype(np.int64), class_names=NAMES)


@lru_cache(maxsize=1)
def _photos() -> list[Image.Image]:
    """The photographs, RGB, short side SIDE."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        raise InputError("textures are cut from scikit-image's photographs: pip install 'bayesncl[demo]'")
    photos = []
    for file, _, _ in PHOTOGRAPHS.values():
        with Image.open(Path(package.origin).parent / "data" / file) as photo:
            scale = SIDE / min(photo.size)
            size = (round(photo.width * scale), round(photo.height * scale))
            photos.append(photo.convert("RGB").resize(size, Image.Resampling.LANCZOS))
    return photos


# Sized for a minute on two cores.
TEXTURES = Dataset(
    name="textures",
    title="Textures",
    settings=recipes.replace_fields(
        recipes.Recipe(),
        **recipes.LIGHT,
        data={"train_images": 4000, "test_images": 2000},
        run={"epochs": 10, "batch": 64, "checkpoint_every": 1, "log_every": 5},
    ),
    load=load,
    classes=len(NAMES),
    images=4000,
    seconds=3.0,
)

"""Textures: crops of the photographs that scikit-image installs; the label is the photograph.

Only photographs whose license scikit-image states are used (PHOTOGRAPHS), which leaves out moon,
page, motorcycle and the faces. A photograph is scaled to a short side of SIDE pixels; squares of 40
to 72 pixels are cut from it and shrunk. Test crops lie in the right 30 % of a photograph, training
crops in the rest: no pixel is in both.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from bayesncl import recipes
from bayesncl.data.images import Images, Progress, track
from bayesncl.errors import import_extra

SIDE = 256  # short side of a photograph before it is cut
MIN_CROP, MAX_CROP = 40.0, 72.0  # side of a crop, in pixels of the scaled photograph
TEST_SHARE = 0.3  # of a photograph's width, at its right
UNRESTRICTED = "no known copyright restrictions"
# name: (file of skimage/data, author, license according to scikit-image)
PHOTOGRAPHS = {
    "astronaut": ("astronaut.png", "NASA", "public domain"),
    "brick": ("brick.png", "CC0Textures", "CC0"),
    "camera": ("camera.png", "Lav Varshney", "CC0"),
    "cat": ("chelsea.png", "Stefan van der Walt", "CC0"),
    "coffee": ("coffee.png", "Rachel Michetti", "CC0"),
    "coins": ("coins.png", "Brooklyn Museum", UNRESTRICTED),
    "grass": ("grass.png", "linolafett, DeviantArt", "CC0"),
    "gravel": ("gravel.png", "CC0Textures", "CC0"),
    "retina": ("retina.jpg", "Mikael Häggström", "CC0"),
    "rocket": ("rocket.jpg", "SpaceX", "public domain"),
    "stars": ("hubble_deep_field.jpg", "NASA", "public domain"),
    "tissue": ("ihc.png", "Center for Microscopy and Molecular Imaging", UNRESTRICTED),
}
NAMES = tuple(PHOTOGRAPHS)


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Cut the crops of one split, data.size pixels each; the same crops at every size."""
    count = data.train_images if split == "train" else data.test_images
    rng = np.random.default_rng([data.seed, *f"{split} textures".encode()])
    labels = rng.permutation(np.arange(count) % len(NAMES))
    sides = rng.uniform(MIN_CROP, MAX_CROP, count)
    positions = rng.random((count, 2))  # from top to bottom, from left to right
    photos = _photos()
    pixels = np.empty((count, 3, data.size, data.size), np.uint8)
    plan = zip(pixels, labels, sides, positions)
    for row, label, side, (down, across) in track(plan, count, "cutting crops", progress):
        photo = photos[label]
        border = (1 - TEST_SHARE) * photo.width
        left, right = (0.0, border) if split == "train" else (border, float(photo.width))
        x, y = left + across * (right - left - side), down * (photo.height - side)
        box = (x, y, x + side, y + side)
        crop = photo.resize((data.size, data.size), Image.Resampling.BICUBIC, box=box)
        row[:] = np.asarray(crop).transpose(2, 0, 1)
    return Images(pixels, labels.astype(np.int64), class_names=NAMES)


@lru_cache(maxsize=1)
def _photos() -> list[Image.Image]:
    """The photographs, RGB, short side SIDE."""
    missing = "textures need the photographs of scikit-image: pip install scikit-image"
    folder, photos = Path(import_extra("skimage", missing).__file__).parent / "data", []
    for file, _, _ in PHOTOGRAPHS.values():
        with Image.open(folder / file) as photo:
            scale = SIDE / min(photo.size)
            size = (round(photo.width * scale), round(photo.height * scale))
            photos.append(photo.convert("RGB").resize(size, Image.Resampling.LANCZOS))
    return photos

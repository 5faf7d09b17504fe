"""The dataset `arrays`: images from a NumPy file, .npz with `images` and maybe labels, or .npy."""

import dataclasses

import numpy as np

from bayesncl import recipes
from bayesncl.data.decode import channels_first, resize_images
from bayesncl.data.folder import given_path
from bayesncl.data.images import Images, Progress, in_split
from bayesncl.errors import InputError
from bayesncl.inputs import factorize, read_arrays

NAMES = {"labels": "class_names", "backgrounds": "background_names"}
ARRAY_NAMES = ("images", "y", *NAMES, *NAMES.values(), *(f"test_{a}" for a in ("images", *NAMES)))


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split of an array file.

    An .npz holds `images` (uint8, or float in [0, 1]; [N, H, W, 3] or [N, 3, H, W]) and optionally
    `labels` (or `y`; integers or words), `backgrounds`, `class_names`, `background_names`,
    `test_images`, `test_labels`, `test_backgrounds`. A .npy is `images` alone, memory-mapped.
    Without `test_images` a share of the images is held out.
    """
    path = given_path(data.root)
    arrays = read_arrays(path, ARRAY_NAMES, needed=("images",))
    if "labels" not in arrays and "y" in arrays:
        arrays["labels"] = arrays["y"]
    has_test = "test_images" in arrays
    prefix = "test_" if has_test and split == "test" else ""
    try:
        class_names, background_names = (_number_labels(arrays, what) for what in NAMES)
        images = channels_first(arrays[prefix + "images"])
        if images.dtype.kind == "f":
            images = np.rint(images * np.float32(255)).astype(np.uint8)
        labels, backgrounds = (arrays.get(prefix + what) for what in NAMES)
        found = Images(images, labels, backgrounds, class_names, background_names)
        if not has_test and (data.holdout > 0 or split == "test"):
            found = found.take(in_split([str(i) for i in range(len(images))], data, split))
        if not len(found):
            raise ValueError(f"no images for the {split} split")
    except ValueError as error:  # InputErrors too get the path
        raise InputError(f"{path}: {error}") from None
    return dataclasses.replace(found, pixels=resize_images(found.pixels, data.size))


def _number_labels(arrays: dict[str, np.ndarray], what: str) -> tuple[str, ...] | None:
    """Make the labels of both splits indices into their names; return the names."""
    keys = [key for key in (what, f"test_{what}") if key in arrays]
    if not keys:
        return None
    index, names = np.concatenate([arrays[key] for key in keys]), arrays.get(NAMES[what])
    if index.ndim != 1 or index.dtype.kind not in "iuU":
        raise ValueError(f"{what} are {index.dtype}, expected [N] integers or words")
    if names is None:
        index, names = factorize(index)
    elif index.dtype.kind == "U" or not np.isin(index, range(len(names))).all():
        raise ValueError(f"{what} are not numbers from 0 to {len(names) - 1}, of {NAMES[what]}")
    parts = np.split(index.astype(np.int64), np.cumsum([len(arrays[key]) for key in keys])[:-1])
    arrays |= dict(zip(keys, parts))
    return tuple(map(str, np.atleast_1d(names)))

"""The dataset `arrays`: images from a NumPy file, .npz with `images` and maybe labels, or .npy."""

from __future__ import annotations

import numpy as np

from bayesncl import recipes
from bayesncl.data import Dataset
from bayesncl.data.decode import resize_images
from bayesncl.data.folder import given_path
from bayesncl.data.images import Images, Progress, in_split
from bayesncl.errors import as_input_error, printable_path
from bayesncl.inputs import factorize, read_arrays

NAMES = {"labels": "class_names", "backgrounds": "background_names"}
ARRAY_NAMES = ("images", "y", *NAMES, *NAMES.values(), *(f"test_{a}" for a in ("images", *NAMES)))
IMAGES_PER_BLOCK = 1024


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split of an array file.

    An .npz holds `images` (uint8, or float in [0, 1]; [N, H, W, 3] or [N, 3, H, W]) and optionally
    `labels` (or `y`; integers or words), `backgrounds`, `class_names`, `background_names`,
    `test_images`, `test_labels`, `test_backgrounds`. A .npy is `images` alone, memory-mapped.
    Without `test_images` a share of the images is held out.
    """
    path = given_path(data.root)
    where = printable_path(path)
    arrays = read_arrays(path, ARRAY_NAMES, needed=("images",))
    if "labels" not in arrays and "y" in arrays:
        arrays["labels"] = arrays["y"]
    with as_input_error(where, ValueError):
        names = [_number_labels(arrays, what) for what in NAMES]
        has_test = "test_images" in arrays
        prefix = "test_" if has_test and split == "test" else ""
        images = _channels_first(arrays[prefix + "images"])
        labels = [arrays.get(prefix + what) for what in NAMES]
        for what, values in zip(NAMES, labels):
            if values is not None and len(values) != len(images):
                raise ValueError(f"{len(values)} {what} for {len(images)} images")
        if not has_test and (data.holdout > 0 or split == "test"):
            rows = [str(i) for i in range(len(images))]
            chosen = np.flatnonzero(in_split(rows, data, split, where))
            images = images[chosen]
            labels = [None if values is None else values[chosen] for values in labels]
        if not len(images):
            raise ValueError(f"no images for the {split} split")
        pixels = resize_images(_to_uint8(images), data.size)
    return Images(pixels, labels[0], labels[1], names[0], names[1])


def _number_labels(arrays: dict[str, np.ndarray], what: str) -> tuple[str, ...] | None:
    """Make the labels of both splits indices into their names; return the names.

    Numbers from 0 without gaps need no names.
    """
    keys = [key for key in (what, f"test_{what}") if key in arrays]
    names = arrays.get(NAMES[what])
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        raise ValueError(f"{NAMES[what]} are {names.dtype}, expected a list of strings")
    kinds = "iuU" if names is None else "iu"
    for key in keys:
        if arrays[key].ndim != 1 or arrays[key].dtype.kind not in kinds:
            raise ValueError(f"{key} are {arrays[key].dtype}, expected [N] integers or words")
    if keys:
        index, classes = factorize(np.concatenate([arrays[key] for key in keys]))
        last = len(classes) if classes.dtype.kind == "U" else max(classes, default=0)
        if classes.dtype.kind != "U" and min(classes, default=0) < 0:
            raise ValueError(f"{what} go down to {classes[0]}, expected 0 or more")
        if names is not None and last >= len(names):
            raise ValueError(f"label {last}, but only {len(names)} {NAMES[what]}")
        if names is None and last >= len(classes):
            names = classes.astype(str)
            parts = np.split(index, np.cumsum([len(arrays[key]) for key in keys])[:-1])
            arrays |= dict(zip(keys, parts))
        arrays |= {key: arrays[key].astype(np.int64) for key in keys}
    return None if names is None else tuple(map(str, names))


def _channels_first(images: np.ndarray) -> np.ndarray:
    if images.ndim == 4 and (images.dtype == np.uint8 or images.dtype.kind == "f"):
        if images.shape[1] == 3:
            return images
        if images.shape[3] == 3:
            return np.moveaxis(images, 3, 1)
    expected = "expected uint8, or float in [0, 1], [N, height, width, 3] or [N, 3, height, width]"
    raise ValueError(f"images are {images.dtype} {list(images.shape)}, {expected}")


def _to_uint8(images: np.ndarray) -> np.ndarray:
    """Floats in [0, 1] as uint8, in blocks; uint8 stays as it is, memory-mapped or not."""
    if images.dtype == np.uint8:
        return images
    out = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), IMAGES_PER_BLOCK):
        block = np.asarray(images[start : start + IMAGES_PER_BLOCK], np.float32)
        if not (block.min() >= 0 and block.max() <= 1):  # NaN too
            seen = f"from {block.min():g} to {block.max():g}"
            raise ValueError(f"float images {seen}, expected 0 to 1")
        out[start : start + IMAGES_PER_BLOCK] = np.rint(block * 255)
    return out


ARRAYS = Dataset(name="arrays", title="Arrays", load=load, holdout=True)

"""The data set `arrays`: images from a NumPy file, .npz with `images` and perhaps `labels`, or .npy, memory-mapped."""

from __future__ import annotations

import numpy as np

from .. import recipes
from ..arrays import check_room, read_arrays
from ..errors import InputError, shown
from . import Dataset
from .decode import resized
from .folder import FOLDER, given_path
from .images import Images, Progress, in_split

KINDS = {"labels": "class_names", "backgrounds": "background_names"}
WANTED = ("images", "y", *KINDS, *KINDS.values(), *(f"test_{what}" for what in ("images", *KINDS)))
CHUNK = 1024  # images converted at a time


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split of an array file.

    An .npz holds `images` (uint8, or float in [0, 1]; [N, H, W, 3] or [N, 3, H, W]) and optionally `labels` (or `y`;
    integers, or words), `backgrounds`, `class_names`, `background_names`, `test_images`, `test_labels`,
    `test_backgrounds`. An .npy is `images` alone. Without `test_images` a share of the images is held out.
    """
    path = given_path(data.root)
    where = shown(path)
    arrays = read_arrays(path, WANTED, needed=("images",))
    if "labels" not in arrays and "y" in arrays:
        arrays["labels"] = arrays["y"]
    for what, names in KINDS.items():
        arrays |= _numbered(arrays, what, names)
    own_test = "test_images" in arrays
    prefix = "test_" if own_test and split == "test" else ""
    images = _channels_first(arrays[prefix + "images"], where)
    numbers = [_integers(arrays.get(prefix + what), len(images), what, where) for what in KINDS]
    if not own_test and (data.holdout > 0 or split == "test"):
        chosen = np.flatnonzero(in_split([str(i) for i in range(len(images))], data, split, where))
        check_room(images[:1].nbytes * len(chosen), f"{where} (which data.holdout=0 reads in place)")
        images = images[chosen]
        numbers = [None if values is None else values[chosen] for values in numbers]
    if not len(images):
        raise InputError(f"{where}: no images for the {split} split")
    pixels = resized(_bytes(images, where), data.size)
    classes = [_names(arrays.get(what), what, where) for what in KINDS.values()]
    for values, known, what in zip(numbers, classes, KINDS.values()):
        if values is not None and known is not None and values.max() >= len(known):
            raise InputError(f"{where}: label {values.max()} but only {len(known)} {what}")
    return Images(pixels, numbers[0], numbers[1], classes[0], classes[1])


def _numbered(arrays: dict[str, np.ndarray], what: str, names: str) -> dict[str, np.ndarray]:
    """Labels without names, if they are words or numbers with gaps, as indices into those; the same in both splits.

    So the largest number does not decide how much memory the classes take.
    """
    keys = [key for key in (what, f"test_{what}") if key in arrays]
    if names in arrays or not keys or any(arrays[key].ndim != 1 or arrays[key].dtype.kind not in "Uiu" for key in keys):
        return {}  # what is wrong with them is said where they are used
    distinct = np.unique(np.concatenate([arrays[key] for key in keys]))
    if distinct.dtype.kind != "U" and (not len(distinct) or distinct[0] < 0 or distinct[-1] == len(distinct) - 1):
        return {}
    return {key: np.searchsorted(distinct, arrays[key]) for key in keys} | {names: distinct.astype(str)}


def _channels_first(images: np.ndarray, where: str) -> np.ndarray:
    known = images.dtype == np.uint8 or images.dtype.kind == "f"
    # Both first and last of length 3 would be images 3 pixels wide: of no use, and ambiguous.
    if known and images.ndim == 4 and (images.shape[1] == 3) != (images.shape[3] == 3) and min(images.shape[1:]) > 0:
        return images if images.shape[1] == 3 else np.moveaxis(images, 3, 1)
    raise InputError(
        f"{where}: images are {images.dtype} {list(images.shape)}, expected uint8, or float in [0, 1], "
        "[N, height, width, 3] or [N, 3, height, width]"
    )


def _bytes(images: np.ndarray, where: str) -> np.ndarray:
    """Floats in [0, 1] to uint8, a chunk at a time; uint8 stays what it is, memory-mapped or not."""
    if images.dtype == np.uint8:
        return images
    check_room(images.size, f"{where} as bytes")
    out = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), CHUNK):
        chunk = np.asarray(images[start : start + CHUNK], np.float32)
        if not np.isfinite(chunk).all():
            raise InputError(f"{where}: NaN or infinite values among images {start} to {start + len(chunk) - 1}")
        if chunk.min() < 0 or chunk.max() > 1:
            raise InputError(f"{where}: float images from {chunk.min():g} to {chunk.max():g}, expected 0 to 1")
        out[start : start + CHUNK] = np.rint(chunk * 255)
    return out


def _integers(values: np.ndarray | None, count: int, what: str, where: str) -> np.ndarray | None:
    if values is None:
        return None
    if values.shape != (count,):
        raise InputError(f"{where}: {what} of shape {list(values.shape)} for {count} images")
    if values.dtype.kind not in "iu":
        raise InputError(f"{where}: {what} are {values.dtype}, expected integers (names go into {KINDS[what]})")
    if count and values.min() < 0:
        raise InputError(f"{where}: {what} go down to {values.min()}, expected 0 or more")
    return values.astype(np.int64)


def _names(values: np.ndarray | None, what: str, where: str) -> tuple[str, ...] | None:
    if values is None:
        return None
    if values.ndim != 1 or values.dtype.kind != "U":
        raise InputError(f"{where}: {what} are {values.dtype} {list(values.shape)}, expected a list of strings")
    return tuple(str(value) for value in values)


ARRAYS = Dataset(
    name="arrays",
    title="Arrays",
    settings=recipes.replace_fields(FOLDER.settings, data={"size": 32}, views={"size": 32}, model={"stem": "cifar"}),
    load=load,
    holdout=True,
)

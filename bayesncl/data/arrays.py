"""Images from a NumPy file: .npz with `images` and, where known, `labels`; or .npy, memory-mapped."""

from __future__ import annotations

import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from .. import recipes
from ..errors import InputError
from .decode import resized
from .folder import given_path
from .images import Images, Progress, at_least_two, held_out, no_test_split, printable

WANTED = ("images", "labels", "y", "backgrounds", "class_names", "background_names")
WANTED_TEST = ("test_images", "test_labels", "test_backgrounds")
UNREADABLE = (  # what zipfile, zlib and NumPy's header parser raise over damaged bytes
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, KeyError, OverflowError, MemoryError, RuntimeError),
    *(struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
CHUNK = 1024  # images converted at a time


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split of an array file.

    An .npz holds `images` (uint8, or float in [0, 1]; [N, H, W, 3] or [N, 3, H, W]) and optionally `labels` (or `y`;
    integers, or words), `backgrounds`, `class_names`, `background_names`, `test_images`, `test_labels`,
    `test_backgrounds`. An .npy is `images` alone. Without `test_images` a share of the images is held out.
    """
    path = given_path(data.root)
    shown = printable(str(path), 300)
    if not path.is_file():
        raise InputError(f"{shown}: no such file, expected an .npz or .npy")
    try:
        if path.suffix == ".npy":
            arrays = {"images": np.load(path, mmap_mode="r", allow_pickle=False)}
        elif path.suffix == ".npz":
            arrays = read_npz(path)
        else:
            raise InputError(f"{shown}: expected an .npz or .npy file")
        if "images" not in arrays:
            raise InputError(f"{shown}: no array named images in it")
        return _split(_number_labels(arrays), data, split, shown)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{shown}: cannot be read: {printable(str(error), 200)}") from None


def _number_labels(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Labels that are words become numbers, and the words class names; the same in both splits."""
    keys = [key for key in ("labels" if "labels" in arrays else "y", "test_labels") if key in arrays]
    if "class_names" in arrays or not keys or any(arrays[key].dtype.kind != "U" for key in keys):
        return arrays
    words = np.unique(np.concatenate([arrays[key].ravel() for key in keys]))
    return arrays | {key: np.searchsorted(words, arrays[key]) for key in keys} | {"class_names": words}


def _split(arrays: dict[str, np.ndarray], data: recipes.Data, split: str, shown: str) -> Images:
    own_test = "test_images" in arrays
    prefix = "test_" if own_test and split == "test" else ""
    images = _channels_first(arrays[prefix + "images"], shown)
    if split == "train":
        at_least_two(len(images), shown)
    labels = arrays.get("test_labels") if prefix else arrays.get("labels", arrays.get("y"))
    whole = {"labels": labels, "backgrounds": arrays.get(prefix + "backgrounds")}
    second = {what: _integers(values, len(images), what, shown) for what, values in whole.items()}
    if not own_test and (data.holdout > 0 or split == "test"):
        out = held_out([str(i) for i in range(len(images))], data.holdout, data.seed)
        if split == "test" and not out.any():
            raise no_test_split(shown)
        chosen = np.flatnonzero(out == (split == "test"))
        if images[:1].nbytes * len(chosen) > _memory():
            raise InputError(f"{shown}: larger than memory; with data.holdout=0 it is read in place")
        images = images[chosen]
        second = {what: None if values is None else values[chosen] for what, values in second.items()}
        if split == "train":
            at_least_two(len(images), shown)
    if not len(images):
        raise InputError(f"{shown}: no images for the {split} split")
    pixels = resized(_bytes(images, shown), data.size)
    names = {what: _names(arrays.get(what), what, shown) for what in ("class_names", "background_names")}
    for values, what in ((second["labels"], "class_names"), (second["backgrounds"], "background_names")):
        known = names[what]
        if values is not None and known is not None and values.max() >= len(known):
            raise InputError(f"{shown}: label {values.max()} but only {len(known)} {what}")
    return Images(pixels, second["labels"], second["backgrounds"], names["class_names"], names["background_names"])


def _channels_first(images: np.ndarray, shown: str) -> np.ndarray:
    known = images.dtype == np.uint8 or images.dtype.kind == "f"
    # Both first and last of length 3 would be images 3 pixels wide: of no use, and ambiguous.
    if known and images.ndim == 4 and (images.shape[1] == 3) != (images.shape[3] == 3) and min(images.shape[1:]) > 0:
        return images if images.shape[1] == 3 else np.moveaxis(images, 3, 1)
    raise InputError(
        f"{shown}: images are {images.dtype} {list(images.shape)}, expected uint8, or float in [0, 1], "
        "[N, height, width, 3] or [N, 3, height, width]"
    )


def _bytes(images: np.ndarray, shown: str) -> np.ndarray:
    """Floats in [0, 1] to uint8, a chunk at a time; uint8 stays what it is, memory-mapped or not."""
    if images.dtype == np.uint8:
        return images
    out = np.empty(images.shape, np.uint8)
    for start in range(0, len(images), CHUNK):
        chunk = np.asarray(images[start : start + CHUNK], np.float32)
        if not np.isfinite(chunk).all():
            raise InputError(f"{shown}: NaN or infinite values among images {start} to {start + len(chunk) - 1}")
        if chunk.min() < 0 or chunk.max() > 1:
            raise InputError(f"{shown}: float images from {chunk.min():g} to {chunk.max():g}, expected 0 to 1")
        out[start : start + CHUNK] = np.rint(chunk * 255)
    return out


def _integers(values: np.ndarray | None, count: int, what: str, shown: str) -> np.ndarray | None:
    if values is None:
        return None
    if values.shape != (count,):
        raise InputError(f"{shown}: {what} of shape {list(values.shape)} for {count} images")
    if values.dtype.kind not in "iu":
        names = "background_names" if what == "backgrounds" else "class_names"
        raise InputError(f"{shown}: {what} are {values.dtype}, expected integers (names go into {names})")
    if count and values.min() < 0:
        raise InputError(f"{shown}: {what} go down to {values.min()}, expected 0 or more")
    return values.astype(np.int64)


def _names(values: np.ndarray | None, what: str, shown: str) -> tuple[str, ...] | None:
    if values is None:
        return None
    if values.ndim != 1 or values.dtype.kind != "U":
        raise InputError(f"{shown}: {what} are {values.dtype} {list(values.shape)}, expected a list of strings")
    return tuple(str(value) for value in values)


def read_npz(path: Path, names: Sequence[str] = WANTED + WANTED_TEST) -> dict[str, np.ndarray]:
    """The arrays of these names, nothing pickled, and none that would not fit into memory (zip bombs)."""
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive:
        found = {name: f"{name}.npy" for name in names if f"{name}.npy" in archive.NameToInfo}
        infos = [archive.getinfo(member) for member in found.values()]
        total = sum(info.file_size for info in infos)
        free = _memory()
        if total > free:
            raise InputError(f"{printable(str(path), 300)}: unpacks to {total >> 20} MiB, {free >> 20} MiB are free")
        for info in infos:
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(f"{printable(str(path), 300)}: {info.filename} is packed in a way NumPy does not use")
            with archive.open(info) as file:
                _check_header(file, info)
        for name, member in found.items():
            with archive.open(member) as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


def _check_header(file: IO[bytes], info: zipfile.ZipInfo) -> None:
    """NumPy believes a header, and allocates what it promises, before any data comes."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize > info.file_size or min(shape, default=0) < 0:
        raise ValueError(f"{info.filename} promises {shape} {dtype} in {info.file_size} bytes")


def _memory() -> int:
    """Bytes of memory that can be taken without swapping."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2

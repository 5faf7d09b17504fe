"""Features [N, D] and labels [N]: checked, whatever they come as, and read from files without trusting them.

Arrays stay where they are: a `.npy`, or an array stored uncompressed in an `.npz`, is memory-mapped, so that its size
does not matter.
"""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from ..data.arrays import UNREADABLE as DAMAGE
from ..errors import InputError

Array = Any  # numpy array or torch tensor, or what numpy makes an array of
MAX_HEADER = 10_000  # bytes; the header of a plain array takes 128


def as_features(features: Array) -> np.ndarray:
    """Features as float16, float32 or float64 [N, D]; a memory map stays one."""
    if isinstance(features, torch.Tensor):
        features = features.detach().cpu()
        features = (features.float() if features.dtype == torch.bfloat16 else features).numpy()
    features = features if isinstance(features, np.ndarray) else np.asarray(features)
    if features.ndim != 2:
        raise InputError(f"features must be [N, D], got shape {list(features.shape)}")
    if 0 in features.shape:
        raise InputError(f"features are empty: shape {list(features.shape)}")
    if features.dtype.kind in "iub":
        return features.astype(np.float64)
    if features.dtype.kind != "f" or features.dtype.itemsize > 8:
        raise InputError(f"features must be float16, float32 or float64, got {features.dtype}")
    return features if features.dtype.isnative else features.astype(features.dtype.newbyteorder("="))


def as_labels(labels: Array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of any kind as indices.

    Parameters
    ----------
    labels : [N] integers (any, also negative or with gaps), integer-valued floats, booleans or strings.
    count : N of the features they belong to.

    Returns
    -------
    int64 [N] in 0..C-1, and the C distinct labels in sorted order.
    """
    labels = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if labels.ndim != 1:
        raise InputError(f"labels must be [N], got shape {list(labels.shape)}")
    if len(labels) != count:
        raise InputError(f"{len(labels)} labels for {count} rows of features")
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.trunc(labels)):
        raise InputError(f"labels must be whole numbers or strings, got {labels[labels != np.trunc(labels)][0]}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError("labels must be whole numbers or strings, got an infinite one")
    if labels.dtype.kind not in "fiubUS":
        raise InputError(f"labels must be whole numbers or strings, got {labels.dtype}")
    names, index = np.unique(labels, return_inverse=True)
    if count < 2:
        raise InputError("one row of features only; the measures need at least two")
    if len(names) < 2:
        raise InputError(f"labels hold one class only ({names[0]}); the measures need at least two")
    return index.astype(np.int64), names


def read(path: str | Path, labels_path: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a file.

    Parameters
    ----------
    path : an `.npz` with arrays `z` [N, D] and `y` [N], or a `.npy` with z.
    labels_path : a `.npy` with y, instead of the `y` inside an `.npz`; for a `.npy` the default is `y.npy` beside it.

    Returns
    -------
    z and y, memory-mapped where they are not compressed. Nothing is unpickled.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no file at {path}")
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic == npy.MAGIC_PREFIX:
        labels_path = Path(labels_path or path.with_name("y.npy"))
        if not labels_path.is_file():
            raise InputError(f"labels missing: no file at {labels_path}")
        return _map(path, 0, str(path)), np.array(_map(labels_path, 0, str(labels_path)))
    try:
        with zipfile.ZipFile(path) as archive:
            features = _member(archive, path, "z")
            labels = _map(Path(labels_path), 0, str(labels_path)) if labels_path else _member(archive, path, "y")
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"{path} is not an .npz or .npy file that can be read: {_line(error)}") from None
    return features, np.array(labels)


def _member(archive: zipfile.ZipFile, path: Path, name: str) -> np.ndarray:
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        found = ", ".join(sorted(member.removesuffix(".npy") for member in archive.namelist()))[:200] or "nothing"
        what = {"z": "features missing: no array z [N, D]", "y": "labels missing: no array y [N]"}[name]
        raise InputError(f"{what} in {path}, which holds {found}") from None
    where = f"{path}, array {name}"
    if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:  # bit 0: encrypted
        with open(path, "rb") as file:
            file.seek(info.header_offset + 26)  # lengths of name and extra field in the local header
            lengths = struct.unpack("<HH", file.read(4))
        return _map(path, info.header_offset + 30 + sum(lengths), where)
    with archive.open(info) as stream:
        shape, _, dtype = _header(stream, where)
        size = _size(shape, dtype)
        # the header decides how much is allocated, so it must agree with the archive before anything is read
        if size > info.file_size:
            raise InputError(f"{where}: {list(shape)} {dtype} need {size:,} bytes, the archive says {info.file_size:,}")
        if size > memory() // 2:
            raise InputError(f"{where} unpacks to {size:,} bytes, over half of free memory; use np.savez, uncompressed")
    with archive.open(info) as stream:
        try:
            return npy.read_array(stream, allow_pickle=False, max_header_size=MAX_HEADER)
        except DAMAGE as error:
            raise InputError(f"{where} cannot be read: {_line(error)}") from None


def _map(path: Path, offset: int, where: str) -> np.ndarray:
    """The array whose `.npy` image begins at `offset` of a file, memory-mapped."""
    if not path.is_file():
        raise InputError(f"no file at {path}")
    with open(path, "rb") as file:
        file.seek(offset)
        shape, fortran, dtype = _header(file, where)
        start = file.tell()
    size = _size(shape, dtype)
    there = os.path.getsize(path) - start
    if size > there:
        raise InputError(f"{where} is cut short: {list(shape)} {dtype} need {size:,} bytes, {there:,} are there")
    if size == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def _header(file: Any, where: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = npy.read_magic(file)
        reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if reader is None:
            raise InputError(f"{where} is a .npy of version {version}, not a plain array")
        shape, fortran, dtype = reader(file, max_header_size=MAX_HEADER)
    except InputError:
        raise
    except DAMAGE as error:
        raise InputError(f"{where} is not a .npy array: {_line(error)}") from None
    if min(shape, default=0) < 0:
        raise InputError(f"{where} is not a .npy array: it has shape {list(shape)}")
    if dtype.hasobject:
        raise InputError(f"{where} holds pickled Python objects, which are never read; save plain numbers")
    return shape, fortran, dtype


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _size(shape: tuple[int, ...], dtype: np.dtype) -> int:
    size = dtype.itemsize
    for side in shape:  # Python integers: a header may declare more than 64 bits hold
        size *= side
    return size


def memory() -> int:
    """Bytes of memory now available, or all there is where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

"""Arrays from files that are not trusted, and features and labels from whatever people hold them in.

`read_arrays` is the one reader of .npy, .npz, .safetensors, .csv and .parquet. Nothing is unpickled. What a header
promises is compared with what is there, and with free memory, before anything is allocated; checksums are verified.
Arrays that are not compressed are memory-mapped, so that their size does not matter.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from .errors import InputError, or_refuse, printable, shown

Array = Any  # numpy array or torch tensor, or what numpy makes an array of

DAMAGE = (  # what zipfile, zlib, JSON, csv and NumPy's header parser raise over damaged bytes
    *(OSError, ValueError, EOFError, SyntaxError, TypeError, KeyError, AttributeError, OverflowError),
    *(MemoryError, RuntimeError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, csv.Error),
)
MAX_HEADER = 10_000  # bytes; the header of a plain .npy takes 128
MAX_TENSORS = 16 << 20  # bytes of a safetensors header
BLOCK = 1 << 20  # elements, or bytes, looked at in one go
TENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
ENDINGS = (".npy", ".npz", ".safetensors", ".csv", ".parquet")
FEATURES = ("z", "embeddings", "embedding", "features", "X", "x", "h", "arr_0", "data")  # names of embeddings
TARGETS = ("Y", "target", "targets")  # these may be of any shape, and are labels where there is one for each row
LABELS = ("y", "labels", "label", *TARGETS)
NAMES = ("names", "paths", "files", "filenames")

Reader = Callable[[], np.ndarray]


def read_arrays(
    path: str | Path, names: Sequence[str | tuple[str, ...]], needed: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """The arrays of a file that have these names: numbers, booleans or text, memory-mapped if they are not compressed.

    .npz and .safetensors hold arrays by name; .npy holds one, which gets the first of `names`. Of a table, .csv or
    .parquet, columns headed y or label give `y`, name or path give `names` (`tables.COLUMNS` has all headings), all the
    others `z` [N, D]; in .parquet columns of lists, where there are any, are `z`. Of several names in one place the
    first that is there is read. Those `needed` must be there.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{shown(path)}: {'a folder, expected a file' if path.is_dir() else 'no such file'}")
    with or_refuse(f"{shown(path)}: cannot be read", *DAMAGE):
        members = _members(path, names[0] if isinstance(names[0], str) else names[0][0])
        for name in needed:
            if name not in members:
                held = ", ".join(sorted(members)) or "nothing"
                raise InputError(f"{shown(path)}: no array named {name} in it, it holds {printable(held, 200)}")
        found = {}
        for place in names:
            choice = (place,) if isinstance(place, str) else place
            for name in [one for one in choice if one in members][:1]:
                try:
                    found[name] = _checked_text(members[name]())
                except InputError as error:
                    raise InputError(f"{shown(path)}, array {name}: {error}") from None
        return found


def array_names(path: str | Path) -> set[str]:
    """Names of the arrays of an .npz or .safetensors; empty for other files."""
    with open(path, "rb") as file:
        many = file.read(2) == b"PK" or Path(path).suffix.lower() == ".safetensors"
    return set(_members(Path(path), "")) if many else set()


def read_embeddings(path: Path, named: bool = True) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Embeddings of a file as they are, with names [N] and labels [N] where it, or files beside a .npy, have them.

    Without `named` nothing is read of names, which some files have for classes in place of rows.
    """
    found = read_arrays(path, (FEATURES, LABELS, NAMES) if named else (FEATURES, LABELS))
    z = find_features(path, found)
    one_each = z.shape[:1], (*z.shape[:1], 1)
    found = {name: each for name, each in found.items() if name not in TARGETS or each.shape in one_each}
    # one of another length belongs to another array
    own = {name: column for name, column in _beside(path).items() if column.shape[:1] == z.shape[:1]}
    beside = {**found, **own}
    names, labels = find_column(beside, NAMES), find_column(beside, LABELS)
    for what, column in (("names", names), ("labels", labels)):
        if column is not None and (z.ndim < 1 or column.ndim != 1 or len(column) != len(z)):
            raise InputError(f"{path}: embeddings {list(z.shape)}, but {what} {list(column.shape)}")
    if labels is not None and labels.dtype.kind in "iu" and len(labels) and "class_names" in array_names(path):
        with contextlib.suppress(InputError):  # whole numbers will do
            known = read_arrays(path, ("class_names",))["class_names"]
            if known.ndim == 1 and labels.min() >= 0 and labels.max() < len(known):
                labels = known[labels]
    return z, names, labels


def find_features(path: Path | str, found: dict[str, np.ndarray]) -> np.ndarray:
    """The embeddings [N, F] among arrays of a file: by their name, or else the only one that can be meant."""
    z = next((found[name] for name in FEATURES if name in found), None)
    if z is None:
        held = sorted(_members(Path(path), FEATURES[0]))
        left = [name for name in held if name not in (*LABELS, *NAMES, "class_names")]
        if len(left) != 1:
            some = f"named {', '.join(FEATURES[:4])}; it holds {', '.join(held) or 'nothing'}"
            raise InputError(f"{shown(path)}: no embeddings in it, expected an array {printable(some, 200)}")
        z = read_arrays(path, left)[left[0]]
    width = max(z.shape[1:], default=0)
    return z.reshape(len(z), width) if z.ndim > 2 and 0 < z.size == len(z) * width else z  # [N, F, 1, 1] is [N, F]


def find_column(found: dict[str, np.ndarray], names: Sequence[str]) -> np.ndarray | None:
    """The first of these arrays that is there; [N, 1] is [N], 3.0 is 3, and NaN, which stands for nothing, is ""."""
    column = next((found[name] for name in names if name in found), None)
    if column is None:
        return None
    column = column[:, 0] if column.ndim == 2 and column.shape[1] == 1 else column
    there = np.isfinite(column) if column.dtype.kind == "f" else None
    if there is None or not (np.abs(column[there]) < 2**53).all() or (column[there] % 1).any():
        return column
    whole = np.where(there, column, 0).astype(np.int64)
    return whole if there.all() else np.where(there, whole.astype(str), "")


def _beside(source: Path) -> dict[str, np.ndarray]:
    """y.npy and names.npy beside a .npy."""
    if source.suffix.lower() != ".npy":
        return {}
    paths = {name: source.with_name(f"{name}.npy") for name in ("y", "names")}
    return {name: read_arrays(path, (name,))[name] for name, path in paths.items() if path.is_file() and path != source}


def as_numpy(values: Array) -> np.ndarray:
    """A tensor, or anything NumPy makes an array of, as an array; bfloat16 becomes float32."""
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    return values if isinstance(values, np.ndarray) else np.asarray(values)


def as_features(features: Array) -> np.ndarray:
    """Features as float16, float32 or float64 [N, D]; a memory map stays one."""
    features = as_numpy(features)
    if features.ndim != 2:
        raise InputError(f"features must be [N, D], got shape {list(features.shape)}")
    if 0 in features.shape:
        raise InputError(f"features are empty: shape {list(features.shape)}")
    if features.dtype.kind in "iub":
        check_room(8 * features.size, "features as float64")
        return features.astype(np.float64)
    if features.dtype.kind != "f" or features.dtype.itemsize > 8:
        raise InputError(f"features must be float16, float32 or float64, got {features.dtype}")
    return features if features.dtype.isnative else features.astype(features.dtype.newbyteorder("="))


def as_labels(labels: Array, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels of `count` rows of features as indices, int64 [N] in 0..C-1, and the C distinct labels in sorted order.

    They are [N] integers (any, also negative or with gaps), integer-valued floats, booleans or strings.
    """
    labels = as_numpy(labels)
    if labels.ndim != 1:
        raise InputError(f"labels must be [N], got shape {list(labels.shape)}")
    if len(labels) != count:
        raise InputError(f"{len(labels)} labels for {count} rows of features")
    if labels.dtype.kind not in "fiubUS" or labels.dtype.itemsize == 0:
        raise InputError(f"labels must be whole numbers or strings, got {labels.dtype}")
    if labels.dtype.kind == "f" and len(wrong := labels[~np.isfinite(labels) | (labels != np.trunc(labels))]):
        raise InputError(f"labels must be whole numbers or strings, got {wrong[0]}")
    if count < 2:
        raise InputError("one row of features only; the measures need at least two")
    names, index = np.unique(_checked_text(labels), return_inverse=True)
    if len(names) < 2:
        raise InputError(f"labels hold one class only ({names[0]}); the measures need at least two")
    return index.astype(np.int64), names


def memory() -> int:
    """Bytes of memory now available, or all there is where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_room(size: int, what: str) -> None:
    """InputError where `size` bytes would take more than half of free memory."""
    if size > memory() // 2:
        raise InputError(f"{what} would take {size >> 20:,} MiB, over half of free memory ({memory() >> 20:,} MiB)")


def npy_header(shape: tuple[int, ...], dtype: str) -> bytes:
    """How a .npy file begins; NumPy pads it, so that its length does not depend on the number of rows."""
    out = io.BytesIO()
    npy.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


def crc32(rows: np.ndarray) -> int:
    """CRC-32 of the bytes of an array, a block at a time: it may be memory-mapped."""
    crc, step = 0, max(1, BLOCK // max(1, rows[:1].nbytes))
    for start in range(0, len(rows), step):
        crc = zlib.crc32(rows[start : start + step].tobytes(), crc)
    return crc


def _members(path: Path, only: str) -> dict[str, Reader]:
    """How to read each array of a file, by name; that of a .npy is called `only`."""
    from .tables import read_csv, read_parquet

    with open(path, "rb") as file:
        magic = file.read(8)
    if magic.startswith(npy.MAGIC_PREFIX):
        return {only: lambda: _map_npy(path, 0, os.path.getsize(path))}
    if magic.startswith(b"PK"):
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        return {info.filename.removesuffix(".npy"): partial(_unzip, path, info) for info in infos}
    if magic.startswith(b"PAR1"):
        return read_parquet(path)
    if path.suffix.lower() == ".safetensors":
        return _tensors(path)
    if path.suffix.lower() == ".csv":
        return read_csv(path)
    raise InputError(f"{shown(path)} is not an .npz, .npy, .safetensors, .csv or .parquet file that can be read")


def _unzip(path: Path, info: zipfile.ZipInfo) -> np.ndarray:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError("it is packed in a way NumPy does not use")
    with zipfile.ZipFile(path) as archive, archive.open(info) as stream:
        if info.compress_type == zipfile.ZIP_STORED:
            while stream.read(BLOCK):  # to the end, where zipfile compares the checksum
                pass
            with open(path, "rb") as file:
                file.seek(info.header_offset + 26)  # lengths of name and extra field in the local header
                start = info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4)))
            return _map_npy(path, start, start + info.file_size)
        shape, _, dtype = _header(stream)
        size = _checked_size(shape, dtype, info.file_size)
        check_room(size, "unpacked it")
    with zipfile.ZipFile(path) as archive, archive.open(info) as stream:
        values = npy.read_array(stream, allow_pickle=False, max_header_size=MAX_HEADER)
        if stream.read(1):  # compares the checksum, too
            raise InputError("it holds more than its header says")
    return values


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = npy.read_magic(file)
    reader = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if reader is None:
        raise InputError(f"a .npy of version {version}, not a plain array")
    shape, fortran, dtype = reader(file, max_header_size=MAX_HEADER)
    if min(shape, default=0) < 0 or max(shape, default=0) >= 2**62:
        raise InputError(f"not an array: it has shape {list(shape)}")
    return shape, fortran, dtype


def _map_npy(path: Path, start: int, end: int) -> np.ndarray:
    """The array whose `.npy` image lies between two places of a file, memory-mapped."""
    with open(path, "rb") as file:
        file.seek(start)
        shape, fortran, dtype = _header(file)
        start = file.tell()
    return _map(path, start, end, shape, dtype, fortran)


def _map(path: Path, start: int, end: int, shape: Sequence[int], dtype: np.dtype, fortran: bool = False) -> np.ndarray:
    there = min(end, os.path.getsize(path)) - start
    if _checked_size(shape, dtype, there) == 0:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", start, tuple(shape), "F" if fortran else "C")


def _checked_size(shape: Sequence[int], dtype: np.dtype, there: int) -> int:
    """Bytes of an array that is to be made of `there` bytes; refuses what we never use and what cannot be."""
    if dtype.hasobject:
        raise InputError("it holds pickled Python objects, which are never read; save plain numbers")
    if dtype.kind not in "fiubUS" or dtype.itemsize == 0:
        raise InputError(f"it holds {dtype}, expected real numbers, booleans or text")
    size = dtype.itemsize
    for side in shape:  # Python integers: a header may declare more than 64 bits hold
        size *= side
    if size > there:
        raise InputError(f"it is cut short: {list(shape)} {dtype} need {size:,} bytes, {max(there, 0):,} are there")
    return size


def _checked_text(values: np.ndarray) -> np.ndarray:
    """Bytes as text; text must consist of characters: NumPy stores any 32 bits and fails only when they are seen."""
    if values.dtype.kind == "S":
        check_room(4 * values.nbytes, "as text it")
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "U":
        codes = np.dtype(np.uint32).newbyteorder(values.dtype.byteorder)
        flat = np.ascontiguousarray(values).reshape(-1).view(codes)
        if any((flat[start : start + BLOCK] > 0x10FFFF).any() for start in range(0, len(flat), BLOCK)):
            raise InputError("it holds text with characters beyond Unicode's last")
    return values


def _tensors(path: Path) -> dict[str, Reader]:
    """The tensors of a safetensors file: a length, a JSON header with types, shapes and offsets, then the bytes."""
    whole = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(MAX_TENSORS, whole - 8):
            raise InputError(f"{shown(path)}: its header is said to take {length:,} bytes")
        header = json.loads(file.read(length))
    return {str(name): partial(_tensor, path, 8 + length, e) for name, e in header.items() if name != "__metadata__"}


def _tensor(path: Path, start: int, entry: Any) -> np.ndarray:
    """The tensor of an entry of the header, whose offsets count from `start`."""
    begin, end = entry["data_offsets"]
    shape = entry["shape"]
    whole_numbers = all(type(n) is int and 0 <= n < 2**62 for n in [begin, end, *shape])
    if entry["dtype"] not in TENSORS or not whole_numbers:
        raise InputError(f"not a tensor of a known type: {printable(str(entry))}")
    values = _map(path, start + begin, start + end, shape, np.dtype(TENSORS[entry["dtype"]]))
    if entry["dtype"] != "BF16":
        return values
    check_room(4 * values.size, "as float32 it")
    return (values.astype(np.uint32) << 16).view(np.float32)

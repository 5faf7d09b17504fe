"""CIFAR-10 and CIFAR-100 in their official forms: binary or python version, unpacked or as .tar.gz."""

from __future__ import annotations

import functools
import io
import math
import pickle
import pickletools
import tarfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import recipes
from ..errors import InputError, or_refuse, printable, shown
from ..files import read_regular
from . import DATASETS, Dataset
from .archive import TAR_ERRORS, checksum, fetch, safe_name
from .decode import resized
from .folder import existing_folder, given_path
from .images import Images, Progress, counted

HOME = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32
MOST_BYTES = 200 << 20  # the largest official file has 155 MB
MOST_MEMBERS = 100


@dataclass(frozen=True)
class Layout:
    """One official version: the archive, the folder it unpacks to, and the files in it."""

    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str  # file with the class names
    binary: bool
    label_bytes: int  # before the pixels of a binary record; the last one is the class


LAYOUTS = {
    "cifar10": (
        Layout(
            "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin",
            tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",), "batches.meta.txt", True, 1,
        ),
        Layout(
            "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py",
            tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",), "batches.meta", False, 1,
        ),
    ),
    "cifar100": (
        Layout(
            "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary",
            ("train.bin",), ("test.bin",), "fine_label_names.txt", True, 2,
        ),
        Layout(
            "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python",
            ("train",), ("test",), "meta", False, 2,
        ),
    ),
}  # fmt: skip
# the superclass of each class of CIFAR-100, as its files number them
COARSE = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)  # fmt: skip
OFFICIAL = {"train": 50_000, "test": 10_000}


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; data.root is the archive, the unpacked folder, or the folder that holds either."""
    layout, path = _find(data.name, data.root)
    wanted, classes = layout.train if split == "train" else layout.test, DATASETS[data.name].classes
    files = _read(path, layout, (*wanted, layout.names))
    pixels, labels = [], []
    for name in counted(wanted, len(wanted), f"reading {data.name}", progress):
        if name not in files:
            raise InputError(f"{shown(path)}: {name} is missing")
        images, numbers = (_binary if layout.binary else _python)(files.pop(name), layout, f"{shown(path)}: {name}")
        if numbers.max() >= classes:
            raise InputError(f"{shown(path)}: {name} holds label {numbers.max()}, expected 0 to {classes - 1}")
        pixels.append(images)
        labels.append(numbers)
    every = pixels[0] if len(pixels) == 1 else np.concatenate(pixels)
    if len(every) != OFFICIAL[split]:
        official = OFFICIAL[split]
        warnings.warn(f"{shown(path)}: {len(every)} {split} images, the official set has {official}", stacklevel=2)
    names = _class_names(files.get(layout.names), layout, classes, shown(path))
    return Images(resized(every, data.size), np.concatenate(labels).astype(np.int64), class_names=names)


def fetch_archive(name: str, folder: Path, progress: Progress | None = None) -> Path:
    """Fetch the official binary archive."""
    layout = LAYOUTS[name][0]
    return fetch(HOME + layout.archive, folder / layout.archive, layout.md5, progress)


def _find(name: str, root: str) -> tuple[Layout, Path]:
    layouts = LAYOUTS[name]
    here = given_path(root)
    if here.is_file():
        found = [(layout, here) for layout in layouts if here.name == layout.archive]
        wanted = f"expected a file named {' or '.join(x.archive for x in layouts)}"
    else:
        here = existing_folder(root)
        unpacked = [(layout, folder) for layout in layouts for folder in (here, here / layout.folder)]
        found = [(x, folder) for x, folder in unpacked if any((folder / f).is_file() for f in x.train + x.test)]
        found += [(x, here / x.archive) for x in layouts if (here / x.archive).is_file()]
        archive = f"{layouts[0].archive} from {HOME}"
        wanted = f"no {name} in it; put {archive} there (or the python version, or either unpacked)"
    if not found:
        raise InputError(f"{shown(here)}: {wanted}")
    return found[0]


def _read(path: Path, layout: Layout, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """The wanted files, out of a folder or out of a .tar.gz that is not unpacked."""
    with or_refuse(f"{shown(path)}: cannot be read", *TAR_ERRORS):
        if path.is_dir():
            return {name: read_regular(path / name, MOST_BYTES) for name in wanted if (path / name).is_file()}
        if checksum(path) != layout.md5:
            warnings.warn(f"{shown(path)}: not the official archive (its MD5 differs)", stacklevel=3)
        files: dict[str, bytes] = {}
        with tarfile.open(path, "r:gz") as tar:
            for count, member in enumerate(tar):
                name = safe_name(member.name)
                if name is None or not (member.isreg() or member.isdir()) or member.issparse():
                    raise InputError(f"{shown(path)}: member {printable(member.name)} is a link or points outside")
                if member.size > MOST_BYTES or count >= MOST_MEMBERS:
                    raise InputError(f"{shown(path)}: member {printable(member.name)} is not of the official archive")
                base = name.removeprefix(layout.folder + "/")
                if base in wanted and member.isreg() and (stream := tar.extractfile(member)) is not None:
                    files[base] = stream.read()
    return files


def _binary(raw: bytes, layout: Layout, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of label byte(s) and three planes of 32 x 32."""
    record = layout.label_bytes + PIXELS
    if not raw or len(raw) % record:
        raise InputError(f"{where} has {len(raw)} bytes, expected a multiple of {record}: cut short?")
    records = np.frombuffer(raw, np.uint8).reshape(-1, record)
    pixels = np.ascontiguousarray(records[:, layout.label_bytes :]).reshape(-1, 3, 32, 32)
    return pixels, records[:, layout.label_bytes - 1]


def _python(raw: bytes, layout: Layout, where: str) -> tuple[np.ndarray, np.ndarray]:
    content = unpickle(raw, where)
    pixels = content.get("data")
    labels = content.get("labels" if layout.label_bytes == 1 else "fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
        raise InputError(f"{where} holds no uint8 array of {PIXELS} columns named data")
    if not isinstance(labels, list | np.ndarray) or not all(isinstance(y, int | np.integer) and y >= 0 for y in labels):
        raise InputError(f"{where} holds no list of class numbers")
    if len(labels) != len(pixels) or not len(labels):
        raise InputError(f"{where} holds {len(labels)} labels for {len(pixels)} images")
    return pixels.reshape(-1, 3, 32, 32), np.array([min(int(y), 1 << 30) for y in labels], np.int64)


def _class_names(raw: bytes | None, layout: Layout, count: int, where: str) -> tuple[str, ...] | None:
    if raw is None:
        return None
    if layout.binary:
        names: Any = raw.decode("utf-8", "replace").split()
    else:
        names = unpickle(raw, f"{where}: {layout.names}").get("label_names" if count == 10 else "fine_label_names")
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise InputError(f"{where}: {layout.names} does not hold {count} class names")
    return tuple(names)


def unpickle(raw: bytes, where: str) -> dict[str, Any]:
    """Read a pickled dict of plain values and NumPy arrays of numbers; anything else in it is refused."""
    with or_refuse(f"{where} is not a CIFAR file", Exception):  # damaged pickles raise nearly anything
        _check_memo(raw)
        content = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"a {type(content).__name__}, expected a dict")
        # Python 2 strings come as text; byte keys are those of copies saved anew.
        content = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in content.items()}
        return {key: value.array() if isinstance(value, _Array) else value for key, value in content.items()}


def _check_memo(raw: bytes) -> None:
    """Refuse a pickle that remembers a value under a number far beyond their count: it would take that much memory."""
    seen = 0
    for opcode, argument, _ in pickletools.genops(raw):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            seen += 1
            if not isinstance(argument, int) or argument > seen + 1000:
                raise pickle.UnpicklingError(f"value {seen} is remembered as number {argument}")


class _Array:
    """Stands for numpy.ndarray while unpickling: takes the state an array would and checks it."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, dtype, fortran, raw = self.state
        raw = raw.encode("latin1") if isinstance(raw, str) else raw
        known = isinstance(dtype, _Dtype) and isinstance(raw, bytes)
        if not known or math.prod(shape) * dtype.value.itemsize != len(raw):
            raise pickle.UnpicklingError("an array whose parts do not agree")
        return np.frombuffer(raw, dtype.value).reshape(shape, order="F" if fortran else "C").copy()


class _Dtype:
    """Stands for numpy.dtype: plain little-endian numbers only; the state, which would repeat it, is not used."""

    __slots__ = ("value",)

    def __init__(self, code: str) -> None:
        if code not in ("u1", "i1", "i4", "i8", "f4", "f8"):
            raise pickle.UnpicklingError(f"an array of type {code!r}")
        self.value = np.dtype(f"<{code}")

    def __setstate__(self, state: object) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Knows the four names a pickled array refers to, gives stand-ins for them, and runs nothing of NumPy or Python."""

    def find_class(self, module: str, name: str) -> Callable[..., Any] | str:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return self._array
        if (module, name) == ("numpy", "ndarray"):
            return "ndarray"
        if (module, name) == ("numpy", "dtype"):
            return self._dtype
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        raise pickle.UnpicklingError(f"it refers to {printable(module)}.{printable(name)}, which is not allowed")

    # Bound methods, because a pickle can set attributes on functions and classes but not on these.
    def _array(self, *_: object) -> _Array:
        return _Array()

    def _dtype(self, code: str, *_: object) -> _Dtype:
        return _Dtype(code)

    def _encode(self, text: str, _: object = None) -> bytes:
        return text.encode("latin1")


def _dataset(name: str, mean: recipes.Triple, std: recipes.Triple, **about: Any) -> Dataset:
    """One of the two, with the mean and standard deviation of its training pixels."""
    # the published evaluation took these for both
    data = recipes.Data(mean=mean, std=std, paper_mean=(0.4914, 0.4822, 0.4465), paper_std=(0.247, 0.243, 0.261))
    return Dataset(
        name=name,
        settings=recipes.Recipe(data=data, run=recipes.Run(epochs=200, batch=256)),
        load=load,
        download=functools.partial(fetch_archive, name),
        images=OFFICIAL["train"],
        **about,
    )


CIFAR10 = _dataset(
    "cifar10", (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616), title="CIFAR-10", classes=10, paper_dims=64, paper_k=1
)
CIFAR100 = _dataset(
    "cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), title="CIFAR-100", classes=100, coarse=COARSE,
    paper_dims=128, paper_k=5,
)  # fmt: skip

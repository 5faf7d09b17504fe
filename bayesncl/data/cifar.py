"""CIFAR-10 and CIFAR-100: binary or python version, unpacked or as .tar.gz; its download."""

import codecs
import hashlib
import http.client
import io
import os
import pickle
import tarfile
import urllib.error
import urllib.request
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayesncl import recipes
from bayesncl.data import DATASETS
from bayesncl.data.decode import resize_images
from bayesncl.data.folder import given_path
from bayesncl.data.images import Images, Progress
from bayesncl.errors import InputError, as_input_error

HOME = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """One official version: its archive, the folder it unpacks to, and the files in it."""

    archive: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str  # file with the class names
    kind: str = ""  # "fine_" before "labels" in CIFAR-100's python files

    @property
    def binary(self) -> bool:
        return "binary" in self.archive


BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
LAYOUTS = {
    "cifar10": (
        Layout("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin",
               tuple(f"{name}.bin" for name in BATCHES), ("test_batch.bin",), "batches.meta.txt"),
        Layout("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py",
               BATCHES, ("test_batch",), "batches.meta"),
    ),
    "cifar100": (
        Layout("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary",
               ("train.bin",), ("test.bin",), "fine_label_names.txt", "fine_"),
        Layout("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python",
               ("train",), ("test",), "meta", "fine_"),
    ),
}  # fmt: skip
OFFICIAL = {"train": 50_000, "test": 10_000}


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; data.root is the archive, the unpacked folder, or the folder of either."""
    layout, path = _find(data.name, data.root)
    classes = DATASETS[data.name].classes
    wanted = layout.train if split == "train" else layout.test
    files = _read(path, layout, (*wanted, layout.names))
    if missing := [name for name in wanted if name not in files]:
        raise InputError(f"{path}: {missing[0]} is missing")
    parts, names = [], None
    for name, raw in sorted(files.items()):  # an archive has the batches in any order
        with as_input_error(f"{path}: {name} is not a CIFAR file", Exception):  # pickles raise any
            if name in wanted:
                parts.append(_parse(raw, layout, classes))
            else:
                names = _parse_names(raw, layout, classes)
    pixels, labels = (np.concatenate(column) for column in zip(*parts))
    if len(pixels) != OFFICIAL[split]:
        count = f"{len(pixels)} {split} images, the official set has {OFFICIAL[split]}"
        warnings.warn(f"{path}: {count}", stacklevel=2)
    return Images(resize_images(pixels, data.size), labels, class_names=names)


def fetch_archive(name: str, folder: Path, progress: Progress | None = None) -> Path:
    """Download the official binary archive."""
    layout = LAYOUTS[name][0]
    return fetch(HOME + layout.archive, folder / layout.archive, layout.md5, progress)


def fetch(url: str, path: Path, md5: str, progress: Progress | None = None) -> Path:
    """Download `url` to `path` unless it is there.

    PATH.part collects the bytes, resumes a broken download, and becomes `path` once its checksum
    is right.
    """
    part = path.with_name(path.name + ".part")
    errors = (OSError, http.client.HTTPException, ValueError)  # URLError is an OSError
    with as_input_error(f"cannot download {url} to {path.parent}", *errors):
        if path.is_file() and checksum(path) == md5:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part, progress)
        seen = checksum(part)
        if seen != md5:
            part.unlink()
            raise InputError(f"{url}: MD5 is {seen}, expected {md5}; deleted it, try again")
        os.replace(part, path)
    return path


def checksum(path: Path) -> str:
    """MD5 of a file in hex; it detects damage, not an attacker."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _receive(url: str, part: Path, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=30)  # seconds without a byte
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # nothing follows; the checksum decides
            return
        raise
    resumed = response.status == 206
    done *= resumed  # 0 if the server cannot resume
    with response, open(part, "ab" if resumed else "wb") as file:
        total = done + int(response.headers.get("Content-Length", 0))
        while block := response.read(1 << 20):
            file.write(block)
            done += len(block)
            if progress:
                progress(done, max(total, done), f"downloading {part.stem}")
    if done < total:
        raise OSError(f"the connection ended after {done} of {total} bytes; run again to resume")


def _find(name: str, root: str) -> tuple[Layout, Path]:
    """The version that is there, and its archive or folder."""
    here = given_path(root)
    for layout in LAYOUTS[name]:
        for path in (here, here / layout.folder, here / layout.archive):
            if any((path / file).is_file() for file in layout.train + layout.test) or (
                path.is_file() and path.name == layout.archive
            ):
                return layout, path
    archive = f"{LAYOUTS[name][0].archive} from {HOME}"
    problem = f"no {name}; put {archive} there (or the python version, or either unpacked)"
    raise InputError(f"{here}: {problem}")


def _read(path: Path, layout: Layout, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """The wanted files of a folder, or of a .tar.gz that stays packed."""
    if path.is_dir():
        return {name: (path / name).read_bytes() for name in wanted if (path / name).is_file()}
    files: dict[str, bytes] = {}
    with (
        as_input_error(f"cannot read {path}", tarfile.TarError, OSError, EOFError, zlib.error),
        tarfile.open(path, "r:gz") as tar,
    ):
        for member in tar:
            name = member.name.removeprefix("./").removeprefix(layout.folder + "/")
            if name in wanted and member.isreg() and (stream := tar.extractfile(member)):
                files[name] = stream.read()
    return files


def _parse(raw: bytes, layout: Layout, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, 3, 32, 32] and labels int64 [N] of a file."""
    if layout.binary:  # records of label byte(s), the last of which is the class, and pixels
        records = np.frombuffer(raw, np.uint8).reshape(-1, PIXELS + (2 if layout.kind else 1))
        pixels, labels = records[:, -PIXELS:], records[:, -PIXELS - 1].astype(np.int64)
    else:
        content = unpickle(raw)
        pixels, labels = content["data"], np.array(content[f"{layout.kind}labels"], np.int64)
    if pixels.shape != (len(labels), PIXELS):
        raise ValueError(f"{len(labels)} labels for data of shape {list(pixels.shape)}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    return np.ascontiguousarray(pixels).reshape(-1, 3, 32, 32), labels


def _parse_names(raw: bytes, layout: Layout, classes: int) -> tuple[str, ...]:
    key = f"{layout.kind}label_names"
    names = tuple(raw.decode().split() if layout.binary else unpickle(raw)[key])
    if len(names) != classes:
        raise ValueError(f"{len(names)} names for {classes} classes")
    return names


def _uint8(name: str, *_: object) -> np.dtype[Any]:
    if name != "u1":
        raise pickle.UnpicklingError(f"an array of {name}, expected uint8")
    return np.dtype(name)


# The names in a pickled array. They can only make arrays of uint8.
ALLOWED: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": lambda *_: np.empty(0, np.uint8),
    "numpy.ndarray": object,
    "numpy.dtype": _uint8,
    "_codecs.encode": codecs.encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}".replace("._core.", ".core.")
        if full not in ALLOWED:
            raise pickle.UnpicklingError(f"{full} is not allowed")
        return ALLOWED[full]


def unpickle(raw: bytes) -> dict[str, Any]:
    """Read a pickled dict of plain values and uint8 arrays; refuse any other object."""
    content = _Unpickler(io.BytesIO(raw), encoding="latin1").load()
    # Keys are bytes in copies that Python 3 wrote.
    return {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()}

"""Files of images, decoded once: the pixel cache.

$BAYESNCL_CACHE (or ~/.cache/bayesncl) holds KEY.npy, the pixels, and KEY.json, the files that could
not be decoded. KEY hashes `Square` and the names, sizes and times of the files. KEY.partial is
being built by the process that holds KEY.lock.
"""

import hashlib
import json
import os
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import compress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from filelock import FileLock
from PIL import Image

from bayesncl.data.decode import Square, Undecodable, decode
from bayesncl.data.images import Images, Progress, track
from bayesncl.errors import InputError, as_input_error, first_line, printable
from bayesncl.io import cache_folder, write_atomic, write_npy
from bayesncl.recipes import Data

VERSION = 2  # increase it when decoding gives other pixels
THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes outside the interpreter lock

A = TypeVar("A")
B = TypeVar("B")
Failures = list[tuple[int, str]]  # index of an entry and why it could not be decoded


class Entry(NamedTuple):
    """An image file."""

    name: str  # relative to the root
    path: Path


def read_images(
    entries: Sequence[Entry], data: Data, progress: Progress | None = None, *,
    labels: Sequence[int] | None = None, class_names: Sequence[str] | None = None,
    others: Sequence[str] = (), square: Square | None = None,
) -> Images:  # fmt: skip
    """Decode image files with their labels, or map them from the cache.

    A broken file raises InputError if `data.strict`; otherwise it is skipped, and a warning counts
    it with the `others`, names of files that are not images. By default, the label of an image is
    the index of its first folder among `class_names`, and `square` has the side `data.size`.
    """
    square = square or Square(data.size, data.size)
    if labels is None and class_names is not None:
        number = {name: i for i, name in enumerate(class_names)}
        labels = [number[entry.name.split("/")[0]] for entry in entries]
    path = cache_folder() / f"{_key(entries, square)}.npy"
    with as_input_error(f"cannot use the cache {path.parent} (set BAYESNCL_CACHE)"):
        found = _open(path)
        if found is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                found = _open(path) or _build(path, entries, square, progress)
    pixels, failures = found
    reasons = ", ".join(f"{printable(entries[i].name)} ({why})" for i, why in failures[:3])
    count = f"{len(failures)} of {len(entries)} files cannot be decoded"
    if failures and (data.strict or not len(pixels)):
        raise InputError(f"{data.root}: {count}: {reasons}")
    if failures or others:
        kinds = count_suffixes(others) + [f"{len(failures)} broken"] * bool(failures)
        count = f"skipped files: {len(failures) + len(others)} ({', '.join(kinds)})"
        warnings.warn(f"{data.root}: {count}, e.g. {reasons or printable(others[0])}", stacklevel=2)
    kept = np.ones(len(entries), bool)
    kept[[i for i, _ in failures]] = False
    return Images(
        pixels, None if labels is None else np.array(labels, np.int64)[kept],
        class_names=None if class_names is None else tuple(class_names),
        names=tuple(entry.name for entry in compress(entries, kept)), broken=len(failures),
    )  # fmt: skip


def count_suffixes(names: Sequence[str]) -> list[str]:
    """Number of files of the most common kinds: ``3 .txt``, ``1 without a suffix``."""
    suffixes = [printable(Path(name).suffix.lower(), 12) for name in names]
    common = Counter(suffix or "without a suffix" for suffix in suffixes).most_common(5)
    return [f"{count} {suffix}" for suffix, count in common]


def _key(entries: Sequence[Entry], square: Square) -> str:
    digest = hashlib.blake2b(repr((VERSION, square)).encode(), digest_size=20)
    for entry in entries:
        s = os.stat(entry.path)  # nobody can set the ctime back
        record = entry.name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
        digest.update(repr(record).encode())
    return digest.hexdigest()


def _open(path: Path) -> tuple[np.ndarray, Failures] | None:
    """Pixels and failures of a finished cache; None if it is absent or damaged."""
    try:
        stored = json.loads(path.with_suffix(".json").read_bytes())
        failures = [(int(i), str(why)) for i, why in stored]
        return np.load(path, mmap_mode="r", allow_pickle=False), failures
    except Exception:  # whatever is wrong with it, it can be built again
        return None


def _build(
    path: Path, entries: Sequence[Entry], square: Square, progress: Progress | None
) -> tuple[np.ndarray, Failures]:
    """Decode into a temporary file, then rename it, so that `path` is complete or absent."""
    unfinished, errors = path.with_suffix(".partial"), dict[int, Exception]()

    def decoded() -> Iterator[np.ndarray]:
        yield np.empty((0, 3, square.crop, square.crop), np.uint8)
        images = read_files((entry.path for entry in entries), square.cut, square.min_side)
        for i, image in enumerate(track(images, len(entries), "decoding images", progress)):
            if isinstance(image, Exception):
                errors[i] = image
            else:
                yield image[None]

    try:
        pixels = write_npy(unfinished, decoded())
        failures = [(i, first_line(error)) for i, error in errors.items()]
        # an error of reading may pass: then decode again next time; the map outlives its file
        if all(isinstance(error, Undecodable) for error in errors.values()):
            write_atomic(path.with_suffix(".json"), json.dumps(failures))
            os.replace(unfinished, path)
        return pixels, failures
    finally:
        unfinished.unlink(missing_ok=True)


def read_files(
    paths: Iterable[Path], use: Callable[[Image.Image], B], min_side: int,
    ahead: int = 16 * THREADS,
) -> Iterator[B | Exception]:  # fmt: skip
    """`use(image)` of each image file, or why it cannot be read or decoded; see `decode`."""

    def read(path: Path) -> B | Exception:
        try:
            return decode(path.read_bytes(), use, min_side)
        except (OSError, ValueError) as error:  # Undecodable, or a name that no file can have
            return error

    return map_in_threads(read, paths, ahead)


def map_in_threads(
    function: Callable[[A], B], items: Iterable[A], ahead: int = 16 * THREADS,
    threads: int = THREADS,
) -> Iterator[B]:  # fmt: skip
    """`map` in order by a few threads, at most `ahead` items ahead."""
    tasks: deque[Future[B]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            tasks.append(pool.submit(function, item))
            if len(tasks) > ahead:
                yield tasks.popleft().result()
        while tasks:
            yield tasks.popleft().result()

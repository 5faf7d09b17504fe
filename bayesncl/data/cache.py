"""The pixel cache: images decoded once, stored as uint8, memory-mapped afterwards.

$BAYESNCL_CACHE (or ~/.cache/bayesncl) holds KEY/pixels.npy and KEY/meta.json; KEY hashes `Square`
and the names, sizes and times of the files. KEY.partial is being built, under one of 256 locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from filelock import FileLock

from bayesncl.data.archive import Entry, Undecodable
from bayesncl.data.decode import Square, decode
from bayesncl.data.images import Progress, track
from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.io import cache_folder, npy_header, write_atomic

VERSION = 2  # increase it when decode() gives other pixels
THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes outside the interpreter lock

A = TypeVar("A")
B = TypeVar("B")
Failures = list[tuple[int, str]]  # index of an entry and why it could not be decoded


def decode_files(
    entries: Sequence[Entry], square: Square, *, what: str, strict: bool = False,
    others: Sequence[str] = (), progress: Progress | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Decode image files, or read them from the cache; `what` names the dataset in messages.

    Returns pixels, uint8 [M, 3, crop, crop], memory-mapped, and the index of each image among the
    entries, int64 [M]. A broken file raises InputError if `strict`; otherwise it is skipped, and a
    warning counts it with the `others`, names of files that are not images.
    """
    with as_input_error(f"cannot use the cache {cache_folder()} (set BAYESNCL_CACHE)"):
        folder = cache_folder() / _key(entries, square)
        found = _open(folder)
        if found is None:
            (folder.parent / "locks").mkdir(parents=True, exist_ok=True)
            with FileLock(folder.parent / "locks" / folder.name[:2]):
                found = _open(folder) or _build(folder, entries, square, progress)
    pixels, failures = found
    reasons = ", ".join(f"{printable(entries[i].name)} ({why})" for i, why in failures[:3])
    if failures and strict:
        count = f"{len(failures)} of {len(entries)} files"
        raise InputError(f"{what}: {count} cannot be decoded: {reasons}")
    if failures or others:
        kinds = count_suffixes(others) + [f"{len(failures)} broken"] * bool(failures)
        count = f"skipped files: {len(failures) + len(others)} ({', '.join(kinds)})"
        warnings.warn(f"{what}: {count}, e.g. {reasons or printable(others[0])}", stacklevel=2)
    if not len(pixels):
        raise InputError(f"{what}: none of the {len(entries)} files could be decoded")
    return pixels, np.delete(np.arange(len(entries)), [i for i, _ in failures])


def count_suffixes(names: Sequence[str]) -> list[str]:
    """Number of files of the most common kinds: ``3 .txt``, ``1 without a suffix``."""
    suffixes = [printable(Path(name).suffix.lower(), 12) for name in names]
    common = Counter(suffix or "without a suffix" for suffix in suffixes).most_common(5)
    return [f"{count} {suffix}" for suffix, count in common]


def _key(entries: Sequence[Entry], square: Square) -> str:
    digest = hashlib.blake2b(repr((VERSION, square)).encode(), digest_size=20)
    stats: dict[Path, list[int]] = {}
    for entry in entries:
        if entry.path not in stats:
            s = os.stat(entry.path)  # nobody can set the ctime back
            stats[entry.path] = [s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]
        record = (entry.name, entry.offset, entry.size, stats[entry.path])
        digest.update(repr(record).encode())
    return digest.hexdigest()


def _build(
    folder: Path, entries: Sequence[Entry], square: Square, progress: Progress | None
) -> tuple[np.ndarray, Failures]:
    """Decode into FOLDER.partial, then rename it, so that FOLDER is complete or absent."""
    unfinished = folder.with_name(f"{folder.name}.partial")
    for path in (unfinished, folder):  # left by a killed process; damaged
        shutil.rmtree(path, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    failures: Failures = []
    read_errors = False
    read = partial(read_entry, read=partial(decode, square=square))
    try:
        # Plain writes: a full disk is an OSError here, but a bus error in a writable memory map.
        with open(unfinished / "pixels.npy", "wb") as file:
            shape = (3, square.crop, square.crop)
            file.write(npy_header((len(entries), *shape), "|u1"))
            images = track(map_in_threads(read, entries), len(entries), "decoding images", progress)
            for i, image in enumerate(images):
                if isinstance(image, Exception):
                    failures.append((i, printable(str(getattr(image, "strerror", None) or image))))
                    read_errors |= isinstance(image, OSError)
                else:
                    file.write(image.tobytes())
            file.seek(0)
            file.write(npy_header((len(entries) - len(failures), *shape), "|u1"))
            file.flush()
            os.fsync(file.fileno())
        write_atomic(unfinished / "meta.json", json.dumps({"bad": failures}))
        pixels = np.load(unfinished / "pixels.npy", mmap_mode="r", allow_pickle=False)
        if not read_errors:  # they may pass: decode again next time; the map outlives its file
            os.rename(unfinished, folder)
        return pixels, failures
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _open(folder: Path) -> tuple[np.ndarray, Failures] | None:
    """A finished cache; None if it is absent or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        failures = [(int(i), str(why)) for i, why in meta["bad"]]
        return np.load(folder / "pixels.npy", mmap_mode="r", allow_pickle=False), failures
    except Exception:  # whatever is wrong with it, it can be built again
        return None


def read_entry(entry: Entry, read: Callable[[bytes], A]) -> A | Undecodable | OSError:
    """`read(bytes)` of an image file, or why it cannot be read or decoded."""
    try:
        return read(entry.read())
    except (Undecodable, OSError) as error:
        return error


def map_in_threads(
    function: Callable[[A], B], items: Iterable[A], ahead: int = 16 * THREADS,
    threads: int = THREADS,
) -> Iterator[B]:  # fmt: skip
    """`map` in order by a few threads, at most `ahead` items ahead."""
    pool = ThreadPoolExecutor(threads)
    tasks: deque[Future[B]] = deque()
    try:
        for item in items:
            tasks.append(pool.submit(function, item))
            if len(tasks) > ahead:
                yield tasks.popleft().result()
        while tasks:
            yield tasks.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)

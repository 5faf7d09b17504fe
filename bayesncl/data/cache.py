"""Images decoded once, kept on disk as uint8, memory-mapped after.

The cache folder ($BAYESNCL_CACHE, or ~/.cache/bayesncl) holds

    KEY/pixels.npy KEY/meta.json   decoded images; KEY is a hash of the files' bytes and of the settings
    .KEY.*.partial                 one being built; renamed to KEY when complete
    locks/                         a builder holds the lock of its key, so that a second one waits and uses the result;
                                   256 locks serve all keys, so they do not pile up
    seen/                          file sizes and times -> KEY, which saves reading every file again
    compiled/                      what torch compiled, see `graph.keep_compiled`, and bytecode, see `__main__`
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..arrays import DAMAGE, crc32, npy_header
from ..errors import InputError, or_refuse, printable
from ..files import cache_folder, sweep, temporary_beside, write_atomic
from .archive import Entry
from .decode import MOST_BYTES, Square, Undecodable, decode
from .images import Progress, counted

VERSION = 1  # raise it when decode() gives other pixels
ALWAYS_CHECKED = 1 << 30  # larger caches are checked only where their file changed since it was written
THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes outside the interpreter lock
CHUNK = 8  # files a thread takes at a time, fewer where others would have none

A = TypeVar("A")
B = TypeVar("B")


def decoded(
    entries: Sequence[Entry], square: Square, *, what: str, strict: bool = False, others: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Decode image files, or find them decoded; `what` names the data set in messages.

    A file that cannot be decoded is an error if `strict`; otherwise it is skipped, and a warning counts it with the
    `others`, names of files beside them that are no images we read.

    Returns pixels, uint8 [M, 3, square.crop, square.crop], memory-mapped, and kept, int64 [M], ascending: pixels[i] is
    the image of entries[kept[i]].
    """
    with or_refuse(f"cannot keep decoded images in {cache_folder()} (BAYESNCL_CACHE names another folder)"):
        pixels, bad = _find_or_build(entries, square, progress)
    if bad and strict:
        raise InputError(f"{what}: {len(bad)} of {len(entries)} files cannot be decoded: {_named(entries, bad)}")
    if bad or others:
        counts = ", ".join(count_kinds(others) + [f"{len(bad)} broken"] * bool(bad))
        names = _named(entries, bad) or printable(others[0])
        total = len(bad) + len(others)
        files = "file" if total == 1 else "files"
        warnings.warn(f"{what}: {total} {files} skipped: {counts}, e.g. {names}", stacklevel=2)
    if not len(pixels):
        raise InputError(f"{what}: none of the {len(entries)} files could be decoded")
    return pixels, np.delete(np.arange(len(entries)), [i for i, _ in bad])


def count_kinds(names: Sequence[str]) -> list[str]:
    """How many files there are of the commonest kinds: ``3 .txt``, ``1 without a suffix``."""
    kinds = Counter(printable(Path(name).suffix.lower(), 12) or "without a suffix" for name in names)
    return [f"{count} {kind}" for kind, count in kinds.most_common(5)]


def _named(entries: Sequence[Entry], bad: list[tuple[int, str]]) -> str:
    return ", ".join(f"{printable(entries[i].name)} ({printable(why)})" for i, why in bad[:3])


def _find_or_build(
    entries: Sequence[Entry], square: Square, progress: Progress | None
) -> tuple[np.ndarray, list[tuple[int, str]]]:
    root = cache_folder()
    for sub in ("locks", "seen"):
        (root / sub).mkdir(parents=True, exist_ok=True)
    seen = root / "seen" / _stat_key(entries, square)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        key = seen.read_text("ascii")
        if re.fullmatch("[0-9a-f]{40}", key) and (found := _open(root / key)) is not None:
            return found
    key = _content_key(entries, square, progress)
    with open(root / "locks" / key[:2], "ab") as lock:  # which empties nothing, should it be a link
        with contextlib.suppress(OSError):  # a file system without locks: both may build, the first to finish wins
            fcntl.flock(lock, fcntl.LOCK_EX)
            _remove_dead(root, key[:2])
        for place in (root, root / "seen"):
            sweep(place, below=False)
        found = _open(root / key, clear=True)
        if found is None:
            _build(root, key, entries, square, progress)
            found = _open(root / key)
    if found is None:
        raise OSError(f"{key} cannot be read back")
    write_atomic(seen, key)
    return found


def _remove_dead(root: Path, prefix: str) -> None:
    """Remove half-built caches, of older versions too, whose lock this process holds: nobody is building them.

    `sweep` needs locks on folders, which NFS does not have.
    """
    half_built = re.compile(rf"\.?{prefix}[0-9a-f]{{38}}\..+\.(partial|tmp)")
    for name in filter(half_built.fullmatch, os.listdir(root)):
        shutil.rmtree(root / name, ignore_errors=True)


def _stat_key(entries: Sequence[Entry], square: Square) -> str:
    """Hash of where the files are and of their sizes and times (ctime too: nobody can set that back)."""
    digest = hashlib.blake2b(repr((VERSION, square)).encode(), digest_size=20)
    stats: dict[Path, list[int]] = {}
    for entry in entries:
        if entry.path not in stats:
            with contextlib.suppress(OSError):
                stats[entry.path] = _stat(entry.path)
        digest.update(repr((os.path.abspath(entry.path), entry.offset, entry.size, stats.get(entry.path))).encode())
    return digest.hexdigest()


def _content_key(entries: Sequence[Entry], square: Square, progress: Progress | None) -> str:
    def content(entry: Entry) -> bytes:
        try:
            return hashlib.blake2b(entry.read(MOST_BYTES), digest_size=16).digest()
        except OSError as error:
            return f"unreadable {error.errno}".encode()

    digest = hashlib.blake2b(repr((VERSION, square)).encode(), digest_size=20)
    for part in counted(in_threads(content, entries), len(entries), "reading files", progress):
        digest.update(len(part).to_bytes(1, "big") + part)
    return digest.hexdigest()


def _build(root: Path, key: str, entries: Sequence[Entry], square: Square, progress: Progress | None) -> None:
    """Decode into a temporary folder, then rename it: KEY is complete or absent."""
    shape = (3, square.crop, square.crop)
    bad: list[tuple[int, str]] = []
    crc = 0
    with temporary_beside(root / key, folder=True, mode=0o700) as temporary:
        # Plain writes, not a writable memory map: a full disk is then an error message instead of a bus error.
        with open(temporary / "pixels.npy", "wb") as file:
            file.write(npy_header((len(entries), *shape), "|u1"))
            images = in_threads(lambda entry: read_entry(entry, decode, square), entries)
            for i, image in enumerate(counted(images, len(entries), "decoding images", progress)):
                if isinstance(image, str):
                    bad.append((i, image))
                else:
                    row = image.tobytes()
                    crc = zlib.crc32(row, crc)
                    file.write(row)
            file.seek(0)
            file.write(npy_header((len(entries) - len(bad), *shape), "|u1"))
            file.flush()
            os.fsync(file.fileno())
        meta = {"version": VERSION, "crc32": crc, "bad": bad, "stat": _stat(temporary / "pixels.npy")}
        write_atomic(temporary / "meta.json", json.dumps(meta))
        try:
            os.rename(temporary, root / key)
        except OSError:  # where locks do not work somebody may have been faster; a folder is never renamed over
            if not (root / key).is_dir():
                raise


def _open(path: Path, *, clear: bool = False) -> tuple[np.ndarray, list[tuple[int, str]]] | None:
    """A finished cache, or None where it is absent or damaged; `clear` removes a damaged one (only under its lock)."""
    if not path.is_dir():
        return None
    try:
        meta = json.loads((path / "meta.json").read_bytes())
        file = path / "pixels.npy"
        pixels = np.load(file, mmap_mode="r", allow_pickle=False)
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ValueError("no images")
        to_check = file.stat().st_size <= ALWAYS_CHECKED or meta["stat"] != _stat(file)
        if to_check and crc32(pixels) != meta["crc32"]:
            raise ValueError("checksum")
        return pixels, [(int(i), str(why)) for i, why in meta["bad"]]
    except DAMAGE:
        if clear:
            warnings.warn(f"the cache {path} is damaged and is built again", stacklevel=2)
            shutil.rmtree(path)
        return None


def _stat(path: Path) -> list[int]:
    s = path.stat()
    return [s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]


def read_entry(entry: Entry, read: Callable[..., A], *options: Any) -> A | str:
    """What `read` makes of the bytes of an image file, or why it cannot be used."""
    try:
        return read(entry.read(MOST_BYTES), *options)
    except Undecodable as why:
        return str(why)[:200]
    except OSError as why:
        return why.strerror or str(why)


def in_threads(function: Callable[[A], B], items: Sequence[A], ahead: int = 0) -> Iterator[B]:
    """`map` in order, by a few threads, `ahead` of the reader or not far: memory stays bounded."""
    chunk = min(CHUNK, max(1, len(items) // THREADS))
    with ThreadPoolExecutor(THREADS) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on damaged metadata
        parts: deque[Future[list[B]]] = deque()
        try:
            for start in range(0, len(items), chunk):
                parts.append(pool.submit(lambda part: [function(item) for item in part], items[start : start + chunk]))
                if len(parts) > max(2 * THREADS, ahead // chunk):
                    yield from parts.popleft().result()
            while parts:
                yield from parts.popleft().result()
        finally:
            for future in parts:
                future.cancel()

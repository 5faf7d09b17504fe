"""A pile of photos: found, looked at, and embedded by an encoder, each once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .arrays import LABELS, NAMES, find_column, read_arrays
from .codes_folder import CodesFolder, mark
from .data.archive import Entry
from .data.cache import in_threads, read_entry
from .data.decode import SUFFIXES
from .data.folder import classes_of, existing_folder, scan, split_folders
from .data.images import Progress
from .encoders import PhotoEncoder
from .errors import InputError, or_refuse, printable
from .files import is_codes, read_regular, write_atomic
from .labels import find_labels

BATCH = {"cpu": 16, "cuda": 256}
BLOCK = 4096  # rows copied at a time
MOST_INDEX = 1 << 30  # bytes of the lines of a log

Line = tuple[str, int, int, str | None, int]  # of the log


@dataclass(frozen=True)
class Pile:
    """Photos at and below a folder."""

    entries: list[Entry]  # the image files, sorted by name
    names: list[str]  # of each
    marks: list[tuple[int, int]]  # size and time of each
    test: np.ndarray | None  # which of them lie in a folder `test` or `val` beside `train`, bool [N]; None without such
    others: list[str]  # names of files that are no images we read
    classes: list[str] | None  # the class of each, by its subfolder; None where photos lie in no subfolders

    def __len__(self) -> int:
        return len(self.entries)


def photo_labels(pile: Pile, table: Path | None) -> list[str] | None:
    """A class for each photo: by its subfolder, or by its name in a table."""
    if table is None:
        return pile.classes
    found = read_arrays(table, (*LABELS, *NAMES))
    names, given = find_column(found, NAMES), find_column(found, LABELS)
    if names is None or given is None or names.ndim != 1 or names.shape != given.shape:
        raise InputError(f"{table}: labels of photos need a table with the columns name and label")
    texts = given.astype(str)
    return find_labels(table, pile.names, names[texts != ""], texts[texts != ""], "photos")


def find_photos(root: Path, out: Path) -> Pile:
    """The photos of a folder; what lies in `out`, which `fit` may not have written yet, is left out."""
    root = existing_folder(str(root))
    train, test = split_folders(root)
    entries: list[Entry] = []
    others: list[str] = []
    here = os.path.realpath(out) + os.sep

    def ours(path: Path) -> bool:
        return f"{os.path.realpath(path)}{os.sep}".startswith(here)

    for folder in filter(None, (train, test)):
        prefix = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
        images, rest = scan(folder)
        entries += [Entry(prefix + entry.name, entry.path) for entry in images if not ours(entry.path)]
        others += [prefix + name for name in rest if not ours(folder / name)]
    if test is not None:
        beside = [item for item in root.iterdir() if item.is_dir() and item not in (train, test)]
        left = [item.name for item in beside if item.name[0] != "." and not is_codes(item) and not ours(item)]
        if left:
            some = ", ".join(map(printable, sorted(left)[:3])) + (", ..." if len(left) > 3 else "")
            warnings.warn(f"only train and {test.name} are read, not {some}", stacklevel=2)
    entries.sort(key=lambda entry: entry.name)
    if not entries:
        seen = f"; there are {len(others)} other files, e.g. {printable(others[0])}" if others else ", it is empty"
        raise InputError(f"{printable(str(root), 300)}: no photos in it (looked for {' '.join(SUFFIXES)}){seen}")
    tested = np.array([entry.path.is_relative_to(test) for entry in entries]) if test else None
    names = [entry.name for entry in entries]
    return Pile(entries, names, [mark(entry.path) for entry in entries], tested, others, classes_of(names, root))


class Log:
    """Photos embedded so far: rows of float32 in one file, a line for each in another; both only grow.

    A kill may cut the last row or line short: what is not whole in both does not count, nor what follows. A line is
    [name, size, time, why, checksum of the row], `why` null unless the photo cannot be used (its row is then zero).
    """

    def __init__(self, folder: CodesFolder, encoder: PhotoEncoder) -> None:
        self.rows_file, self.index_file = folder.inside(folder.log), folder.inside(folder.log_index)
        self.head = json.dumps({"encoder": encoder.fingerprint, "features": encoder.features, "checksum": "crc32"})
        self.features = encoder.features
        self.lines = list(self._read())

    def _read(self) -> Iterator[Line]:
        with contextlib.suppress(OSError, ValueError, TypeError, OverflowError, RecursionError):
            head, *lines = read_regular(self.index_file, MOST_INDEX).decode().split("\n")[:-1] or [""]
            with open(self.rows_file, "rb") as rows:
                for line in lines if head == self.head else ():
                    row = rows.read(4 * self.features)
                    name, length, time, why, crc = json.loads(line)
                    if len(row) < 4 * self.features or zlib.crc32(row) != crc:
                        return
                    yield str(name), int(length), int(time), None if why is None else str(why), int(crc)

    def begin(self) -> None:
        """Cut both files to what counts, ready to grow."""
        text = "\n".join([self.head, *(json.dumps(line) for line in self.lines)]) + "\n"
        write_atomic(self.index_file, text)  # the rows are as long as it says, or longer
        with open(self.rows_file, "ab") as file:
            file.truncate(4 * self.features * len(self.lines))

    def append(self, rows: np.ndarray, photos: Sequence[tuple[str, int, int, str | None]]) -> None:
        """Add photos, rows first."""
        parts = [row.tobytes() for row in np.ascontiguousarray(rows, "<f4")]
        lines = [(*photo, zlib.crc32(part)) for photo, part in zip(photos, parts)]
        with or_refuse(f"cannot write to {self.rows_file}"):
            with open(self.rows_file, "ab") as file:
                file.write(b"".join(parts))
            with open(self.index_file, "a") as index:
                index.write("".join(json.dumps(line) + "\n" for line in lines))
        self.lines += lines

    def rows(self) -> np.ndarray:
        """The rows [n, F], memory-mapped."""
        if not self.lines:
            return np.empty((0, self.features), np.float32)
        return np.memmap(self.rows_file, "<f4", "r", 0, (len(self.lines), self.features))

    def remove(self) -> None:
        """Drop both files."""
        self.index_file.unlink(missing_ok=True)
        self.rows_file.unlink(missing_ok=True)


class Embedded:
    """Embeddings of a pile, from those made before, from the log of a fit that was stopped, or new."""

    def __init__(self, pile: Pile, encoder: PhotoEncoder, folder: CodesFolder) -> None:
        self.pile, self.encoder = pile, encoder
        self.keys = [(name, *mark) for name, mark in zip(pile.names, pile.marks)]
        self.log = Log(folder, encoder)
        self.before = np.empty((0, encoder.features), np.float32)
        self.known: dict[tuple[str, int, int], int | str] = {}  # a row of `before`, -1 - a row of the log, or why not
        self._remember(folder)
        self._remember_log()

    def _remember(self, folder: CodesFolder) -> None:
        """What an earlier fit with the same encoder left; damage is told, and embedded again."""
        if not folder.about_file.exists():
            return
        try:
            about = folder.about()
            if about.fingerprint != self.encoder.fingerprint:
                return
            rows, self.before = folder.rows(about), folder.embeddings(about)
        except InputError as error:
            warnings.warn(f"{str(error).partition(':')[0]}: photos are embedded again", stacklevel=3)
            return
        self.known |= {(name, *mark): i for i, (name, mark) in enumerate(zip(rows.names, rows.marks or ()))}
        self.known |= {(name, size, time): why for name, size, time, why in rows.broken}

    def _remember_log(self) -> None:
        for i, (name, size, time, why, _) in enumerate(self.log.lines):
            self.known[name, size, time] = -1 - i if why is None else why

    @property
    def todo(self) -> list[int]:
        """The photos that have no embedding yet."""
        return [i for i, key in enumerate(self.keys) if key not in self.known]

    def embed(self, todo: Sequence[int], progress: Progress | None = None) -> None:
        """Embed these photos and log them."""
        if not todo:
            return
        self.log.begin()
        done = 0
        for rows, reasons in embed_entries([self.pile.entries[i] for i in todo], self.encoder):
            batch = todo[done : done + len(rows)]
            self.log.append(rows, [(*self.keys[i], why) for i, why in zip(batch, reasons)])
            done += len(rows)
            if progress:
                progress(done, len(todo), "embedding photos")
        self._remember_log()

    def usable(self) -> tuple[np.ndarray, list[tuple[str, int, int, str]]]:
        """Numbers of the photos that have an embedding, and [name, size, time, why] of those that cannot have one."""
        found = [self.known[key] for key in self.keys]
        broken = [(*key, why) for key, why in zip(self.keys, found) if isinstance(why, str)]
        return np.array([i for i, row in enumerate(found) if not isinstance(row, str)], np.int64), broken

    def blocks(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Embeddings of these photos, a block at a time."""
        log, places = self.log.rows(), np.array([self.known[self.keys[i]] for i in order], np.int64)
        for start in range(0, len(places), BLOCK):
            part = places[start : start + BLOCK]
            block = np.empty((len(part), self.encoder.features), np.float32)
            block[part >= 0] = self.before[part[part >= 0]]
            block[part < 0] = log[-1 - part[part < 0]]
            yield block


def embed_entries(entries: Sequence[Entry], encoder: PhotoEncoder) -> Iterator[tuple[np.ndarray, list[str | None]]]:
    """Embeddings [n, F] of photos, batch after batch, and why one has none (its row is zero)."""
    size = BATCH.get(torch.device(encoder.device).type, BATCH["cpu"])
    photos = in_threads(lambda entry: read_entry(entry, encoder.read), entries, ahead=2 * size)
    while prepared := list(itertools.islice(photos, size)):
        reasons = [each if isinstance(each, str) else None for each in prepared]
        good = [each for each in prepared if not isinstance(each, str)]
        rows = np.zeros((len(prepared), encoder.features), np.float32)
        if good:
            with or_refuse(f"encoder {encoder.name} prepares photos in different shapes", ValueError):
                batch = np.stack(good)
            rows[[why is None for why in reasons]] = encoder.embed(batch)
        for j in np.flatnonzero(~np.isfinite(rows).all(1)):
            reasons[j], rows[j] = "its embedding is not finite", 0
        yield rows, reasons

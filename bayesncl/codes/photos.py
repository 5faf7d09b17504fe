"""Images of a folder, and their embeddings: each image is embedded once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bayesncl.codes.encoders import PhotoEncoder, same_signature
from bayesncl.codes.folder import CodesFolder, encoder_dict, file_stat
from bayesncl.data.archive import Entry
from bayesncl.data.cache import map_in_threads
from bayesncl.data.decode import SUFFIXES, Undecodable
from bayesncl.data.folder import existing_folder, folder_classes, scan, split_folders
from bayesncl.data.images import Progress
from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.inputs import LABELS, NAMES, find_column, find_labels, read_arrays
from bayesncl.io import is_codes, write_atomic

BATCH_SIZE = {"cpu": 16, "cuda": 256}
ROWS_PER_BLOCK = 4096

Key = tuple[str, int, int]  # name, size and time of an image; size and time are 0 for a dataset
Reason = str | OSError | None  # why an image has no embedding: undecodable, unreadable, or it has
Batches = Iterable[tuple[np.ndarray, list[Reason]]]  # embeddings [n, F]; zero rows where none


@dataclass(frozen=True)
class PhotoSet:
    """The N images at and below a folder, sorted by name."""

    entries: list[Entry]
    names: list[str]
    stats: list[tuple[int, int]]  # size and time
    test: np.ndarray | None  # bool [N]: in `test` or `val` beside `train`; None without these
    others: list[str]  # names of other files
    classes: list[str] | None  # by subfolder; None without subfolders

    def __len__(self) -> int:
        return len(self.entries)


def find_photos(root: Path, out: Path) -> PhotoSet:
    """The images of a folder, without those in `out`, the folder that `fit` writes."""
    root = existing_folder(str(root))
    train, test = split_folders(root)
    entries: list[Entry] = []
    others: list[str] = []
    own = os.path.realpath(out) + os.sep

    def in_out(path: Path) -> bool:
        return f"{os.path.realpath(path)}{os.sep}".startswith(own)

    for folder in filter(None, (train, test)):
        prefix = "" if folder == root else f"{folder.relative_to(root).as_posix()}/"
        images, rest = scan(folder)
        entries += [Entry(prefix + e.name, e.path) for e in images if not in_out(e.path)]
        others += [prefix + name for name in rest if not in_out(folder / name)]
    if test is not None:
        beside = [item for item in root.iterdir() if item.is_dir() and item not in (train, test)]
        left = [p.name for p in beside if p.name[0] != "." and not is_codes(p) and not in_out(p)]
        if left:
            some = ", ".join(map(printable, sorted(left)[:3])) + (", ..." if len(left) > 3 else "")
            warnings.warn(f"only train and {test.name} are used, not {some}", stacklevel=2)
    entries.sort(key=lambda entry: entry.name)
    if not entries:
        found = f"{len(others)} other files, e.g. {printable(others[0])}" if others else "nothing"
        wanted = f"looked for {' '.join(SUFFIXES)}, found {found}"
        raise InputError(f"{printable(str(root), 300)}: no photos ({wanted})")
    names = [entry.name for entry in entries]
    in_test = np.array([e.path.is_relative_to(test) for e in entries]) if test else None
    stats = [file_stat(entry.path) for entry in entries]
    return PhotoSet(entries, names, stats, in_test, others, folder_classes(names, root))


def photo_labels(photos: PhotoSet, table: Path | None) -> list[str] | None:
    """The class of each image: by its subfolder, or by its name in a table."""
    if table is None:
        return photos.classes
    arrays = read_arrays(table, (*LABELS, *NAMES))
    names, given = find_column(arrays, NAMES), find_column(arrays, LABELS)
    if names is None or given is None or names.ndim != 1 or names.shape != given.shape:
        raise InputError(f"{table}: expected a table with the columns name and label")
    texts = given.astype(str)
    return find_labels(table, photos.names, names[texts != ""], texts[texts != ""], "photos")


class Log:
    """Embeddings so far: float32 rows in one file and a JSON line per row in another.

    Both files only grow. After a kill the last row or line may be incomplete: reading stops at the
    first that is not intact. A line is [name, size, time, reason, checksum of the row]; `reason`
    is null unless the image cannot be decoded.
    """

    def __init__(self, folder: CodesFolder, encoder: PhotoEncoder, stamp: str = "") -> None:
        self.rows_file, self.index_file = folder.log, folder.log_index
        self.features, self.signature = encoder.features, encoder.signature
        self.head = {"signature": self.signature, "features": self.features, "stamp": stamp}
        self.lines: list[tuple[str, int, int, str | None, int]] = []

    def read(self) -> None:
        """Find what an earlier fit with the same encoder left."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            head, *lines = self.index_file.read_text().split("\n")[:-1]
            old = json.loads(head)
            same = same_signature(old["signature"], self.signature)
            if not same or old | {"signature": self.signature} != self.head:
                return
            with open(self.rows_file, "rb") as rows:
                for line in lines:
                    row = rows.read(4 * self.features)
                    name, size, time, why, crc = json.loads(line)
                    if len(row) < 4 * self.features or zlib.crc32(row) != crc:
                        return
                    self.lines.append((str(name), int(size), int(time), why, crc))

    def start(self) -> None:
        """Cut both files to the intact part, ready to append."""
        lines = [json.dumps(line) for line in (self.head, *self.lines)]
        write_atomic(self.index_file, "\n".join(lines) + "\n")
        with open(self.rows_file, "ab") as file:
            file.truncate(4 * self.features * len(self.lines))

    def append(self, rows: np.ndarray, keys: Sequence[Key], reasons: Sequence[str | None]) -> None:
        """Add images, rows first."""
        parts = [row.tobytes() for row in np.ascontiguousarray(rows, "<f4")]
        lines = [(*k, why, zlib.crc32(part)) for k, why, part in zip(keys, reasons, parts)]
        with as_input_error(f"cannot write to {self.rows_file}"):
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
        """Delete both files."""
        self.index_file.unlink(missing_ok=True)
        self.rows_file.unlink(missing_ok=True)


class EmbeddingCache:
    """Embeddings of images: from earlier fits, from the log of a killed fit, or new.

    Only embeddings by an encoder with the same signature count, of images with the same name, size
    and time, and of a dataset with the same `stamp`.
    """

    def __init__(
        self, keys: list[Key], encoder: PhotoEncoder, folder: CodesFolder, stamp: str = "",
        fresh: bool = False,
    ) -> None:  # fmt: skip
        self.keys, self.encoder = keys, encoder
        self.arrays: list[np.ndarray] = []
        self.found: dict[Key, tuple[int, int] | str | OSError] = {}  # (array, row), or why not
        self.log = Log(folder, encoder, stamp)
        if not fresh:
            self._add_fit(folder, stamp)
            self._add_fit(folder.staged, stamp)
            self.log.read()
        self._add_log()

    def _add_fit(self, folder: CodesFolder, stamp: str) -> None:
        if not folder.about_file.exists():
            return
        try:
            about = folder.about()
            if not about.same_encoder(encoder_dict(self.encoder)) or about.stamp != stamp:
                return
            rows, x = folder.rows(about), folder.embeddings(about)
        except InputError as error:
            warnings.warn(f"embedding again, since {error}", stacklevel=4)
            return
        if x.shape[1] != self.encoder.features:
            return
        array, stats = len(self.arrays), rows.stats or [(0, 0)] * len(rows)
        self.arrays.append(x)
        keys = [(name, *stat) for name, stat in zip(rows.names, stats)]
        self.found |= {key: (array, i) for i, key in enumerate(keys)}
        self.found |= {(name, size, time): why for name, size, time, why in rows.broken}

    def _add_log(self) -> None:
        array = len(self.arrays)
        for i, (name, size, time, why, _) in enumerate(self.log.lines):
            self.found[name, size, time] = (array, i) if why is None else why

    @property
    def missing(self) -> list[int]:
        """Images without an embedding."""
        return [i for i, key in enumerate(self.keys) if key not in self.found]

    def embed(self, missing: Sequence[int], batches: Batches, progress: Progress) -> None:
        """Take the embeddings of the missing images, batch by batch, and log them.

        A file that cannot be read now may be readable later, so only undecodable ones are logged.
        """
        done = 0
        for rows, reasons in batches:
            if not done:
                self.log.start()
            keys = [self.keys[i] for i in missing[done : done + len(rows)]]
            unread = {key: why for key, why in zip(keys, reasons) if isinstance(why, OSError)}
            self.found |= unread
            known = [i for i, key in enumerate(keys) if key not in unread]
            told = [why if isinstance(why, str) else None for why in reasons]
            self.log.append(rows[known], [keys[i] for i in known], [told[i] for i in known])
            done += len(rows)
            progress(done, len(missing), "embedding images")
        self._add_log()

    def usable(self) -> np.ndarray:
        """Indices of the images that have an embedding."""
        found = [isinstance(self.found[key], tuple) for key in self.keys]
        return np.flatnonzero(found)

    def failures(self) -> list[tuple[str, int, int, str | OSError]]:
        """Name, size, time and reason of the images that have none."""
        found = [(*key, self.found[key]) for key in self.keys]
        return [each for each in found if not isinstance(each[3], tuple)]  # type: ignore[misc]

    def blocks(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Embeddings of images in this order, block by block."""
        arrays = [*self.arrays, self.log.rows()]
        where = np.array([self.found[self.keys[i]] for i in order], np.int64)  # [n, 2]
        for start in range(0, len(where), ROWS_PER_BLOCK):
            array, row = where[start : start + ROWS_PER_BLOCK].T
            block = np.empty((len(row), self.encoder.features), np.float32)
            for a in np.unique(array):
                block[array == a] = arrays[a][row[array == a]]
            yield block


def embed_entries(entries: Sequence[Entry], encoder: PhotoEncoder) -> Batches:
    """Embeddings of image files, batch by batch, and the reasons where there are none."""
    size = BATCH_SIZE.get(torch.device(encoder.device).type, BATCH_SIZE["cpu"])

    def read(entry: Entry) -> np.ndarray | str | OSError:
        try:
            return encoder.read(entry.read())
        except Undecodable as why:
            return str(why)[:200]
        except OSError as error:
            return error

    images = map_in_threads(read, entries, ahead=2 * size)
    while batch := list(itertools.islice(images, size)):
        reasons: list[Reason] = [None if isinstance(x, np.ndarray) else x for x in batch]
        good = [x for x in batch if isinstance(x, np.ndarray)]
        rows = np.zeros((len(batch), encoder.features), np.float32)
        if good:
            with as_input_error(f"encoder {encoder.name} prepares images unequally", ValueError):
                stacked = np.stack(good)
            rows[[why is None for why in reasons]] = encoder.embed(stacked)
        for i in np.flatnonzero(~np.isfinite(rows).all(1)):
            reasons[i], rows[i] = "its embedding is not finite", 0
        yield rows, reasons

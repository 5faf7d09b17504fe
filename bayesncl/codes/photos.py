"""Images of a folder, and their embeddings: each image is embedded once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bayesncl.codes.encoders import PhotoEncoder, same_signature
from bayesncl.codes.folder import CodesFolder, encoder_dict, file_stat
from bayesncl.data.cache import Entry, map_in_threads
from bayesncl.data.decode import SUFFIXES, Undecodable
from bayesncl.data.folder import existing_folder, folder_classes, scan, split_folders
from bayesncl.data.images import Progress
from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.inputs import LABELS, NAMES, find_column, find_labels, read_arrays
from bayesncl.io import is_codes, write_saved

BATCH_SIZE = {"cpu": 16, "cuda": 256}
ROWS_PER_BLOCK = 4096
LOG_SECONDS = 5.0  # of work that a kill may lose

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


class EmbeddingCache:
    """Embeddings of images: from an earlier fit, from the log of a killed fit, or new.

    Only embeddings by an encoder with the same signature count, of images with the same name, size
    and time, and of a dataset with the same `stamp`. The log is a folder with one file for every
    few seconds of work.
    """

    def __init__(
        self, keys: list[Key], encoder: PhotoEncoder, folder: CodesFolder, stamp: str = ""
    ) -> None:
        self.keys, self.encoder, self.log, self.stamp = keys, encoder, folder.log, stamp
        self.arrays: list[np.ndarray] = []
        self.found: dict[Key, tuple[int, int] | str | OSError] = {}  # (array, row), or why not
        if folder.about_file.exists():
            self._add_fit(folder)
        for path in sorted(self.log.glob("*.npz")):
            with contextlib.suppress(Exception):  # NumPy raises many types over damaged files
                self._add_part(path)

    def _add(self, x: np.ndarray, keys: Iterable[Key], reasons: Iterable[Reason]) -> None:
        for i, (key, why) in enumerate(zip(keys, reasons)):
            self.found[key] = (len(self.arrays), i) if why is None else why
        self.arrays.append(x)

    def _add_fit(self, folder: CodesFolder) -> None:
        try:
            about = folder.about()
            if not about.same_encoder(encoder_dict(self.encoder)) or about.stamp != self.stamp:
                return
            rows, x = folder.rows(about), folder.embeddings(about)
        except InputError as error:
            warnings.warn(f"embedding again, since {error}", stacklevel=4)
            return
        keys = [(name, *stat) for name, stat in zip(rows.names, rows.stats or [(0, 0)] * len(rows))]
        self._add(x, keys, [None] * len(rows))
        self.found |= {(name, size, time): why for name, size, time, why in rows.broken}

    def _add_part(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as part:
            signature, stamp, keys, reasons = json.loads(str(part["about"]))
            if stamp == self.stamp and same_signature(signature, self.encoder.signature):
                self._add(part["rows"], map(tuple, keys), reasons)

    def _write_part(self, rows: list[np.ndarray], keys: list[Key], reasons: list[Reason]) -> None:
        """Log a part. A file that cannot be read now may be readable later: it is left out."""
        good = [i for i, why in enumerate(reasons) if not isinstance(why, OSError)]
        signed = [self.encoder.signature, self.stamp]
        about = json.dumps([*signed, [keys[i] for i in good], [reasons[i] for i in good]])
        with as_input_error(f"cannot write to {self.log}"):
            self.log.mkdir(exist_ok=True)
            path = self.log / f"{len(list(self.log.iterdir())):06}.npz"
            write_saved(path, np.savez, about=about, rows=np.concatenate(rows)[good])

    @property
    def missing(self) -> list[int]:
        """Images without an embedding."""
        return [i for i, key in enumerate(self.keys) if key not in self.found]

    def embed(self, missing: Sequence[int], batches: Batches, progress: Progress) -> None:
        """Take the embeddings of the missing images, batch by batch, and log them."""
        done = logged = 0
        parts: list[np.ndarray] = []
        reasons: list[Reason] = []
        began = time.monotonic()
        for rows, why in batches:
            parts.append(rows)
            reasons += why
            done += len(rows)
            if time.monotonic() - began > LOG_SECONDS or done == len(missing):
                keys = [self.keys[i] for i in missing[logged:done]]
                self._write_part(parts, keys, reasons)
                self._add(np.concatenate(parts), keys, reasons)
                parts, reasons, logged, began = [], [], done, time.monotonic()
            progress(done, len(missing), "embedding images")

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
        where = np.array([self.found[self.keys[i]] for i in order], np.int64)  # [n, 2]
        for start in range(0, len(where), ROWS_PER_BLOCK):
            array, row = where[start : start + ROWS_PER_BLOCK].T
            block = np.empty((len(row), self.encoder.features), np.float32)
            for a in np.unique(array):
                block[array == a] = self.arrays[a][row[array == a]]
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

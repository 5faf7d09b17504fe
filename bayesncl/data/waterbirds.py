"""Waterbirds: birds on land or water, in the layout of the official release.

metadata.csv names each image with its bird (y), its split (0 train, 1 val, 2 test) and its background (place). The
root is the folder that holds it, or an uncompressed .tar. Beside it may lie swapped.csv, which names for each test
image the same bird on the other background.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable

import numpy as np

from .. import recipes
from ..errors import InputError, or_refuse, printable, shown
from . import Dataset
from .archive import Entry, members, safe_name
from .cache import decoded
from .decode import Square
from .folder import FOLDER, existing_folder, given_path
from .images import Images, Progress

BIRDS = ("landbird", "waterbird")
PLACES = ("land", "water")
SPLITS = {"train": "0", "test": "2", "val": "1"}
MOST_TABLE = 64 << 20  # bytes of a csv

Find = Callable[[str], Entry | None]  # from a name relative to the csv to where its bytes are
Table = list[dict[str, str]]


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; labels are the birds, backgrounds the places."""
    find, where = _open(data.root)
    rows = [row for row in _table(find, "metadata.csv", where) if row.get("split") == SPLITS[split]]
    if not rows:
        raise InputError(f"{where}: metadata.csv names no image of the {split} split ({SPLITS[split]})")
    return _images(data, rows, "img_filename", "place", find, where, progress)


def swapped(data: recipes.Data) -> Images:
    """The test split again, each bird on the other background: image i shows the bird of image i of the test split."""
    find, where = _open(data.root)
    test = [row for row in _table(find, "metadata.csv", where) if row.get("split") == SPLITS["test"]]
    other = {row.get("img_filename"): row for row in _table(find, "swapped.csv", where)}
    rows = []
    for row in test:
        swap = other.get(row.get("img_filename"))
        if swap is None:
            raise InputError(f"{where}: swapped.csv has no row for {printable(str(row.get('img_filename')))}")
        rows.append({**swap, "y": row.get("y", "")})
    return _images(data, rows, "swapped_filename", "swapped_place", find, where)


def swapped_if_there(data: recipes.Data) -> Images | None:
    """As `swapped`; None where the release does not hold those images."""
    try:
        return swapped(data)
    except InputError:
        return None


def _images(
    data: recipes.Data, rows: Table, name: str, place: str, find: Find, where: str, progress: Progress | None = None
) -> Images:
    entries = [_entry(row.get(name, ""), find, where) for row in rows]
    labels, backgrounds = (_binary(rows, column, where) for column in ("y", place))
    # A missing image would shift one split against its swapped twin, so every file must decode.
    pixels, _ = decoded(entries, Square(data.size, data.size), what=where, strict=True, progress=progress)
    return Images(pixels, labels, backgrounds, BIRDS, PLACES, tuple(entry.name for entry in entries))


def _open(root: str) -> tuple[Find, str]:
    path = given_path(root)
    if path.is_file():
        where = shown(path)
        if not path.name.endswith(".tar"):
            raise InputError(f"{where}: expected a folder or an uncompressed .tar (unpack a .tar.gz first)")
        entries, _ = members(path)
        tables = sorted((name for name in entries if name.split("/")[-1] == "metadata.csv"), key=len)
        prefix = tables[0].removesuffix("metadata.csv") if tables else ""
        return lambda name: entries.get(prefix + name), where
    path = existing_folder(root)
    return lambda name: Entry(name, path / name) if os.path.isfile(path / name) else None, shown(path)


def _table(find: Find, name: str, where: str) -> Table:
    entry = find(name)
    if entry is None:
        raise InputError(f"{where}: no {name} in it")
    with or_refuse(f"{where}: {name} cannot be read", OSError, UnicodeDecodeError, csv.Error):
        text = entry.read(MOST_TABLE).decode("utf-8-sig")
        return list(csv.DictReader(io.StringIO(text, newline="")))


def _entry(name: str | None, find: Find, where: str) -> Entry:
    safe = safe_name(name or "")
    if safe is None:
        raise InputError(f"{where}: image name {printable(name or '')!r} is empty or points outside the data set")
    entry = find(safe)
    if entry is None:
        raise InputError(f"{where}: {printable(safe)} is named in a csv but is not there")
    return entry


def _binary(rows: Table, column: str, where: str) -> np.ndarray:
    for row in rows:
        if row.get(column) not in ("0", "1"):
            raise InputError(f"{where}: column {column} holds {printable(str(row.get(column)))!r}, expected 0 or 1")
    return np.array([int(row[column]) for row in rows], np.int64)


WATERBIRDS = Dataset(
    name="waterbirds",
    title="Waterbirds",
    settings=FOLDER.settings,
    load=load,
    splits=tuple(SPLITS),
    counterfactual=swapped_if_there,
    second_label=True,
    classes=len(BIRDS),
)

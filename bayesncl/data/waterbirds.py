"""Waterbirds: birds on land or water, in the layout of the official release.

metadata.csv lists each image with its bird (y), its split (0 train, 1 val, 2 test) and its
background (place). The root is the folder that holds it. swapped.csv, if there, names for each test
image the same bird on the other background.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import numpy as np

from bayesncl import recipes
from bayesncl.data import Dataset
from bayesncl.data.archive import Entry
from bayesncl.data.cache import decode_files
from bayesncl.data.decode import Square
from bayesncl.data.folder import existing_folder, scan
from bayesncl.data.images import Images, Progress
from bayesncl.errors import InputError, as_input_error, printable, printable_path

BIRDS = ("landbird", "waterbird")
PLACES = ("land", "water")
SPLITS = {"train": "0", "test": "2", "val": "1"}

Cells = Sequence[str | None]
Files = dict[str, Entry]  # by name relative to metadata.csv


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; labels are the birds, backgrounds the places."""
    files, where = _open(data.root)
    rows = _read_split(files, split, where)
    if not rows:
        raise InputError(f"{where}: metadata.csv has no image of the {split} split")
    names, birds, places = ([row.get(c) for row in rows] for c in ("img_filename", "y", "place"))
    return _images(data, files, where, names, birds, places, progress)


def swapped(data: recipes.Data) -> Images | None:
    """The test split with each bird on the other background; image i shows the same bird.

    None if the release has no swapped.csv.
    """
    files, where = _open(data.root)
    if "swapped.csv" not in files:
        return None
    other = {row.get("img_filename"): row for row in _read_table(files, "swapped.csv", where)}
    rows = _read_split(files, "test", where)
    if missing := [row for row in rows if row.get("img_filename") not in other]:
        name = printable(str(missing[0].get("img_filename")))
        raise InputError(f"{where}: swapped.csv has no row for {name}")
    twins = [other[row["img_filename"]] for row in rows]
    names, places = ([row.get(c) for row in twins] for c in ("swapped_filename", "swapped_place"))
    return _images(data, files, where, names, [row.get("y") for row in rows], places)


def _images(
    data: recipes.Data, files: Files, where: str, names: Cells, birds: Cells, places: Cells,
    progress: Progress | None = None,
) -> Images:  # fmt: skip
    """The images of table columns that hold file name, bird and place."""
    if missing := [str(name) for name in names if name not in files]:
        raise InputError(f"{where}: no image {printable(missing[0])!r}")
    if wrong := [cell for cell in (*birds, *places) if cell not in ("0", "1")]:
        raise InputError(f"{where}: a label is {printable(str(wrong[0]))!r}, expected 0 or 1")
    entries = [files[str(name)] for name in names]
    # A missing image would shift the test split against its swapped twin: every file must decode.
    square = Square(data.size, data.size)
    pixels, _ = decode_files(entries, square, what=where, strict=True, progress=progress)
    y, backgrounds = (np.array(column).astype(np.int64) for column in (birds, places))
    return Images(pixels, y, backgrounds, BIRDS, PLACES, tuple(entry.name for entry in entries))


def _open(root: str) -> tuple[Files, str]:
    """The files of a release, and its path for messages."""
    folder = existing_folder(root)
    images, others = scan(folder)
    files = {entry.name: entry for entry in images}
    return files | {name: Entry(name, folder / name) for name in others}, printable_path(folder)


def _read_split(files: Files, split: str, where: str) -> list[dict[str, str]]:
    table = _read_table(files, "metadata.csv", where)
    return [row for row in table if row.get("split") == SPLITS[split]]


def _read_table(files: Files, name: str, where: str) -> list[dict[str, str]]:
    if name not in files:
        raise InputError(f"{where}: no {name}")
    with as_input_error(f"{where}: cannot read {name}", OSError, ValueError, csv.Error):
        text = files[name].read().decode("utf-8-sig")
        return list(csv.DictReader(io.StringIO(text, newline="")))


WATERBIRDS = Dataset(
    name="waterbirds", title="Waterbirds", load=load, splits=tuple(SPLITS),
    counterfactual=swapped, second_label=True, classes=len(BIRDS),
)  # fmt: skip

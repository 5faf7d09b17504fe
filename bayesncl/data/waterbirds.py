"""Waterbirds: birds on land or water, in the layout of the official release.

metadata.csv lists each image with its bird (y), its split (0 train, 1 val, 2 test) and its
background (place). The root is the folder that holds it. swapped.csv, if there, names for each test
image the same bird on the other background.
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from bayesncl import recipes
from bayesncl.data.cache import Entry, read_images
from bayesncl.data.folder import existing_folder
from bayesncl.data.images import Images, Progress
from bayesncl.errors import InputError, as_input_error

BIRDS = ("landbird", "waterbird")
PLACES = ("land", "water")
SPLITS = {"train": "0", "test": "2", "val": "1"}
NUMBERS = {"0": 0, "1": 1}  # of birds and places

Rows = list[dict[str, str]]


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; labels are the birds, backgrounds the places."""
    return _read(data, _read_split(data, split), "img_filename", "place", progress)


def swapped(data: recipes.Data) -> Images | None:
    """The test split with each bird on the other background; image i shows the same bird.

    None if the release has no swapped.csv.
    """
    path = existing_folder(data.root) / "swapped.csv"
    if not path.is_file():
        return None
    with as_input_error(f"{path} lacks", KeyError):
        twins = {row["img_filename"]: row for row in _read_table(path)}
        rows = [twins[row["img_filename"]] | row for row in _read_split(data, "test")]
    return _read(data, rows, "swapped_filename", "swapped_place")


def _read(
    data: recipes.Data, rows: Rows, name: str, place: str, progress: Progress | None = None
) -> Images:
    root = existing_folder(data.root)
    with as_input_error(f"{root}: a column is missing or holds", KeyError):
        entries = [Entry(row[name], root / row[name]) for row in rows]
        birds = [NUMBERS[row["y"]] for row in rows]
        places = [NUMBERS[row[place]] for row in rows]
    # A missing image would shift the test split against its swapped twin: every file must decode.
    strict = replace(data, strict=True)
    images = read_images(entries, strict, progress, labels=birds, class_names=BIRDS)
    return replace(images, backgrounds=np.array(places, np.int64), background_names=PLACES)


def _read_split(data: recipes.Data, split: str) -> Rows:
    path = existing_folder(data.root) / "metadata.csv"
    rows = [row for row in _read_table(path) if row.get("split") == SPLITS[split]]
    if not rows:
        raise InputError(f"{path.parent}: metadata.csv has no image of the {split} split")
    return rows


def _read_table(path: Path) -> Rows:
    with (
        as_input_error(f"cannot read {path}", OSError, ValueError, csv.Error),
        open(path, newline="", encoding="utf-8-sig") as file,
    ):
        return list(csv.DictReader(file))

"""A folder of .tar shards in the WebDataset layout: KEY.jpg (png, webp, ...) with KEY.cls, read without unpacking.

ROOT/train/*.tar with ROOT/test/*.tar (or val) are used as splits; otherwise a share of the images is held out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import compress
from pathlib import Path

import numpy as np

from .. import recipes
from ..errors import InputError, printable, shown
from . import Dataset
from .archive import Entry, members
from .cache import decoded
from .decode import SUFFIXES, Square
from .folder import FOLDER, existing_folder, split_folders
from .images import Images, Progress, counted, in_split

MOST_CLASSES = 1_000_000


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; images are ordered by shard name, then key."""
    root = existing_folder(data.root)
    where = shown(root)
    train, test = split_folders(root)
    samples = _samples(test if test is not None and split == "test" else train, progress)
    if test is None:
        samples = list(compress(samples, in_split([image.name for image, _ in samples], data, split, where)))
    images = [image for image, _ in samples]
    pixels, kept = decoded(images, Square(data.size, data.size), what=where, strict=data.strict, progress=progress)
    labels = [samples[i][1] for i in kept]
    known = [label for label in labels if label is not None]
    if known and len(known) < len(labels):
        raise InputError(f"{where}: {len(labels) - len(known)} of {len(labels)} images have no .cls beside them")
    names = tuple(images[i].name for i in kept)
    numbers = np.array(known, np.int64) if known else None
    return Images(pixels, numbers, names=names, broken=len(images) - len(kept))


def _samples(folder: Path, progress: Progress | None) -> list[tuple[Entry, int | None]]:
    """Every image of the shards in `folder` with its label."""
    shards = sorted(path for path in folder.glob("*.tar") if path.is_file())
    if not shards:
        raise InputError(f"{shown(folder)}: no .tar files in it")
    samples: list[tuple[Entry, int | None]] = []
    refused: list[str] = []
    for shard in counted(shards, len(shards), "listing shards", progress):
        entries, bad = members(shard)
        refused += [f"{shard.name}: {name}" for name in bad]
        samples += _pairs(shard, entries)
    if refused:
        some = ", ".join(printable(name) for name in refused[:5])
        told = f"{shown(folder)}: {len(refused)} members are links or point outside, left out: {some}"
        warnings.warn(told, stacklevel=4)
    if not samples:
        raise InputError(f"{shown(folder)}: no images in its {len(shards)} shards")
    return samples


def _pairs(shard: Path, entries: dict[str, Entry]) -> Iterator[tuple[Entry, int | None]]:
    images: dict[str, Entry] = {}
    labels: dict[str, Entry] = {}
    for name, entry in sorted(entries.items()):
        folder, _, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")  # the key ends at the first dot of the last part
        key = f"{folder}/{stem}"
        if f".{suffix.lower()}" in SUFFIXES:
            images.setdefault(key, Entry(f"{shard.name}/{name}", shard, entry.offset, entry.size))
        elif suffix == "cls":
            labels[key] = entry
    for key, image in sorted(images.items()):
        yield image, _label(labels[key], shard) if key in labels else None


def _label(entry: Entry, shard: Path) -> int:
    try:
        label = int(entry.read(32).decode("ascii"))
    except (OSError, ValueError):
        label = -1
    if not 0 <= label < MOST_CLASSES:
        raise InputError(f"{shown(shard)}: {printable(entry.name)} does not hold a class number")
    return label


SHARDS = Dataset(
    name="shards",
    title="Shards",
    settings=recipes.replace_fields(FOLDER.settings, data={"size": 256}, views={"size": 224}),
    load=load,
    holdout=True,
)

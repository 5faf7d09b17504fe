"""A folder of .tar shards in the WebDataset layout: KEY.jpg (png, webp, ...) with KEY.cls.

ROOT/train/*.tar with ROOT/test/*.tar (or val) are the splits; otherwise a share is held out.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np

from bayesncl import recipes
from bayesncl.data import Dataset
from bayesncl.data.archive import Entry, list_members
from bayesncl.data.cache import decode_files
from bayesncl.data.decode import SUFFIXES, Square
from bayesncl.data.folder import existing_folder, split_folders
from bayesncl.data.images import Images, Progress, in_split, track
from bayesncl.errors import InputError, printable, printable_path

MAX_CLASSES = 1_000_000


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split; images are ordered by shard name, then key."""
    root = existing_folder(data.root)
    where = printable_path(root)
    train, test = split_folders(root)
    images, texts = _read_shards(test if test and split == "test" else train, progress)
    if test is None:
        images = list(compress(images, in_split([e.name for e in images], data, split, where)))
    square = Square(data.size, data.size)
    pixels, kept = decode_files(images, square, what=where, strict=data.strict, progress=progress)
    images, broken = [images[i] for i in kept], len(images) - len(kept)
    labels = [_read_label(texts[e.name]) for e in images if e.name in texts]
    if 0 < len(labels) < len(images):
        missing = len(images) - len(labels)
        raise InputError(f"{where}: {missing} of {len(images)} images have no .cls file")
    array = np.array(labels, np.int64) if labels else None
    return Images(pixels, array, names=tuple(e.name for e in images), broken=broken)


def _read_shards(
    folder: Path, progress: Progress | None
) -> tuple[list[Entry], dict[str, Entry]]:
    """Every image of the shards in `folder`, and its .cls file by the name of the image."""
    shards = sorted(path for path in folder.glob("*.tar") if path.is_file())
    if not shards:
        raise InputError(f"{printable_path(folder)}: no .tar files")
    images: list[Entry] = []
    texts: dict[str, Entry] = {}
    refused: list[str] = []
    for shard in track(shards, len(shards), "listing shards", progress):
        entries, names = list_members(shard)
        refused += [printable(f"{shard.name}: {name}") for name in names]
        keys: dict[str, Entry] = {}
        for name, entry in sorted(entries.items()):
            parent, _, base = name.rpartition("/")
            stem, _, suffix = base.partition(".")  # the key ends at the first dot of the last part
            if f".{suffix.lower()}" in SUFFIXES:
                keys.setdefault(f"{parent}/{stem}", replace(entry, name=f"{shard.name}/{name}"))
        for key, image in sorted(keys.items()):
            images.append(image)
            if label := entries.get(f"{key}.cls".removeprefix("/")):
                texts[image.name] = label
    if refused:
        note = f"skipped {len(refused)} members that are links or leave the archive"
        warnings.warn(f"{printable_path(folder)}: {note}: {', '.join(refused[:5])}", stacklevel=3)
    if not images:
        raise InputError(f"{printable_path(folder)}: no images in {len(shards)} shards")
    return images, texts


def _read_label(entry: Entry) -> int:
    with contextlib.suppress(ValueError):
        if 0 <= (label := int(entry.read())) < MAX_CLASSES:
            return label
    where = f"{printable_path(entry.path)}: {printable(entry.name)}"
    raise InputError(f"{where} holds no class number")


SHARDS = Dataset(name="shards", title="Shards", load=load, holdout=True)

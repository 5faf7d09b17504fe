"""Any folder of images: class subfolders or flat, nested or not.

ROOT/train with ROOT/test (or ROOT/val) are used as splits; otherwise a share of the images is held out.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from .. import recipes
from ..errors import InputError, or_refuse, shown
from ..files import is_codes
from . import Dataset
from .archive import Entry
from .cache import decoded
from .decode import SUFFIXES, Square
from .images import Images, Progress, in_split


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split of a folder of images, decoded once and cached."""
    root = existing_folder(data.root)
    train, test = split_folders(root)
    here, others = scan(train)
    there, others_there = scan(test) if test else ([], [])
    if not here:
        raise no_images(train)
    # Class numbers must agree between the splits, so both are looked at even where one is read.
    classes = sorted({entry.name.split("/")[0] for entry in here + there if "/" in entry.name})
    if test is None:
        chosen = list(compress(here, in_split([entry.name for entry in here], data, split, shown(root))))
        others = others if split == "train" else []  # told once
    else:
        chosen, others = (there, others_there) if split == "test" else (here, others)
    if not chosen and split == "test":
        raise no_images(test or root)
    # Decided on the whole split, so that an undecodable file does not change it.
    inside = ["/" in entry.name for entry in (here if test is None else chosen)]
    if any(inside) and not all(inside):
        warnings.warn(f"{shown(root)}: images both in it and in its subfolders: taken as unlabelled", stacklevel=2)
    return read_images(
        chosen, Square(data.size, data.size), classes if all(inside) else None,
        what=shown(root), strict=data.strict, others=others, progress=progress,
    )  # fmt: skip


def read_images(entries: list[Entry], square: Square, classes: Sequence[str] | None, **options: Any) -> Images:
    """Images of files, decoded once and cached; where there are classes, a file is of that of its first folder."""
    pixels, kept = decoded(entries, square, **options)
    names = tuple(entries[i].name for i in kept)
    number = {name: i for i, name in enumerate(classes or ())}
    labels = None if classes is None else np.array([number[name.split("/")[0]] for name in names], np.int64)
    known = None if classes is None else tuple(classes)
    return Images(pixels, labels, class_names=known, names=names, broken=len(entries) - len(kept))


def no_images(folder: Path) -> InputError:
    """What to say of a folder without images."""
    return InputError(f"{shown(folder)}: no image files in it (looked for {' '.join(SUFFIXES)})")


def given_path(root: str) -> Path:
    """data.root as a path."""
    if not root:
        raise InputError("this data set needs a folder or file: --data PATH")
    with or_refuse(shown(root), RuntimeError):  # ~nobody
        return Path(root).expanduser()


def existing_folder(root: str) -> Path:
    """The data folder, or one line that says what is wrong with it."""
    path = given_path(root)
    with or_refuse(shown(path)):  # a name too long
        there, folder = path.exists(), path.is_dir()
    if not folder:
        raise InputError(f"{shown(path)}: {'a file, expected a folder' if there else 'no such folder'}")
    return path


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """Folders of the training and the test images; None where the test split must be held out.

    A lone `train` is a split too, but not one among other folders: trains are a class of things.
    """
    below = {item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith(".")}
    if "train" not in below:
        return root, None
    test = next((name for name in ("test", "val") if name in below), None)
    if test is None:
        return (root / "train" if len(below) == 1 else root), None
    return root / "train", root / test


def classes_of(names: Sequence[str], place: Path) -> list[str] | None:
    """The first folder of each path, below the splits where `place` has train and test; None where some lie in none."""
    split = os.path.isdir(place) and split_folders(place)[0] != place
    parts = [name.split("/")[split:] for name in names]
    return [part[0] for part in parts] if all(len(part) > 1 for part in parts) else None


def scan(root: Path, only: frozenset[str] | None = None) -> tuple[list[Entry], list[str]]:
    """Image files at and below `root`, sorted by relative path, and the names of the other files.

    Links are followed, since data sets are often made of them, but no folder is entered twice: there are no loops.
    Folders that `fit` or `atlas` wrote are left out: an atlas holds sheets of pictures that are here already.
    `only` limits the subfolders of the first level.
    """
    try:
        found = sorted(_walk(root, "", {_identity(os.stat(root))}, only), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{shown(Path(error.filename or root))}: {error.strerror}") from None
    images = [entry for entry in found if entry.name.lower().endswith(SUFFIXES)]
    return images, [entry.name for entry in found if not entry.name.lower().endswith(SUFFIXES)]


def _is_atlas(folder: str) -> bool:
    return all(os.path.isfile(os.path.join(folder, name)) for name in ("atlas.json", "atlas.js"))


def _walk(folder: Path, prefix: str, entered: set[tuple[int, int]], only: frozenset[str] | None) -> Iterator[Entry]:
    below: list[tuple[bool, str, os.stat_result]] = []
    with os.scandir(folder) as items:
        for item in items:
            if item.name.startswith("."):
                continue
            try:
                info = item.stat()
            except OSError:  # a link to nowhere, or a loop of links
                continue
            if stat.S_ISDIR(info.st_mode):
                if (only is None or item.name in only) and not is_codes(item.path) and not _is_atlas(item.path):
                    below.append((item.is_symlink(), item.name, info))
            elif stat.S_ISREG(info.st_mode):  # no pipes: they would block
                yield Entry(prefix + item.name, folder / item.name)
    for _, name, info in sorted(below, key=lambda b: b[:2]):  # real folders before links to them
        if _identity(info) not in entered:
            entered.add(_identity(info))
            yield from _walk(folder / name, f"{prefix}{name}/", entered, None)


def _identity(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FOLDER = Dataset(
    name="folder",
    title="Folder",
    settings=recipes.Recipe(
        data=recipes.Data(size=128, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        views=recipes.Views(size=112),
        model=recipes.Model(stem="imagenet"),
        run=recipes.Run(epochs=200, batch=256),
    ),
    load=load,
    holdout=True,
)

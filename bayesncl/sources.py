"""What can be fitted: photos, arrays and runs, told apart; embeddings, labels and names from files beside them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arrays import read_arrays
from .codes_folder import CodesFolder
from .data.decode import SUFFIXES
from .data.folder import scan
from .data.images import printable
from .encoders import Request, Say
from .errors import InputError
from .files import is_codes
from .photos import Pile
from .run import Run

ARRAYS = (".npy", ".npz", ".safetensors", ".csv", ".parquet")
FEATURES = ("z", "embeddings", "embedding", "features", "X", "x", "h", "arr_0", "data")  # names of what is fitted
LABELS = ("y", "labels", "label")
NAMES = ("names", "paths", "files", "filenames")


@dataclass(frozen=True)
class Options:
    """What can be chosen about a fit; see `bayesncl fit --help`."""

    method: str = "prototypes"
    dim: int | None = None
    keep: int | None = None
    seed: int = 0
    encoder: Request | None = None
    labels: Path | None = None
    images: Path | None = None


def find_source(source: Path, out: Path, options: Options) -> str:
    """``photos``, ``array`` or ``run``; InputError for anything else, and for options that do not go with it."""
    shown = printable(str(source), 300)
    try:
        there, is_folder = source.exists(), source.is_dir()
    except OSError as error:
        raise InputError(f"{shown}: {error.strerror or error}") from None
    if not there:
        raise InputError(f"{shown}: no such folder or file, expected photos, an array or a run")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: a file, expected a folder to write to")
    if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(out)):
        raise InputError(f"{shown} is, or lies in, the folder -o {out}, which fit writes: choose another folder")
    if is_folder and is_codes(source):
        raise InputError(f"{shown} was written by fit: give it the photos or the array that it was fitted on")
    run = Run(source)
    if is_folder:
        kind = "run" if run.recipe_file.is_file() or run.weights.is_file() else "photos"
    elif source.suffix.lower() in SUFFIXES:
        raise InputError(f"{shown}: one image; codes are read from many: give its folder")
    elif source.suffix.lower() in ARRAYS:
        kind = "array"
    else:
        raise InputError(f"{shown}: expected a folder of photos, a run, or an array file ({' '.join(ARRAYS)})")
    if options.encoder is not None and kind != "photos":
        what = "a run, which is its own encoder" if kind == "run" else "an array of embeddings"
        raise InputError(f"--encoder is for photos; {shown} is {what}")
    if options.images is not None and kind != "array":
        raise InputError(f"--images goes with an array of embeddings; {shown} is a folder")
    if options.labels is not None and kind == "run":
        raise InputError("--labels does not go with a run, whose data set has its own")
    known = CodesFolder(out)
    strange = [] if not out.is_dir() or known.about_file.exists() or known.log.exists() else list(out.iterdir())
    if strange and not all(path.name.startswith(".") for path in strange):
        raise InputError(f"{out} was not written by fit (it has {printable(strange[0].name)}): choose another folder")
    return kind


def read_embeddings(path: Path) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Embeddings of a file as they are, with names [N] and labels [N] where it, or files beside a .npy, have them."""
    found = read_arrays(path, (*FEATURES, *LABELS, *NAMES, "class_names"))
    z = next((found[name] for name in FEATURES if name in found), None)
    if z is None:
        read_arrays(path, FEATURES, needed=("z",))  # says what is there
        raise InputError(f"{path}: no embeddings in it")
    # one of another length belongs to another array
    own = {name: column for name, column in _beside(path).items() if column.shape[:1] == z.shape[:1]}
    beside = {**found, **own}
    names = next((beside[name] for name in NAMES if name in beside), None)
    labels = next((beside[name] for name in LABELS if name in beside), None)
    for what, column in (("names", names), ("labels", labels)):
        if column is not None and (z.ndim < 1 or column.ndim != 1 or len(column) != len(z)):
            raise InputError(f"{path}: embeddings {list(z.shape)}, but {what} {list(column.shape)}")
    if labels is not None and labels.dtype.kind in "iu" and "class_names" in found and len(labels):
        known = found["class_names"]
        if known.ndim == 1 and labels.min() >= 0 and labels.max() < len(known):
            labels = known[labels]
    return z, names, labels


def photo_labels(pile: Pile, table: Path | None) -> list[str] | None:
    """A class for each photo: by its subfolder, or by its name in a table."""
    if table is None:
        return pile.classes
    found = read_arrays(table, ("y", "names"))
    if any(key not in found or found[key].ndim != 1 for key in ("names", "y")):
        raise InputError(f"{table}: labels of photos need a table with the columns name and label")
    by_name = {str(name).replace(os.sep, "/"): str(y) for name, y in zip(found["names"], found["y"])}
    labels = [by_name.get(name, by_name.get(name.rpartition("/")[2])) for name in pile.names]
    missing = [name for name, label in zip(pile.names, labels) if label is None]
    if missing:
        some = f"{len(missing):,} of {len(pile):,} photos, e.g. {printable(missing[0])}"
        raise InputError(f"{table}: no label for {some}")
    return [str(label) for label in labels]


def read_labels(path: Path, names: np.ndarray | None, n: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Names and labels of rows from a file: row by row, or by name where both have names."""
    found = read_arrays(path, ("y", "names", "labels", "z"))
    labels = found.get("y", found.get("labels"))
    theirs = found.get("names")
    for column in (labels, theirs):
        if column is not None and column.ndim != 1:
            raise InputError(f"{path}: labels and names must be [N], got {list(column.shape)}")
    if labels is None and theirs is None:
        raise InputError(f"{path}: no labels in it, expected y [N], or a table with the column label")
    if names is not None and theirs is not None and labels is not None:
        by_name = {str(name): i for i, name in enumerate(theirs)}
        missing = [str(name) for name in names if str(name) not in by_name]
        if missing:
            raise InputError(f"{path}: no label for {len(missing):,} of {n:,} rows, e.g. {printable(missing[0])}")
        return names, labels[[by_name[str(name)] for name in names]]
    column = labels if labels is not None else theirs
    assert column is not None
    if len(column) != n:
        raise InputError(f"{path}: {len(column):,} rows, the embeddings have {n:,}")
    return (names if theirs is None else theirs), labels


def match_images(names: list[str], named: bool, root: Path, say: Say) -> list[str]:
    """Names of rows as paths below `root`, checked; without names, its images in the order of their names."""
    if not root.is_dir():
        raise InputError(f"--images {root}: no such folder")
    if not named:
        found = [entry.name for entry in scan(root)[0]]
        if len(found) != len(names):
            raise InputError(f"--images {root}: {len(found):,} images for {len(names):,} rows without names")
        say(f"rows have no names: taken to be the images of {root} in the order of their names")
        return found
    base = os.path.abspath(root) + os.sep
    names = [name.removeprefix(base).replace(os.sep, "/") for name in names]
    missing = [name for name in names if not os.path.isfile(root / name)]  # which takes names of any length
    if len(missing) == len(names):
        raise InputError(f"--images {root}: none of the {len(names):,} images is there, e.g. {printable(missing[0])}")
    if missing:
        say(f"--images {root}: {len(missing):,} of {len(names):,} images are not there, e.g. {printable(missing[0])}")
    return names


def _beside(source: Path) -> dict[str, np.ndarray]:
    """y.npy and names.npy beside a .npy."""
    if source.suffix != ".npy":
        return {}
    paths = {name: source.with_name(f"{name}.npy") for name in ("y", "names")}
    return {name: read_arrays(path, (name,))[name] for name, path in paths.items() if path.is_file() and path != source}

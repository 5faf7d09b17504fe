"""Any folder of images: class subfolders or flat, nested or not.

ROOT/train with ROOT/test (or ROOT/val) are the splits; otherwise a share of the images is held out.
"""

import os
import warnings
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

from bayesncl import recipes
from bayesncl.data.cache import Entry, read_images
from bayesncl.data.decode import SUFFIXES
from bayesncl.data.images import Images, Progress, in_split
from bayesncl.errors import InputError, as_input_error, printable
from bayesncl.io import is_codes


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Read one split of a folder of images, decoded once and cached."""
    root = existing_folder(data.root)
    train, test = split_folders(root)
    # Both splits are scanned, so that class numbers agree between them.
    scanned = {folder: scan(folder) for folder in {train, test or train}}
    names = [entry.name for entries, _ in scanned.values() for entry in entries]
    folder = train if split == "train" or test is None else test
    entries, others = scanned[folder]
    if not entries:
        raise no_images(folder)
    # Decided before holding out and decoding, so that a broken file does not change it.
    nested, classes = {"/" in entry.name for entry in entries}, None
    if nested == {True}:
        classes = sorted({name.split("/")[0] for name in names if "/" in name})
    elif True in nested:
        warn_of_loose(folder, [entry.name for entry in entries])
    if test is None:
        entries = list(compress(entries, in_split([e.name for e in entries], data, split)))
        others = others if split == "train" else []  # report them once
    return read_images(entries, data, progress, class_names=classes, others=others)


def no_images(folder: Path) -> InputError:
    """The error for a folder without images."""
    return InputError(f"{folder}: no image files ({' '.join(SUFFIXES)})")


def list_images(path: Path) -> tuple[list[Entry], list[str]]:
    """The image file `path`, or all in and below that folder; and the names of other files."""
    if path.is_file():
        return [Entry(path.name, path)], []
    entries, others = scan(existing_folder(str(path)))
    if not entries:
        raise no_images(path)
    return entries, others


def given_path(root: str) -> Path:
    """data.root as a path."""
    if not root:
        raise InputError("this dataset needs a folder or file: --data PATH")
    return Path(os.path.expanduser(root))


def existing_folder(root: str) -> Path:
    """data.root as an existing folder."""
    path = given_path(root)
    if not os.path.isdir(path):
        problem = "a file, expected a folder" if os.path.exists(path) else "no such folder"
        raise InputError(f"{path}: {problem}")
    return path


def split_folders(root: Path) -> tuple[Path, Path | None]:
    """Folders of training and test images; None if the test split must be held out.

    A lone `train` is a split, but beside other folders it may be a class: trains.
    """
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."}
    if "train" not in folders:
        return root, None
    test = next((name for name in ("test", "val") if name in folders), None)
    if test is None:
        return (root / "train" if len(folders) == 1 else root), None
    return root / "train", root / test


def folder_classes(names: Sequence[str], root: Path) -> list[str] | None:
    """The first folder of each path, below the splits of `root`; None if a path has no folder."""
    split = os.path.isdir(root) and split_folders(root)[0] != root
    parts = [name.split("/")[split:] for name in names]
    nested = [len(part) > 1 for part in parts]
    if any(nested) and not all(nested):
        warn_of_loose(root, ["/".join(part) for part in parts])
    return [part[0] for part in parts] if all(nested) else None


def warn_of_loose(root: Path, names: Sequence[str]) -> None:
    """Name an image that lies beside the subfolders: these are then no classes."""
    example = printable(next(name for name in names if "/" not in name))
    note = f"some images are in no subfolder, e.g. {example}: treating all as unlabeled"
    warnings.warn(f"{root}: {note}", stacklevel=3)


def safe_name(name: str) -> str | None:
    """A normalized relative path; None if it is empty, absolute or leaves its folder."""
    if "\0" in name or "\\" in name or name.startswith("/"):
        return None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts) if parts and ".." not in parts else None


def scan(root: Path) -> tuple[list[Entry], list[str]]:
    """Image files in and below `root`, sorted by relative path, and the names of other files.

    Links are followed, but no folder is entered twice. Hidden folders are skipped, and those that
    `fit` or `atlas` wrote: their pictures are copies.
    """
    files: list[Entry] = []
    entered = {os.path.realpath(root)}

    def enter(folder: Path) -> bool:
        is_atlas = (folder / "atlas.json").is_file() and (folder / "atlas.js").is_file()
        real = os.path.realpath(folder)
        if folder.name[0] == "." or is_atlas or is_codes(folder) or real in entered:
            return False
        entered.add(real)
        return True

    with as_input_error(root):
        for folder, below, names in os.walk(root, followlinks=True, onerror=_raise):
            prefix = "" if folder == str(root) else f"{os.path.relpath(folder, root)}/"
            paths = [(name, Path(folder, name)) for name in names if name[0] != "."]
            files += [Entry(prefix + name, path) for name, path in paths if os.path.isfile(path)]
            below.sort(key=lambda name: (os.path.islink(os.path.join(folder, name)), name))
            below[:] = [name for name in below if enter(Path(folder, name))]
    files.sort(key=lambda entry: entry.name)
    images = [entry for entry in files if entry.name.lower().endswith(SUFFIXES)]
    others = [entry.name for entry in files if not entry.name.lower().endswith(SUFFIXES)]
    return images, others


def _raise(error: OSError) -> None:
    raise error

"""Where images come from. Each data set is a function that gives Images for a split; LOADERS lists them by name.

To add one: write a module with `load(data, split, progress) -> Images`, enter it in LOADERS, add its name to
recipes.DATASETS and its settings to recipes._datasets. Raise InputError, with the path in the message, for anything
wrong with the files.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import recipes
from ..errors import InputError
from . import arrays, cifar, folder, imagenet100, scenes, shards, textures, waterbirds
from .cifar import download
from .images import Images, Progress, printable

__all__ = ["LOADERS", "Images", "download", "load"]

LOADERS: dict[str, Callable[[recipes.Data, str, Progress | None], Images]] = {
    "scenes": scenes.load,
    "textures": textures.load,
    "cifar10": cifar.load,
    "cifar100": cifar.load,
    "folder": folder.load,
    "imagenet100": imagenet100.load,
    "waterbirds": waterbirds.load,
    "shards": shards.load,
    "arrays": arrays.load,
}


def load(data: recipes.Data, split: str, progress: Progress | None = None) -> Images:
    """Load one split of a data set.

    Parameters
    ----------
    data : which data set, where it lies, how it is stored.
    split : "train" or "test"; waterbirds also has "val".
    progress : called with (done, total, what) while files are read; None is silent.

    Returns
    -------
    Images; pixels may be memory-mapped.
    """
    if data.name not in LOADERS:
        raise InputError(f"no data set {data.name!r}, expected one of {', '.join(LOADERS)}")
    if split not in ("train", "test") and not (split == "val" and data.name == "waterbirds"):
        raise InputError(f"{data.name} has no split {split!r}, expected train or test")
    try:
        return LOADERS[data.name](data, split, progress)
    except OSError as error:
        raise InputError(f"{printable(str(error.filename or data.root), 300)}: {error.strerror or error}") from None

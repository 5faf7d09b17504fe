"""Datasets: one module each, and their registry.

To add one, write a module with a `Dataset` and enter it in DATASETS, as an object or as
"module:NAME" to import it on first use; its recipe goes into `recipes.SETTINGS`. Readers raise
InputError with the path in the message.

`bayesncl --help` imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesncl.errors import InputError

if TYPE_CHECKING:
    from bayesncl.data.images import Images, Progress
    from bayesncl.recipes import Data

__all__ = ["DATASETS", "Dataset", "download", "load"]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset as the rest of the package sees it."""

    name: str  # in recipes and commands
    title: str  # in tables
    load: Callable[[Data, str, Progress | None], Images]  # reads one split
    splits: tuple[str, ...] = ("train", "test")
    balanced: str | None = None  # split with independent object and background, for probes
    # The test images with each object on another background.
    counterfactual: Callable[[Data], Images | None] | None = None
    download: Callable[[Path, Progress | None], Path] | None = None  # into a folder
    second_label: bool = False  # whether its images have backgrounds
    holdout: bool = False  # whether a test split may be held out of the training images
    classes: int = 100  # outputs of the online classifier, for counting its cost
    coarse: tuple[int, ...] = ()  # superclass of each class
    images: int = 50_000  # for training, for estimates
    seconds: float = 1.5  # per epoch of a published run on one H200
    paper_dims: int = 64  # dimensions kept in the published retrieval tables
    paper_k: int = 5  # k of the published retrieval curves
    probe: str = "cifar"  # the published linear probe, or "imagenet"


class Registry(UserDict[str, Any]):
    """Datasets by name; an entry "module:NAME" is imported on first use."""

    def __getitem__(self, name: str) -> Dataset:
        if isinstance(self.data[name], str):
            module, _, attribute = self.data[name].partition(":")
            self.data[name] = getattr(importlib.import_module(module, __package__), attribute)
        dataset: Dataset = self.data[name]
        return dataset


DATASETS = Registry(
    {
        "scenes": ".scenes:SCENES",
        "textures": ".textures:TEXTURES",
        "cifar10": ".cifar:CIFAR10",
        "cifar100": ".cifar:CIFAR100",
        "imagenet100": ".imagenet:IMAGENET100",
        "tinyimagenet": ".imagenet:TINYIMAGENET",
        "folder": ".folder:FOLDER",
        "waterbirds": ".waterbirds:WATERBIRDS",
        "shards": ".shards:SHARDS",
        "arrays": ".arrays:ARRAYS",
    }
)


def load(data: Data, split: str, progress: Progress | None = None) -> Images:
    """Load one split of a dataset.

    Parameters
    ----------
    data : the dataset, its path and how it is stored.
    split : "train" or "test"; scenes and waterbirds also have "val".
    progress : called with (done, total, description) while files are read.

    Returns
    -------
    Images; the pixels may be memory-mapped.
    """
    dataset = DATASETS[data.name]
    if split not in dataset.splits:
        expected = " or ".join(dataset.splits)
        raise InputError(f"{data.name} has no split {split!r}, expected {expected}")
    try:
        images = dataset.load(data, split, progress)
    except OSError as error:
        path = error.filename or data.root
        raise InputError(f"{path}: {error.strerror or error}") from None
    if len(images) < 2 and split == "train":
        count = "only one image" if len(images) else "no images"
        expected = "to train on, expected two or more"
        raise InputError(f"{data.root}: {count} {expected}")
    return images


def download(name: str, root: str | Path, progress: Progress | None = None) -> Path:
    """Download a dataset into the folder `root`; return its path."""
    fetch = DATASETS[name].download if name in DATASETS else None
    if fetch is None:
        names = ", ".join(name for name in DATASETS if DATASETS[name].download)
        raise InputError(f"{name!r} cannot be downloaded, expected one of {names}")
    return fetch(Path(root).expanduser(), progress)

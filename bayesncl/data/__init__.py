"""Datasets: their registry, and one module for each reader.

To add one, enter a `Dataset` in DATASETS and its recipe in `recipes.SETTINGS`. Readers raise
InputError with the path in the message. They are imported when called: this module stays light.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesncl.errors import InputError
from bayesncl.recipes import Data

if TYPE_CHECKING:
    from bayesncl.data.images import Images, Progress

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
    seconds: float = 1.5  # per epoch of a published run on one H200
    paper_dims: int = 64  # dimensions kept in the published retrieval tables
    paper_k: int = 5  # k of the published retrieval curves
    probe: str = "cifar"  # the published linear probe, or "imagenet"


def _lazy(function: str, *first: str) -> Callable[..., Any]:
    """The function MODULE:NAME of this package, imported when called, with its first arguments."""

    def call(*arguments: Any) -> Any:
        module, _, name = function.partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(*first, *arguments)

    return call


# Superclass of each class of CIFAR-100, as numbered in its files.
COARSE = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)  # fmt: skip
THREE = ("train", "test", "val")
DATASETS = {dataset.name: dataset for dataset in (
    Dataset(
        name="scenes", title="Scenes", load=_lazy("scenes:load"), splits=THREE, balanced="val",
        counterfactual=_lazy("scenes:redraw"), second_label=True, classes=10, seconds=3.0,
        paper_k=1,
    ),
    Dataset(
        name="textures", title="Textures", load=_lazy("textures:load"), classes=12, seconds=3.0
    ),
    Dataset(
        name="cifar10", title="CIFAR-10", load=_lazy("cifar:load"), classes=10, paper_k=1,
        download=_lazy("cifar:fetch_archive", "cifar10"),
    ),
    Dataset(
        name="cifar100", title="CIFAR-100", load=_lazy("cifar:load"), coarse=COARSE, paper_dims=128,
        download=_lazy("cifar:fetch_archive", "cifar100"),
    ),
    Dataset(
        name="imagenet100", title="ImageNet-100", load=_lazy("imagenet:load_imagenet100"),
        seconds=14.8, paper_dims=256, probe="imagenet",
    ),
    Dataset(
        name="tinyimagenet", title="Tiny-ImageNet", load=_lazy("imagenet:load_tinyimagenet"),
        classes=200, paper_dims=256, probe="imagenet",
    ),
    Dataset(name="folder", title="Folder", load=_lazy("folder:load"), holdout=True),
    Dataset(
        name="waterbirds", title="Waterbirds", load=_lazy("waterbirds:load"), splits=THREE,
        counterfactual=_lazy("waterbirds:swapped"), second_label=True, classes=2,
    ),
    Dataset(name="arrays", title="Arrays", load=_lazy("arrays:load"), holdout=True),
)}  # fmt: skip


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
        raise InputError(f"{data.root}: {count} to train on, expected two or more")
    return images


def download(name: str, root: str | Path, progress: Progress | None = None) -> Path:
    """Download a dataset into the folder `root`; return its path."""
    fetch = DATASETS[name].download if name in DATASETS else None
    if fetch is None:
        names = ", ".join(name for name in DATASETS if DATASETS[name].download)
        raise InputError(f"{name!r} cannot be downloaded, expected one of {names}")
    return fetch(Path(root).expanduser(), progress)

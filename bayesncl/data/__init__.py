"""Where images come from: one Dataset object for each data set, and the registry of them.

To add one: write a module with a Dataset in it and enter it in DATASETS, as an object or, to import it only when it is
used, as "module:NAME". Tables, help, checks and recipes find it there. A reader raises InputError, with the path in
the message, for anything wrong with the files.

Nothing heavy is imported here: the names are needed by `bayesncl --help`, the readers are not.
"""

from __future__ import annotations

import importlib
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, shown

if TYPE_CHECKING:
    from ..recipes import Data, Recipe
    from .images import Images, Progress

__all__ = ["DATASETS", "Dataset", "download", "load"]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """All that the rest of the package knows of a data set.

    Attributes
    ----------
    name, title : in recipes and commands; in tables.
    settings : its recipe with the method `bayesncl`; the other methods are made from it. The name goes in by itself.
    load : function of (data, split, progress) that reads one split.
    splits : what `load` can read.
    balanced : the split where object and background are independent, to fit probes on; or None.
    counterfactual : function of data that gives the test images again, each object on another background; or None.
    download : function of (folder, progress) that fetches it and returns the path; or None.
    second_label : whether its images have backgrounds.
    holdout : whether test images may be held out of the same pile as the training images.
    classes : outputs of the online classifier whose cost is counted.
    coarse : superclass of each class, where classes are grouped; else empty.
    images : training images, for estimates.
    seconds : stated for an epoch of a published run on one H200; measured times are preferred where there are any.
    paper_dims, paper_k : dimensions kept in the published retrieval tables, and the k of the published curves.
    probe : which of the two published linear probes, ``cifar`` or ``imagenet``.
    """

    name: str
    title: str
    settings: Recipe
    load: Callable[[Data, str, Progress | None], Images]
    splits: tuple[str, ...] = ("train", "test")
    balanced: str | None = None
    counterfactual: Callable[[Data], Images | None] | None = None
    download: Callable[[Path, Progress | None], Path] | None = None
    second_label: bool = False
    holdout: bool = False
    classes: int = 100
    coarse: tuple[int, ...] = ()
    images: int = 50_000
    seconds: float = 1.5
    paper_dims: int = 64
    paper_k: int = 5
    probe: str = "cifar"


class Registry(UserDict[str, Any]):
    """Data sets by name; one entered as "module:NAME" is imported when it is first asked for."""

    def __getitem__(self, name: str) -> Dataset:
        if isinstance(self.data[name], str):
            module, _, attribute = self.data[name].partition(":")
            self.data[name] = getattr(importlib.import_module(module, __package__), attribute)
        found: Dataset = self.data[name]
        return found


DATASETS = Registry(
    {
        "scenes": ".scenes:SCENES",
        "textures": ".textures:TEXTURES",
        "cifar10": ".cifar:CIFAR10",
        "cifar100": ".cifar:CIFAR100",
        "imagenet100": ".imagenet100:IMAGENET100",
        "folder": ".folder:FOLDER",
        "waterbirds": ".waterbirds:WATERBIRDS",
        "shards": ".shards:SHARDS",
        "arrays": ".arrays:ARRAYS",
    }
)


def load(data: Data, split: str, progress: Progress | None = None) -> Images:
    """Load one split of a data set.

    Parameters
    ----------
    data : which data set, where it lies, how it is stored.
    split : "train" or "test"; scenes and waterbirds also have "val".
    progress : called with (done, total, what) while files are read; None is silent.

    Returns
    -------
    Images; pixels may be memory-mapped.
    """
    from .images import at_least_two

    known = DATASETS[data.name]
    if split not in known.splits:
        raise InputError(f"{data.name} has no split {split!r}, expected {' or '.join(known.splits)}")
    try:
        found = known.load(data, split, progress)
    except OSError as error:
        raise InputError(f"{shown(error.filename or data.root)}: {error.strerror or error}") from None
    if split == "train":
        at_least_two(len(found), shown(data.root))
    return found


def download(name: str, root: str | Path, progress: Progress | None = None) -> Path:
    """Fetch a data set from its home into the folder `root`."""
    fetch = DATASETS[name].download if name in DATASETS else None
    if fetch is None:
        can = [known for known in DATASETS if DATASETS[known].download]
        raise InputError(f"{name!r} cannot be downloaded, expected one of {', '.join(can)}")
    return fetch(Path(root).expanduser(), progress)

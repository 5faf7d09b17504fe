"""`Images`, the interface of every dataset, and how a test split is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from bayesncl.errors import InputError, printable
from bayesncl.recipes import Data

Progress = Callable[[int, int, str], None]  # done, total, description
T = TypeVar("T")

NAME_LENGTH = 200  # longer class names are cut
PATH_LENGTH = 16_384  # image names are paths; none is cut, so that all stay different


@dataclass(frozen=True)
class Images:
    """N images with their annotations.

    Attributes
    ----------
    pixels : uint8 [N, 3, H, W], in memory or memory-mapped.
    labels : int64 [N], the class of each image, or None.
    backgrounds : int64 [N], a second label, or None.
    class_names, background_names : names by index, or None. Control characters are escaped and
        long names cut.
    names : a name per image, such as its path relative to the root, or None.
    broken : number of files that could not be decoded.
    """

    pixels: np.ndarray
    labels: np.ndarray | None = None
    backgrounds: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    background_names: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    broken: int = 0

    def __post_init__(self) -> None:
        dtype, shape = self.pixels.dtype, self.pixels.shape
        if dtype != np.uint8 or len(shape) != 4 or shape[1] != 3:
            raise InputError(f"images must be uint8 [N, 3, H, W], got {dtype} {list(shape)}")
        check_annotations(self)

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, chosen: np.ndarray) -> Images:
        """The chosen images, by a mask [N] or by their rows; they have no names."""
        rows = {name: getattr(self, name) for name in ("pixels", "labels", "backgrounds")}
        taken = {name: rows[name][chosen] for name in rows if rows[name] is not None}
        return replace(self, names=None, **taken)


def check_annotations(images: Any) -> None:
    """Check the annotations of `Images`, or of an atlas's photos; make their names printable."""
    for what in ("labels", "backgrounds", "names"):
        values = getattr(images, what)
        if values is not None and len(values) != len(images):
            raise InputError(f"{len(values)} {what} for {len(images)} images")
    lengths = {"class_names": NAME_LENGTH, "background_names": NAME_LENGTH, "names": PATH_LENGTH}
    for what, length in lengths.items():
        if (values := getattr(images, what)) is not None:
            names = tuple(printable(str(name), length) for name in values)
            object.__setattr__(images, what, names)


def track(items: Iterable[T], total: int, what: str, progress: Progress | None) -> Iterator[T]:
    """Yield items and report progress after each."""
    for done, item in enumerate(items, 1):
        yield item
        if progress:
            progress(done, total, what)


def fingerprint(pixels: np.ndarray) -> tuple[str, str]:
    """Number and size of images [N, 3, H, W] in words, and a hash of 64 of them, spread evenly."""
    n, _, height, width = pixels.shape
    sample = pixels[spread_evenly(n, 64)].tobytes()
    hashed = hashlib.blake2b(sample, digest_size=16).hexdigest()
    return f"{n:,} images of {width} x {height}", hashed


def spread_evenly(count: int, limit: int) -> np.ndarray:
    """Indices of `limit` of `count` rows, from first to last; of all rows if they are fewer."""
    return np.linspace(0, count - 1, min(limit, count)).astype(np.int64)


def held_out(names: Sequence[str], share: float, seed: int) -> np.ndarray:
    """Which images are held out for testing, bool [N].

    Chosen by a hash of seed and name: the order of files does not matter, and adding images moves
    few of the others. If `share` > 0, at least one image is held out and one is left.
    """
    chosen = np.zeros(len(names), dtype=bool)
    if share > 0 and names:
        encoded = (f"{seed}:{name}".encode("utf-8", "surrogateescape") for name in names)
        rank = [hashlib.blake2b(name, digest_size=8).digest() for name in encoded]
        count = min(max(1, round(share * len(names))), len(names) - 1)
        chosen[sorted(range(len(names)), key=rank.__getitem__)[:count]] = True
    return chosen


def in_split(names: Sequence[str], data: Data, split: str) -> np.ndarray:
    """Which images belong to a split if the test split is held out, bool [N]."""
    if split == "test" and data.holdout == 0:
        problem = "has no test split and data.holdout is 0: set data.holdout=0.1"
        raise InputError(f"{data.root} {problem}")
    return held_out(names, data.holdout, data.seed) == (split == "test")

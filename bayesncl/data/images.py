"""The one small interface of every data set: N images and what is known of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import InputError, printable

if TYPE_CHECKING:
    from ..recipes import Data

Progress = Callable[[int, int, str], None]  # done, total, what is being done
T = TypeVar("T")

NAME_LENGTH = 200  # class names are for people: longer ones are cut
PATH_LENGTH = 16_384  # image names are relative paths; none is cut, so that no two become the same


@dataclass(frozen=True)
class Images:
    """N images and what is known of them.

    Attributes
    ----------
    pixels : uint8 [N, 3, H, W], in memory or memory-mapped.
    labels : int64 [N] class of each image, or None.
    backgrounds : int64 [N] second label, or None.
    class_names, background_names : names by index, or None; control characters are escaped, long ones cut.
    names : a name per image (a path relative to the root, say), or None.
    broken : how many files beside them could not be decoded.
    """

    pixels: np.ndarray
    labels: np.ndarray | None = None
    backgrounds: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    background_names: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    broken: int = 0

    def __post_init__(self) -> None:
        shape = self.pixels.shape
        if self.pixels.dtype != np.uint8 or len(shape) != 4 or shape[1] != 3:
            raise InputError(f"images must be uint8 [N, 3, H, W], got {self.pixels.dtype} {list(shape)}")
        check_known(self)

    def __len__(self) -> int:
        return len(self.pixels)


def check_known(images: Any) -> None:
    """Check what is known of images, `Images` or the photos of an atlas, and make the names in it printable."""
    for what in ("labels", "backgrounds", "names"):
        value = getattr(images, what)
        if value is not None and len(value) != len(images):
            raise InputError(f"{len(value)} {what} for {len(images)} images")
    for what, length in (("class_names", NAME_LENGTH), ("background_names", NAME_LENGTH), ("names", PATH_LENGTH)):
        value = getattr(images, what)
        if value is not None:
            object.__setattr__(images, what, tuple(printable(str(name), length) for name in value))


def counted(items: Iterable[T], total: int, what: str, progress: Progress | None) -> Iterator[T]:
    """`items`; `progress` is told of each when it is done with."""
    for done, item in enumerate(items, 1):
        yield item
        if progress:
            progress(done, total, what)


def fingerprint(pixels: np.ndarray) -> tuple[str, str]:
    """Number and size of images [N, 3, H, W], in words, and a hash of up to 64 of them, spread evenly."""
    n, _, height, width = pixels.shape
    some = pixels[spread_evenly(n, 64)]
    return f"{n:,} images of {width} x {height}", hashlib.blake2b(some.tobytes(), digest_size=16).hexdigest()


def spread_evenly(count: int, most: int) -> np.ndarray:
    """The numbers of `most` of so many rows, from the first to the last, or of all if there are no more."""
    return np.linspace(0, count - 1, min(most, count)).astype(np.int64)


def held_out(names: Sequence[str], share: float, seed: int) -> np.ndarray:
    """Which images are kept for testing, bool [N].

    Chosen by a hash of seed and name, so the choice does not depend on the order of the files, and adding
    images moves few of the old ones. At least one image is held out and at least one is left, if `share` > 0.
    """
    chosen = np.zeros(len(names), dtype=bool)
    if share <= 0 or not names:
        return chosen
    prefix = f"{seed}:".encode()
    rank = [hashlib.blake2b(prefix + n.encode("utf-8", "surrogateescape"), digest_size=8).digest() for n in names]
    count = min(max(1, round(share * len(names))), len(names) - 1)
    chosen[sorted(range(len(names)), key=rank.__getitem__)[:count]] = True
    return chosen


def in_split(names: Sequence[str], data: Data, split: str, what: str) -> np.ndarray:
    """Which images are of a split where test images are held out of one pile, bool [N]."""
    at_least_two(len(names), what)
    out = held_out(names, data.holdout, data.seed)
    if split == "test" and not out.any():
        raise InputError(f"{what} has no test split, and data.holdout is 0: give it one, or set data.holdout=0.1")
    return out == (split == "test")


def at_least_two(count: int, what: str) -> None:
    """Training contrasts images with each other; one is not enough."""
    if count < 2:
        raise InputError(f"{what}: {'one image' if count == 1 else 'no image'} to train on, expected two or more")

"""Images by path: read when their thumbnails are made, never all at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.decode import MOST_BYTES, Square, Undecodable, decode
from ..data.images import NAME_LENGTH, PATH_LENGTH, Images, printable
from ..errors import InputError

GREY = 128  # stands for a file that cannot be read


@dataclass(frozen=True)
class Photos:
    """N image files and what is known of them; what `Images` is for pixels.

    Attributes
    ----------
    paths : the files. One that cannot be read becomes a grey picture.
    side : pixels a side of the square that is cut from the middle of each, the largest the page shows.
    labels, backgrounds, class_names, background_names, names : as in `Images`; without names, the paths below
        the folder they share.
    """

    paths: Sequence[Path | str]
    labels: np.ndarray | None = None
    backgrounds: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    background_names: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    side: int = 256

    def __post_init__(self) -> None:
        names = self.names
        if names is None and len(self.paths):  # where the files lay is nobody else's business
            whole = [os.path.abspath(path) for path in self.paths]
            above = os.path.commonpath([os.path.dirname(path) for path in whole])
            names = tuple(os.path.relpath(path, above) for path in whole)
        object.__setattr__(self, "names", tuple(printable(str(name), PATH_LENGTH) for name in names or ()))
        for what in ("labels", "backgrounds", "names"):
            value = getattr(self, what)
            if value is not None and len(value) != len(self.paths):
                raise InputError(f"{len(value)} {what} for {len(self.paths)} images")
        for what in ("class_names", "background_names"):
            value = getattr(self, what)
            if value is not None:
                object.__setattr__(self, what, tuple(printable(str(name), NAME_LENGTH) for name in value))

    def __len__(self) -> int:
        return len(self.paths)


def picture_size(images: Images | Photos) -> tuple[int, int]:
    """Height and width of the originals, as far as they are alike."""
    return (images.side, images.side) if isinstance(images, Photos) else images.pixels.shape[2:]


def read_pictures(images: Images | Photos, rows: np.ndarray, height: int, width: int) -> np.ndarray:
    """The pictures of these rows, uint8 [R, height, width, 3]."""
    if isinstance(images, Photos):
        square = Square(height, height)
        found = [read_with(images.paths[i], lambda data: decode(data, square), height) for i in rows]
        return np.stack(found).transpose(0, 2, 3, 1)
    part = images.pixels[rows].transpose(0, 2, 3, 1)
    return part if part.shape[1:3] == (height, width) else np.stack([_shrink(image, height, width) for image in part])


def read_with(path: Path | str, read: Callable[[bytes], np.ndarray], side: int) -> np.ndarray:
    """A file as `read` gives it, uint8 [3, side, side]; grey where it cannot be read."""
    try:
        path = Path(path)
        if path.is_file() and path.stat().st_size <= MOST_BYTES:
            return read(path.read_bytes())
    except (OSError, ValueError, Undecodable):
        pass
    return np.full((3, side, side), GREY, np.uint8)


def _shrink(image: np.ndarray, height: int, width: int) -> np.ndarray:
    whole = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(whole.resize((width, height), Image.Resampling.LANCZOS))

"""The pictures of an atlas: pixels, or files read when thumbnails are made; sprite sheets, not thousands of files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.archive import Entry
from ..data.cache import read_entry
from ..data.decode import Square, decode
from ..data.images import Images, check_known

LARGEST = 256  # pixels a side of a picture on the page
GREY = 128  # stands for a file that cannot be read
SHEET, MANY_SHEET = 1024, 512  # pixels a side: small enough to decode without a pause, smaller where there are many
MANY = 20_000  # images
LOSSLESS_BYTES = 12_000_000  # sets of pixels up to this size are kept exactly
LARGE_BYTES = 160_000_000  # of large pictures; about 0.35 bytes a pixel


@dataclass(frozen=True)
class Photos:
    """N image files and what is known of them; what `Images` is for pixels.

    Attributes
    ----------
    paths : the files, of which a square is cut from the middle. One that cannot be read becomes a grey picture.
    labels, backgrounds, class_names, background_names, names : as in `Images`; without names, the paths below
        the folder they share.
    """

    paths: Sequence[Path | str]
    labels: np.ndarray | None = None
    backgrounds: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    background_names: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.names is None and len(self.paths):  # where the files lay is nobody else's business
            whole = [os.path.abspath(path) for path in self.paths]
            above = os.path.commonpath([os.path.dirname(path) for path in whole])
            object.__setattr__(self, "names", tuple(os.path.relpath(path, above) for path in whole))
        check_known(self)

    def __len__(self) -> int:
        return len(self.paths)


def picture_size(images: Images | Photos) -> tuple[int, int]:
    """Height and width of the originals, as far as they are alike."""
    return (LARGEST, LARGEST) if isinstance(images, Photos) else images.pixels.shape[2:]


def read_pictures(images: Images | Photos, rows: np.ndarray, height: int, width: int) -> np.ndarray:
    """The pictures of these rows, uint8 [R, height, width, 3]."""
    if isinstance(images, Photos):
        square = Square(height, height)
        found = [read_with(images.paths[i], lambda data: decode(data, square), height) for i in rows]
        return np.stack(found).transpose(0, 2, 3, 1)
    part = np.ascontiguousarray(images.pixels[rows].transpose(0, 2, 3, 1))
    if part.shape[1:3] == (height, width):
        return part
    lanczos = Image.Resampling.LANCZOS
    return np.stack([np.asarray(Image.fromarray(image).resize((width, height), lanczos)) for image in part])


def read_with(path: Path | str, read: Callable[[bytes], np.ndarray], side: int) -> np.ndarray:
    """A file as `read` gives it, uint8 [3, side, side]; grey where it cannot be read."""
    found = read_entry(Entry("", Path(path)), read) if os.path.isfile(path) else ""
    return np.full((3, side, side), GREY, np.uint8) if isinstance(found, str) else found


def thumbnail_side(count: int) -> int:
    """The longest side of a picture in a row of others."""
    return 96 if count <= 4000 else 64


def large_side(count: int) -> int:
    """The longest side of a picture shown by itself: LARGEST, less where there are many; 0 where there are too many."""
    side = min(LARGEST, int(math.sqrt(LARGE_BYTES / 0.35 / max(count, 1))) // 32 * 32)
    return side if side > thumbnail_side(count) else 0


def fitted(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width with the longer of the two at most `side`."""
    scale = min(1.0, side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def write_sprites(images: Images | Photos, folder: Path, side: int, rows: np.ndarray | None = None) -> dict:
    """Write the pictures of `rows` (default all) as sheets into `folder`; return where the page finds each of them.

    A tile's sides are multiples of 8, JPEG's block, and its margin repeats the edge, so no picture bleeds into another.
    """
    chosen = np.arange(len(images)) if rows is None else rows
    n = len(chosen)
    h, w = fitted(*picture_size(images), side)
    tile_h, tile_w = math.ceil(h / 8) * 8, math.ceil(w / 8) * 8
    sheet_side = SHEET if n <= MANY else MANY_SHEET
    columns, lines = max(1, sheet_side // tile_w), max(1, sheet_side // tile_h)
    lossless = n * h * w * 3 <= LOSSLESS_BYTES and not isinstance(images, Photos)
    # colour at full resolution: the pictures are small and get enlarged
    options = {"optimize": True} if lossless else {"quality": 88, "subsampling": 0}
    folder.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    for a in range(0, n, columns * lines):
        part = read_pictures(images, chosen[a : a + columns * lines], h, w)
        part = np.pad(part, ((0, 0), (0, tile_h - h), (0, tile_w - w), (0, 0)), "edge")
        used = math.ceil(len(part) / columns)
        tiles = np.zeros((used * columns, tile_h, tile_w, 3), np.uint8)
        tiles[: len(part)] = part
        tiles = tiles.reshape(used, columns, tile_h, tile_w, 3).swapaxes(1, 2)
        sheet = Image.fromarray(tiles.reshape(used * tile_h, columns * tile_w, 3))
        name = f"sheet-{len(files)}.{'png' if lossless else 'jpg'}"
        sheet.save(folder / name, **options)
        files.append(f"{folder.name}/{name}")
    return {"files": files, "columns": columns, "rows": lines, "tile": [tile_h, tile_w], "size": [h, w], "count": n}

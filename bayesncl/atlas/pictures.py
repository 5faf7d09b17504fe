"""The pictures of an atlas, as sprite sheets: a few dozen files instead of thousands."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bayesncl.data.cache import read_files
from bayesncl.data.decode import Square
from bayesncl.data.images import Images, check_annotations

LARGE_SIDE = 320  # pixels, of a picture shown by itself
LARGE_BYTES = 160_000_000  # limit for all large pictures, at about 0.35 bytes per pixel
LOSSLESS_BYTES = 12_000_000  # pixels up to this size are stored as PNG
GRAY = 128  # shown instead of a file that cannot be read


@dataclass(frozen=True)
class Photos:
    """Image files and their labels; the counterpart of `Images` for files.

    Attributes
    ----------
    paths : the files; gray if one cannot be read. Thumbnails show the central square.
    labels, backgrounds, class_names, background_names : as in `Images`.
    names : as in `Images`; by default the paths relative to their common folder.
    root : folder that the names are relative to; None if it is not to be shown.
    """

    paths: Sequence[Path | str]
    labels: np.ndarray | None = None
    backgrounds: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    background_names: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    root: str | None = None

    def __post_init__(self) -> None:
        if self.names is None and len(self.paths):  # absolute paths would reveal the user's folders
            paths = [os.path.abspath(path) for path in self.paths]
            root = os.path.commonpath([os.path.dirname(path) for path in paths])
            object.__setattr__(self, "names", tuple(os.path.relpath(p, root) for p in paths))
            object.__setattr__(self, "root", root)
        check_annotations(self)

    def __len__(self) -> int:
        return len(self.paths)


def picture_size(images: Images | Photos) -> tuple[int, int]:
    """Height and width of the largest picture to show."""
    return (LARGE_SIDE, LARGE_SIDE) if isinstance(images, Photos) else images.pixels.shape[2:]


def read_pictures(
    images: Images | Photos, rows: np.ndarray, height: int, width: int, whole: bool = False
) -> list[np.ndarray]:
    """Read and resize some pictures, uint8 [height, width, 3]; `whole` photos may be smaller."""
    if isinstance(images, Photos):
        cut = partial(fit_into, side=height) if whole else Square(height, height).cut
        photos = read_photos(images, rows, cut, 2 * height, height)
        return [photo.transpose(1, 2, 0) for photo in photos]
    pixels = images.pixels[rows].transpose(0, 2, 3, 1)
    if pixels.shape[1:3] == (height, width):
        return list(pixels)
    size = (width, height)
    return [np.asarray(Image.fromarray(x).resize(size, Image.Resampling.LANCZOS)) for x in pixels]


def fit_into(image: Image.Image, side: int) -> np.ndarray:
    """The whole image, uint8 [3, h, w], with sides of at most `side` pixels."""
    image.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(image).transpose(2, 0, 1)


def read_photos(
    photos: Photos, rows: Iterable[int], use: Callable[[Image.Image], np.ndarray], min_side: int,
    side: int,
) -> Iterator[np.ndarray]:  # fmt: skip
    """Some files as `decode` gives them, uint8 [3, h, w]; a gray square if one cannot be read."""
    gray = np.full((3, side, side), GRAY, np.uint8)
    for photo in read_files((Path(photos.paths[i]) for i in rows), use, min_side):
        yield gray if isinstance(photo, Exception) else photo


def thumbnail_side(count: int) -> int:
    """The longer side of a thumbnail in an atlas of `count` images."""
    return 96 if count <= 4000 else 64


def large_side(count: int) -> int:
    """The longer side of a large picture; 0 if there are too many images for large pictures."""
    side = min(LARGE_SIDE, int(math.sqrt(LARGE_BYTES / 0.35 / max(count, 1))) // 32 * 32)
    return side if side > thumbnail_side(count) else 0


def write_sprites(
    images: Images | Photos, folder: Path, side: int, rows: np.ndarray | None = None,
    whole: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Write the pictures of `rows` (default all) as sheets into `folder`, and return the layout.

    The longer side of a picture is at most `side`. The sides of a tile are multiples of 8, the
    block of JPEG, and its margin repeats the edge, so that neighbors do not bleed into each other.
    Photos are cropped to squares, unless they are `whole`: then `sizes` [N, 2] has their heights
    and widths.
    """
    rows = np.arange(len(images)) if rows is None else rows
    n, photos = len(rows), isinstance(images, Photos)
    height, width = picture_size(images)
    scale = min(1.0, side / max(height, width))
    h, w = max(1, round(height * scale)), max(1, round(width * scale))
    tile_h, tile_w = math.ceil(h / 8) * 8, math.ceil(w / 8) * 8
    # Small sheets decode without a pause; of many images a view needs only a few per sheet.
    sheet_side = 1024 if n <= 20_000 else 512
    columns, lines = max(1, sheet_side // tile_w), max(1, sheet_side // tile_h)
    lossless = n * h * w * 3 <= LOSSLESS_BYTES and not photos
    # no chroma subsampling: the pictures are small and get enlarged
    options = {"optimize": True} if lossless else {"quality": 88, "subsampling": 0}
    folder.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    sizes: list[tuple[int, ...]] = []
    for start in range(0, n, columns * lines):
        part = read_pictures(images, rows[start : start + columns * lines], h, w, whole)
        sizes += [x.shape[:2] for x in part]
        used = math.ceil(len(part) / columns)
        sheet = np.zeros((used * tile_h, columns * tile_w, 3), np.uint8)
        for i, x in enumerate(part):
            top, left = i // columns * tile_h, i % columns * tile_w
            margin = ((0, tile_h - x.shape[0]), (0, tile_w - x.shape[1]), (0, 0))
            sheet[top : top + tile_h, left : left + tile_w] = np.pad(x, margin, "edge")
        name = f"sheet-{len(files)}.{'png' if lossless else 'jpg'}"
        Image.fromarray(sheet).save(folder / name, **options)
        files.append(f"{folder.name}/{name}")
    return {
        "files": files, "count": n, "columns": columns, "rows": lines, "tile": [tile_h, tile_w],
        "size": [h, w], "sizes": np.array(sizes) if photos and whole else None,
    }  # fmt: skip

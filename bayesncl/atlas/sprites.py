"""Images as sprite sheets: a few files instead of thousands."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.images import Images
from .photos import Photos, picture_size, read_pictures

SHEET, MANY_SHEET = 1024, 512  # pixels a side: small enough to decode without a pause, smaller where there are many
MANY = 20_000  # images
LOSSLESS_BYTES = 12_000_000  # sets of pixels up to this size are kept exactly
LARGE_BYTES = 160_000_000  # of large pictures; about 0.35 bytes a pixel


def thumbnail_side(count: int) -> int:
    """The longest side of a picture in a row of others."""
    return 96 if count <= 4000 else 64


def large_side(count: int) -> int:
    """The longest side of a picture shown by itself: 256, less where there are many; 0 where there are too many."""
    side = min(256, int(math.sqrt(LARGE_BYTES / 0.35 / max(count, 1))) // 32 * 32)
    return side if side > thumbnail_side(count) else 0


def fitted(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width with the longer of the two at most `side`."""
    scale = min(1.0, side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def write_sprites(
    images: Images | Photos, folder: Path, side: int, rows: np.ndarray | None = None
) -> dict[str, object]:
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
    suffix = "png" if lossless else "jpg"
    folder.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    for a in range(0, n, columns * lines):
        part = read_pictures(images, chosen[a : a + columns * lines], h, w)
        part = np.pad(part, ((0, 0), (0, tile_h - h), (0, tile_w - w), (0, 0)), "edge")
        used = math.ceil(len(part) / columns)
        tiles = np.zeros((used * columns, tile_h, tile_w, 3), np.uint8)
        tiles[: len(part)] = part
        tiles = tiles.reshape(used, columns, tile_h, tile_w, 3).swapaxes(1, 2)
        sheet = tiles.reshape(used * tile_h, columns * tile_w, 3)
        name = f"sheet-{len(files)}.{suffix}"
        if lossless:
            Image.fromarray(sheet).save(folder / name, optimize=True)
        else:  # colour at full resolution: the pictures are small and get enlarged
            Image.fromarray(sheet).save(folder / name, quality=88, subsampling=0)
        files.append(f"{folder.name}/{name}")
    return {"files": files, "columns": columns, "rows": lines, "tile": [tile_h, tile_w], "size": [h, w], "count": n}

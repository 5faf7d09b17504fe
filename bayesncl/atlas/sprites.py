"""Images as sprite sheets: a few files instead of thousands."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

SHEET = 1024  # pixels a side: small enough to decode without a pause
LOSSLESS_BYTES = 12_000_000  # sets of pixels up to this size are kept exactly


def thumbnail_size(height: int, width: int, count: int) -> tuple[int, int]:
    """Height and width of a picture on the page: the image's own up to 96 pixels a side, 64 where there are many."""
    side = 96 if count <= 4000 else 64
    scale = min(1.0, side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def write_sprites(pixels: np.ndarray, folder: Path) -> dict[str, object]:
    """Write `pixels` (uint8 [N, 3, H, W]) as sheets into `folder`; return where the page finds each image.

    A tile's sides are multiples of 8, JPEG's block, and its margin repeats the edge, so no picture bleeds into another.
    """
    n, _, height, width = pixels.shape
    h, w = thumbnail_size(height, width, n)
    tile_h, tile_w = math.ceil(h / 8) * 8, math.ceil(w / 8) * 8
    columns, rows = max(1, SHEET // tile_w), max(1, SHEET // tile_h)
    lossless = n * h * w * 3 <= LOSSLESS_BYTES
    suffix = "png" if lossless else "jpg"
    folder.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    for a in range(0, n, columns * rows):
        part = pixels[a : a + columns * rows].transpose(0, 2, 3, 1)
        if (h, w) != (height, width):
            part = np.stack([_shrink(image, h, w) for image in part])
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
    return {"files": files, "columns": columns, "rows": rows, "tile": [tile_h, tile_w], "size": [h, w]}


def _shrink(image: np.ndarray, height: int, width: int) -> np.ndarray:
    whole = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(whole.resize((width, height), Image.Resampling.LANCZOS))

"""From the bytes of an image file to a square of uint8 pixels; files from strangers are expected."""

from __future__ import annotations

import contextlib
import io
import math
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from .images import spread_evenly

# Only these readers are tried, whatever the file's name says: Pillow knows others that start programs (EPS).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

MOST_PIXELS = 89_478_485  # Pillow's own limit: more is taken for a decompression bomb
MOST_DECODED = 50_000_000  # pixels held in memory; a JPEG is reduced while it is decoded, so it may have more
MANY = 4_000_000  # images of more pixels than this are decoded one at a time
STRIP = 1 << 20  # pixels converted at a time
ONE_LARGE = threading.Lock()
MOST_BYTES = 256 << 20  # of one image file

BICUBIC, BILINEAR = int(Image.Resampling.BICUBIC), int(Image.Resampling.BILINEAR)
T = TypeVar("T")


class Undecodable(Exception):
    """The bytes are not an image we can read; the message says why."""


@dataclass(frozen=True)
class Square:
    """How images are stored: short side to `resize`, then the centre square of side `crop`."""

    resize: int
    crop: int
    resample: int = BICUBIC

    def cut(self, image: Image.Image) -> np.ndarray:
        """The square, uint8 [3, crop, crop], of an RGB image.

        Resized and cropped in one step: a strip of 1 x 10^7 pixels is never blown up to its full length.
        """
        if self.crop != self.resize or image.size != (self.crop, self.crop):
            side = min(image.size) * min(self.crop / self.resize, 1.0)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            size, box = (self.crop, self.crop), (left, top, left + side, top + side)
            image = image.resize(size, Image.Resampling(self.resample), box=box, reducing_gap=3.0)
        return np.asarray(image).transpose(2, 0, 1)


def decode(data: bytes, square: Square) -> np.ndarray:
    """Decode one image file: uint8 [3, square.crop, square.crop], upright, on white where it was transparent.

    Of several frames the first is taken. Undecodable is raised for what is no image, is damaged, or is too large.
    """
    return decode_with(data, 2 * square.resize, square.cut)


def decode_with(data: bytes, enough: int, use: Callable[[Image.Image], T]) -> T:
    """What `use` makes of an image file as RGB, upright; a JPEG may come reduced, its sides `enough` or more.

    Raises Undecodable as `decode` does.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Undecodable(f"{image.width} x {image.height} pixels, more than {MOST_PIXELS}")
            # A JPEG can be decoded at 1/2, 1/4 or 1/8; twice the wanted size leaves the resize something to filter.
            image.draft("RGB", (enough, enough))
            count = image.width * image.height
            if count > MOST_DECODED:
                raise Undecodable(f"{image.width} x {image.height} pixels, more than {MOST_DECODED:,}")
            with ONE_LARGE if count > MANY else contextlib.nullcontext():
                return use(to_rgb(image))
    except Undecodable:
        raise
    except UnidentifiedImageError:
        raise Undecodable("not a JPEG, PNG, WebP, BMP, GIF or TIFF image") from None
    except Exception as error:  # damaged files make Pillow's readers raise nearly anything
        raise Undecodable(f"{type(error).__name__}: {error}") from None


def resized(pixels: np.ndarray, size: int) -> np.ndarray:
    """Images [N, 3, H, W] as decode() would store them at `size`; those of that size are returned as they are."""
    if pixels.shape[2:] == (size, size):
        return pixels
    out = np.empty((len(pixels), 3, size, size), np.uint8)
    for row, image in zip(out, pixels):
        row[:] = Square(size, size).cut(Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))))
    return out


def sizes_in_words(paths: Sequence[Path | str], root: Path = Path()) -> str:
    """Sizes of images below `root`, by the heads of 64: ``a x b``, ``a x b to c x d``, or nothing if none opens."""
    found = set()
    for i in spread_evenly(len(paths), 64):
        with contextlib.suppress(Exception), warnings.catch_warnings():  # what is wrong is said when it is read
            warnings.simplefilter("ignore")
            with Image.open(root / paths[i], formats=FORMATS) as image:
                found.add(image.size)
    ends = [pick(found, key=math.prod, default=()) for pick in (min, max)]
    return " to ".join(dict.fromkeys(" x ".join(map(str, size)) for size in ends))


def to_rgb(image: Image.Image) -> Image.Image:
    """Any image as RGB: turned as its EXIF says, 16-bit and float scaled to 8 bits, transparency laid on white."""
    image.load()
    with contextlib.suppress(Exception):  # damaged EXIF beside good pixels
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith(("I", "F")):
        image = _eight_bits(image)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    out = Image.new("RGB", image.size)
    for rows in _strips(image.width, image.height):  # else three copies would be held at once
        strip = image.crop((0, rows.start, image.width, rows.stop)).convert("RGBA")
        out.paste(Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip).convert("RGB"), (0, rows.start))
    return out


def _strips(width: int, height: int) -> list[slice]:
    step = max(1, STRIP // width)
    return [slice(top, min(top + step, height)) for top in range(0, height, step)]


def _eight_bits(image: Image.Image) -> Image.Image:
    """I;16 reaches from 0 to 65535; I and F do not say, so the smallest usual range that holds them is taken."""
    values = np.asarray(image)
    if not np.isfinite(values).all():
        raise Undecodable("NaN or infinite pixels")
    if image.mode.startswith("I;16"):
        white = 65535.0
    else:
        usual = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        white = next((top for top in usual if values.max() <= top), float(values.max()))
    out = np.empty(values.shape, np.uint8)
    for rows in _strips(image.width, image.height):
        out[rows] = (values[rows].astype(np.float32).clip(0, white) * (255.0 / white)).round()
    return Image.fromarray(out)

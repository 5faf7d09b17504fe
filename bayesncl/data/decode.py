"""Decode image files of unknown origin to squares of uint8 pixels."""

import contextlib
import functools
import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from bayesncl.data.images import spread_evenly

# Only these decoders are tried, whatever the suffix: Pillow has others that start programs (EPS).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "HEIF")
SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif",
)  # fmt: skip
BICUBIC, BILINEAR = int(Image.Resampling.BICUBIC), int(Image.Resampling.BILINEAR)
T = TypeVar("T")

warnings.filterwarnings("ignore", module=r"PIL\.")  # remarks on damaged metadata


class Undecodable(ValueError):
    """The bytes are not an image that can be decoded; the message says why."""


@dataclass(frozen=True)
class Square:
    """How images are stored: short side resized to `resize`, center square of side `crop`."""

    resize: int
    crop: int
    resample: int = BICUBIC

    def cut(self, image: Image.Image) -> np.ndarray:
        """The square of an RGB image, uint8 [3, crop, crop].

        Resizing and cropping are one step: a strip of 1 x 10^7 pixels is never enlarged in full.
        """
        if self.crop != self.resize or image.size != (self.crop, self.crop):
            side = min(image.size) * min(self.crop / self.resize, 1.0)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            size, box = (self.crop, self.crop), (left, top, left + side, top + side)
            resample = Image.Resampling(self.resample)
            image = image.resize(size, resample, box=box, reducing_gap=3.0)
        return np.asarray(image).transpose(2, 0, 1)


def decode(data: bytes, square: Square) -> np.ndarray:
    """Decode an image file: uint8 [3, crop, crop], upright, on white where it is transparent.

    An animation gives its first frame. Raises Undecodable if it is damaged, too large or no image.
    """
    return decode_with(data, 2 * square.resize, square.cut)


def decode_with(data: bytes, min_side: int, use: Callable[[Image.Image], T]) -> T:
    """`use(image)` of an image file as upright RGB; a JPEG may come reduced to `min_side` or more.

    Raises Undecodable as `decode` does.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            # A JPEG decodes at 1/2, 1/4 or 1/8; twice the final size leaves detail to filter.
            image.draft("RGB", (min_side, min_side))
            return use(to_rgb(image))
    except Undecodable:
        raise
    except UnidentifiedImageError:
        if data[4:8] == b"ftyp" and "HEIF" not in _formats():
            raise Undecodable("HEIC needs the extra `heic`: pip install pillow-heif") from None
        raise Undecodable(f"not an image of a known format ({', '.join(_formats())})") from None
    except Exception as error:  # damaged files make Pillow raise almost anything
        raise Undecodable(f"{type(error).__name__}: {error}") from None


@functools.cache
def _formats() -> tuple[str, ...]:
    """The formats that can be decoded here; AVIF needs Pillow 11.3, HEIF the extra `heic`."""
    with contextlib.suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def resize_images(pixels: np.ndarray, size: int) -> np.ndarray:
    """Images [N, 3, H, W] as decode() would store them at `size`; no copy if they have it."""
    if pixels.shape[2:] == (size, size):
        return pixels
    out = np.empty((len(pixels), 3, size, size), np.uint8)
    for row, image in zip(out, pixels):
        rgb = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        row[:] = Square(size, size).cut(rgb)
    return out


def describe_sizes(paths: Sequence[Path | str], root: Path = Path()) -> str:
    """Range of image sizes by the headers of 64 files: ``a x b``, ``a x b to c x d`` or empty."""
    sizes = set()
    for i in spread_evenly(len(paths), 64):
        # Errors are reported when the image is decoded.
        with (
            contextlib.suppress(Exception),
            Image.open(root / paths[i], formats=_formats()) as image,
        ):
            sizes.add(image.size)
    ends = [pick(sizes, key=math.prod, default=()) for pick in (min, max)]
    return " to ".join(dict.fromkeys(" x ".join(map(str, size)) for size in ends))


def to_rgb(image: Image.Image) -> Image.Image:
    """The image as upright 8-bit RGB, transparency on white."""
    image.load()
    with contextlib.suppress(Exception):  # damaged EXIF beside good pixels
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith(("I", "F")):
        image = _to_eight_bits(image)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale to 0..255: I;16 from 0..65535, I and F from the smallest usual range that fits."""
    values = np.asarray(image).astype(np.float32)
    if not np.isfinite(values).all():
        raise Undecodable("NaN or infinite pixels")
    usual = {"F": (1.0, 255.0, 65535.0), "I": (255.0, 65535.0)}.get(image.mode, (65535.0,))
    white = next((top for top in usual if values.max() <= top), float(values.max()))
    scaled = values.clip(0, white) * (255.0 / white)
    return Image.fromarray(scaled.round().astype(np.uint8))

"""Images of any form as uint8 or float pixels: files of unknown origin, PIL images, arrays."""

import contextlib
import functools
import io
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from bayesncl.data.images import spread_evenly
from bayesncl.errors import InputError, as_input_error

# Only these decoders are tried, whatever the suffix: Pillow has others that start programs (EPS).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "HEIF")
SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif",
)  # fmt: skip
BICUBIC, BILINEAR = int(Image.Resampling.BICUBIC), int(Image.Resampling.BILINEAR)
N_HEADERS = 1000  # files whose sizes are read in advance
Picture = Image.Image | str | Path
Pictures = Tensor | np.ndarray | Picture | Sequence[Picture]
T = TypeVar("T")
Pixels = TypeVar("Pixels", Tensor, np.ndarray)
EXPECTED = "expected uint8 or float in [0, 1], [N, 3, H, W] or [N, H, W, 3]; PIL images; or paths"

warnings.filterwarnings("ignore", module=r"PIL\.")  # remarks on damaged metadata


class Undecodable(ValueError):
    """The bytes are not an image that can be decoded; the message says why."""


@dataclass(frozen=True)
class Square:
    """How images are stored: short side resized to `resize`, center square of side `crop`."""

    resize: int
    crop: int
    resample: int = BICUBIC

    @property
    def min_side(self) -> int:
        """Side to which an image may be reduced before it is cut: leaves detail to filter."""
        return 2 * self.resize

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


def decode(data: bytes, use: Callable[[Image.Image], T], min_side: int) -> T:
    """`use(image)` of an image file as RGB, upright, on white where it is transparent.

    A JPEG may come reduced, to sides of `min_side` or more; an animation gives its first frame.
    Raises Undecodable if the file is damaged, too large or no image.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            # A JPEG decodes at 1/2, 1/4 or 1/8.
            image.draft("RGB", (min_side, min_side))
            return use(to_rgb(image))
    except Undecodable:
        raise
    except UnidentifiedImageError:
        if data[4:8] == b"ftyp" and "HEIF" not in _formats():
            raise Undecodable("HEIC needs the extra `heic`: pip install pillow-heif") from None
        raise Undecodable("not an image of a known format") from None
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
    """Images [N, 3, H, W] as the cache would store them at `size`; no copy if they have it."""
    if pixels.shape[2:] == (size, size):
        return pixels
    out = np.empty((len(pixels), 3, size, size), np.uint8)
    for row, image in zip(out, pixels):
        rgb = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        row[:] = Square(size, size).cut(rgb)
    return out


def describe_sizes(paths: Sequence[Path | str], root: Path = Path()) -> str:
    """Range of image sizes, ``a x b to c x d``, by the headers of some files; or empty."""
    sizes, some = set(), spread_evenly(len(paths), N_HEADERS)
    for i in some:
        # Errors are reported when the image is decoded.
        with (
            contextlib.suppress(Exception),
            Image.open(root / paths[i], formats=_formats()) as image,
        ):
            sizes.add(image.size)
    ends = [pick(sizes, key=math.prod, default=()) for pick in (min, max)]
    text = " to ".join(dict.fromkeys(" x ".join(map(str, size)) for size in ends))
    return f"mostly {text}" if text and len(some) < len(paths) else text


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


def as_pixels(images: Pictures, square: Square) -> Tensor:
    """uint8 or float [N, 3, H, W]: arrays keep their size, PIL images and files become squares."""
    batch = as_batch(images)
    if isinstance(batch, Tensor):
        return batch
    if not batch:
        return torch.empty(0, 3, square.crop, square.crop, dtype=torch.uint8)
    pixels = [read_picture(picture, square.cut, square.min_side) for picture in batch]
    return torch.from_numpy(np.stack(pixels))


def as_batch(images: Pictures) -> Tensor | list[Image.Image | Path]:
    """Arrays as uint8 or float [N, 3, H, W], others as a list of PIL images and paths."""
    if isinstance(images, Image.Image | str | os.PathLike):
        images = [images]
    if isinstance(images, list | tuple):
        if other := [x for x in images if not isinstance(x, Image.Image | str | os.PathLike)]:
            raise InputError(f"a list of {type(other[0]).__name__}; {EXPECTED}")
        return [image if isinstance(image, Image.Image) else Path(image) for image in images]
    try:  # a copy of an array: torch takes no negative strides
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
    except TypeError:
        raise InputError(f"{EXPECTED}; got {type(images).__name__}") from None
    pixels = channels_first(pixels)
    return pixels if pixels.dtype == torch.uint8 else pixels.float()


def channels_first(pixels: Pixels) -> Pixels:
    """uint8 or float [N, 3, H, W] of color or gray images, one or many, with the channel anywhere.

    Several gray images need their channel, [N, 1, H, W]: [3, H, W] is one color image.
    """
    x: Any = pixels
    if x.ndim == 2:
        x = x[None, None]
    elif x.ndim == 3 and (x.shape[0] in (1, 3)) != (x.shape[2] in (1, 3)):
        x = x[None]
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.swapaxes(1, 3).swapaxes(2, 3)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[2:]:
        raise InputError(f"{EXPECTED}; gray is [N, 1, H, W]; got shape {list(pixels.shape)}")
    dtype = str(x.dtype).removeprefix("torch.")
    if "float" in dtype and len(x) and not (x.min() >= 0 and x.max() <= 1):  # NaN too
        seen = f"[{x.min():.3g}, {x.max():.3g}]"
        raise InputError(f"float images must lie in [0, 1], got {seen}")
    if "float" not in dtype and dtype != "uint8":
        raise InputError(f"{EXPECTED}; got {dtype}")
    return x if x.shape[1] == 3 else x[:, [0, 0, 0]]


def read_picture(
    picture: Image.Image | Path, use: Callable[[Image.Image], T], min_side: int
) -> T:
    """`use(image)` of a PIL image or a file, as upright RGB."""
    if not isinstance(picture, Path):
        return use(to_rgb(picture))
    with as_input_error(picture, OSError, Undecodable):
        return decode(picture.read_bytes(), use, min_side)

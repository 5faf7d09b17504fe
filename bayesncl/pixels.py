"""Whatever a person calls images: one or many, as pixels, PIL images or files; and what is made of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from .data.archive import Entry
from .data.cache import read_entry
from .data.decode import Square, decode_with, to_rgb
from .errors import InputError, printable, shown

Pictures = Tensor | np.ndarray | Image | str | Path | Sequence[Image | str | Path]
EXPECTED = "images must be uint8 or float in [0, 1], [N, 3, H, W] or [N, H, W, 3]; PIL images; or paths"


def as_pixels(images: Pictures, square: Square) -> Tensor:
    """uint8 or float [N, 3, H, W]: arrays at their own size, PIL images and files cut to `square`."""
    given = as_batch(images)
    if isinstance(given, Tensor):
        return given
    if not given:
        return torch.empty(0, 3, square.crop, square.crop, dtype=torch.uint8)
    return torch.from_numpy(np.stack([read_picture(picture, square.cut, 2 * square.resize) for picture in given]))


def as_batch(images: Pictures) -> Tensor | list[Image | Path]:
    """Arrays as uint8 or float [N, 3, H, W], anything else as a list of PIL images and paths. One image is N = 1."""
    if isinstance(images, Image | str | os.PathLike):
        images = [images]
    if isinstance(images, list | tuple):
        if strange := [type(i).__name__ for i in images if not isinstance(i, Image | str | os.PathLike)]:
            raise InputError(f"a list must hold PIL images or paths, got {strange[0]}; give arrays as one [N, 3, H, W]")
        return [image if isinstance(image, Image) else Path(image) for image in images]
    if not isinstance(images, Tensor | np.ndarray):
        raise InputError(f"{EXPECTED}; got {type(images).__name__}")
    try:
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))  # a copy: any strides
    except TypeError:
        raise InputError(f"{EXPECTED}; got {images.dtype}") from None
    pixels = channels_first(pixels)
    if pixels.dtype == torch.uint8:
        return pixels
    if not pixels.is_floating_point():
        raise InputError(f"{EXPECTED}; got {pixels.dtype}")
    if len(pixels) and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise InputError(f"float images must lie in [0, 1], got [{pixels.min():.3g}, {pixels.max():.3g}]")
    return pixels.float()


def channels_first(pixels: Tensor) -> Tensor:
    """[N, 3, H, W] of colour or grey images with the channel first or last, and of a single one.

    Three numbers alone do not tell a few grey images from one in colour: grey ones need their channel, [N, 1, H, W].
    """
    shape = list(pixels.shape)
    x = pixels
    if x.ndim == 2:
        x = x[None, None]
    elif x.ndim == 3 and (shape[0] in (1, 3)) != (shape[2] in (1, 3)):
        x = x[None]
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.permute(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[2:]:
        raise InputError(f"images must be [N, 3, H, W], [N, H, W, 3], grey [N, 1, H, W], or one of them; got {shape}")
    return x if x.shape[1] == 3 else x.expand(-1, 3, -1, -1)


def read_picture(picture: Image | Path, use: Callable[[Image], Any], enough: int) -> Any:
    """What `use` makes of a PIL image or a file, as RGB and upright."""
    if not isinstance(picture, Path):
        return use(to_rgb(picture))
    found = read_entry(Entry("", picture), decode_with, enough, use)
    if isinstance(found, str):
        raise InputError(f"{shown(picture)}: {printable(found, 200)}")
    return found

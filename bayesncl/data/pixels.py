"""Images in any form a user has them: arrays, PIL images or paths, one or many."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from bayesncl.data.decode import Square, Undecodable, decode_with, to_rgb
from bayesncl.errors import InputError, as_input_error

Pictures = Tensor | np.ndarray | Image | str | Path | Sequence[Image | str | Path]
Pixels = TypeVar("Pixels", Tensor, np.ndarray)
EXPECTED = "expected uint8 or float in [0, 1], [N, 3, H, W] or [N, H, W, 3]; PIL images; or paths"


def as_pixels(images: Pictures, square: Square) -> Tensor:
    """uint8 or float [N, 3, H, W]: arrays keep their size, PIL images and files become squares."""
    batch = as_batch(images)
    if isinstance(batch, Tensor):
        return batch
    if not batch:
        return torch.empty(0, 3, square.crop, square.crop, dtype=torch.uint8)
    pixels = [read_picture(picture, square.cut, 2 * square.resize) for picture in batch]
    return torch.from_numpy(np.stack(pixels))


def as_batch(images: Pictures) -> Tensor | list[Image | Path]:
    """Arrays as uint8 or float [N, 3, H, W], others as a list of PIL images and paths."""
    if isinstance(images, Image | str | os.PathLike):
        images = [images]
    if isinstance(images, list | tuple):
        if other := [x for x in images if not isinstance(x, Image | str | os.PathLike)]:
            raise InputError(f"a list of {type(other[0]).__name__}; {EXPECTED}")
        return [image if isinstance(image, Image) else Path(image) for image in images]
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


def read_picture(picture: Image | Path, use: Callable[[Image], Any], min_side: int) -> Any:
    """`use(image)` of a PIL image or a file, as upright RGB."""
    if not isinstance(picture, Path):
        return use(to_rgb(picture))
    with as_input_error(picture, OSError, Undecodable):
        return decode_with(picture.read_bytes(), min_side, use)

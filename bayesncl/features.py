"""Features of a split: h, z, gated and which gates are open.

`sound`: eval mode and the normalisation of training. `paper`: BatchNorm with the statistics of each evaluation batch,
the data's order, the training batch size, and the pixel statistics of the published evaluation.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from . import distributed
from .backbones import batch_statistics
from .data.images import Images, Progress
from .errors import InputError
from .model import Encoder, in_eval_mode

LAYOUT = {"cuda": torch.channels_last}  # in which cuDNN convolves fastest
Pixels = TypeVar("Pixels", Tensor, np.ndarray)


class Extracted(NamedTuple):
    """Features of N images as arrays."""

    h: np.ndarray  # float32 [N, F]
    z: np.ndarray  # float32 [N, D], no gate
    gated: np.ndarray  # float32 [N, D]
    open: np.ndarray | None  # bool [N, D], None without gates that open and close: soft ones do neither


def centre_crop(pixels: Pixels, size: int) -> Pixels:
    """The middle [.., size, size] of larger images; smaller ones stay."""
    height, width = pixels.shape[-2:]
    if min(height, width) <= size:
        return pixels
    top, left = (height - size) // 2, (width - size) // 2
    return pixels[..., top : top + size, left : left + size]


@torch.inference_mode()
def extract(
    model: Encoder, images: Images, mode: str = "sound", batch: int | None = None, progress: Progress | None = None
) -> Extracted:
    """Features of a split; with several processes each computes its share and every one returns the whole.

    Parameters
    ----------
    model : on any device; it comes back as it was, parameters, buffers and mode.
    images : the split, in the order the `paper` mode batches it.
    mode : ``sound`` or ``paper``.
    batch : images at a time; default the training batch for `paper`, 512 otherwise. Only `paper` depends on it.
    """
    if mode not in ("sound", "paper"):
        raise InputError(f"mode must be sound or paper, got {mode!r}")
    recipe = model.recipe
    size = batch or (recipe.run.batch if mode == "paper" else 512)
    mean, std = model.mean, model.std
    if mode == "paper":
        mean = torch.tensor(recipe.data.paper_mean or recipe.data.mean, device=mean.device).view(1, 3, 1, 1)
        std = torch.tensor(recipe.data.paper_std or recipe.data.std, device=mean.device).view(1, 3, 1, 1)
    hard = model.head.kind is not None and model.head.kind.hard
    parts: list[tuple[Tensor, ...]] = []
    starts = list(range(0, len(images), size))
    mine = np.array_split(starts, distributed.world_size())[distributed.rank()].tolist()
    with in_eval_mode(model), batch_statistics(model) if mode == "paper" else nullcontext():
        for i, start in enumerate(mine):
            pixels = torch.from_numpy(np.array(images.pixels[start : start + size])).to(mean.device)
            x = (centre_crop(pixels, recipe.views.size).float() / 255 - mean) / std
            features = model(x.contiguous(memory_format=LAYOUT.get(x.device.type, torch.contiguous_format)))
            opened = features.z.new_zeros(len(pixels), 0, dtype=torch.bool)
            if hard and features.mask is not None:
                opened = features.mask > recipe.gate.threshold
            parts.append((features.h.float(), features.z, features.gated, opened))
            if progress:
                progress(i + 1, len(mine), "features")
    if not parts:
        if distributed.world_size() == 1:
            raise InputError("there are no images to take features of")
        widths = (int(model.backbone.features), recipe.model.dim, recipe.model.dim)  # type: ignore[arg-type]
        gates = mean.new_zeros(0, recipe.model.dim if hard else 0, dtype=torch.bool)
        parts = [(*(mean.new_zeros(0, width) for width in widths), gates)]
    h, z, gated, opened = (distributed.gather_arrays(torch.cat(part)).cpu().numpy() for part in zip(*parts))
    return Extracted(h, z, gated, opened.astype(bool) if hard else None)

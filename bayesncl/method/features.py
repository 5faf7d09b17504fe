"""Features of a split: h, z, gated codes and open gates.

`sound`: eval mode and the normalization of training. `paper`: BatchNorm with the statistics of
each evaluation batch (in the order of the data, of the training batch size) and the pixel
statistics of the published evaluation.
"""

from contextlib import nullcontext
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.data.images import Images, Progress, track
from bayesncl.errors import InputError
from bayesncl.method.backbones import batch_statistics
from bayesncl.method.encoder import Encoder, in_eval_mode

Pixels = TypeVar("Pixels", Tensor, np.ndarray)


class Extracted(NamedTuple):
    """Features of N images as arrays."""

    h: np.ndarray  # float32 [N, F]
    z: np.ndarray  # float32 [N, D], before the gate
    gated: np.ndarray  # float32 [N, D]
    open: np.ndarray | None  # bool [N, D]; None without hard gates


def center_crop(pixels: Pixels, size: int) -> Pixels:
    """The middle [.., size, size] of larger images; smaller ones unchanged."""
    height, width = pixels.shape[-2:]
    if min(height, width) <= size:
        return pixels
    top, left = (height - size) // 2, (width - size) // 2
    return pixels[..., top : top + size, left : left + size]


@torch.inference_mode()
def extract(
    model: Encoder, images: Images, mode: str = "sound", batch: int | None = None,
    progress: Progress | None = None,
) -> Extracted:
    """Compute the features of a split in a mode, ``sound`` or ``paper``; the model is unchanged.

    Several processes share the work and all get the result. `batch` images are forwarded at a time,
    which affects only `paper`, whose default is the training batch.
    """
    if len(images) == 0:
        raise InputError("there are no images to extract features from")
    recipe, device = model.recipe, model.mean.device
    size = batch or (recipe.run.batch if mode == "paper" else 512)
    mean, std = model.mean, model.std
    if mode == "paper":
        data = recipe.data
        mean = torch.tensor(data.paper_mean or data.mean, device=device).view(1, 3, 1, 1)
        std = torch.tensor(data.paper_std or data.std, device=device).view(1, 3, 1, 1)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    hard = model.head.kind is not None and model.head.kind.hard
    widths = int(model.backbone.features), model.head.dim, model.head.dim  # type: ignore[arg-type]
    no_gates = torch.empty(0, model.head.dim if hard else 0, dtype=torch.bool, device=device)
    # a process without images contributes no rows
    parts = [[*(torch.empty(0, width, device=device) for width in widths), no_gates]]
    starts = np.arange(0, len(images), size)
    mine = np.array_split(starts, distributed.world_size())[distributed.rank()].tolist()
    with in_eval_mode(model), batch_statistics(model) if mode == "paper" else nullcontext():
        for start in track(mine, len(mine), "features", progress):
            pixels = torch.from_numpy(np.array(images.pixels[start : start + size])).to(device)
            x = (center_crop(pixels, recipe.views.size).float() / 255 - mean) / std
            features = model(x.contiguous(memory_format=layout))
            opened = no_gates.new_empty(len(x), 0)
            if hard and features.mask is not None:
                opened = features.mask > recipe.gate.threshold
            parts.append([features.h.float(), features.z, features.gated, opened])
    h, z, gated, gates = (
        distributed.gather_arrays(torch.cat(part)).cpu().numpy() for part in zip(*parts)
    )
    return Extracted(h, z, gated, gates if hard else None)

"""Where in an image a dimension fires: the head applied at each position of the backbone's last feature map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from .errors import InputError
from .model import Encoder, in_eval_mode

STRONGEST = 8  # dimensions of an image whose maps are kept
DRAWS = 4  # random quarters beside the hottest one
CHECKED = 512  # images of the check that decides whether maps are shown


@dataclass(frozen=True)
class Heat:
    """Maps of some dimensions of N images.

    Attributes
    ----------
    dims : int [N, K], whose maps they are.
    maps : uint8 [N, K, h, w], 255 where the dimension is hottest in that image.
    check : what `masking_drop` found.
    """

    dims: np.ndarray
    maps: np.ndarray
    check: dict[str, float]


def has_positions(model: Encoder) -> bool:
    """Whether the backbone averages a map of features over space at its end, in a layer named `pool`."""
    return isinstance(getattr(model.backbone, "pool", None), nn.AdaptiveAvgPool2d)


@torch.inference_mode()
def heat_maps(model: Encoder, pixels: np.ndarray, dims: np.ndarray, batch: int = 256) -> np.ndarray:
    """How strongly each position alone would drive some dimensions.

    The head (projector, layer norm, rectifier) is applied to the features of each position as if they were those of the
    whole image; nothing is scaled to length 1, and the gates are left out.

    Parameters
    ----------
    model : an encoder whose backbone ends in an average over positions.
    pixels : uint8 [N, 3, H, W].
    dims : int [N, K], the dimensions wanted of each image; or [K], the same of all.

    Returns
    -------
    float32 [N, K, h, w].
    """
    if not has_positions(model):
        raise InputError("the backbone gives no features by position, so there is no map of where a dimension fires")
    wanted = torch.from_numpy(np.array(np.broadcast_to(dims, (len(pixels), np.shape(dims)[-1])), np.int64))
    seen: list[Tensor] = []
    hook = model.backbone.pool.register_forward_pre_hook(lambda _, given: seen.append(given[0]))  # type: ignore
    device, parts = model.mean.device, []
    with hook, in_eval_mode(model):
        for a in range(0, len(pixels), batch):
            model.backbone(model.normalise_pixels(torch.from_numpy(np.array(pixels[a : a + batch])).to(device)))
            f = seen.pop()  # [n, F, h, w]
            n, _, h, w = f.shape
            z = model.head.project(f.permute(0, 2, 3, 1).reshape(n * h * w, -1))[1].reshape(n, h * w, -1)
            picked = wanted[a : a + n, None].expand(n, h * w, -1).to(device)
            parts.append(z.gather(2, picked).transpose(1, 2).reshape(n, -1, h, w).float().cpu())
    return torch.cat(parts).numpy()


def strongest_heat(model: Encoder, pixels: np.ndarray, z: np.ndarray, count: int = STRONGEST) -> Heat | str:
    """Maps of the strongest dimensions of each image, for the atlas, or in words why there are none.

    Maps that fail `masking_drop` on 512 of the images, by less than two standard errors ahead of chance, are not shown.
    """
    if not has_positions(model):
        return "its backbone gives no features by position"
    check = masking_drop(model, pixels[np.unique(np.linspace(0, len(pixels) - 1, CHECKED).astype(int))])
    if check["hottest"] - check["random"] <= 2 * check["error"]:
        return (
            f"greying out the hottest quarter of an image takes {100 * check['hottest']:.0f} % of its strongest "
            f"dimension, a random quarter {100 * check['random']:.0f} %, so the maps of this encoder mean nothing"
        )
    dims = np.argsort(-z, axis=1, kind="stable")[:, :count]
    maps = np.maximum(heat_maps(model, pixels, dims), 0)
    most = maps.max((2, 3), keepdims=True)
    return Heat(dims, np.rint(255 * maps / np.where(most > 0, most, 1)).astype(np.uint8), check)


@torch.inference_mode()
def masking_drop(model: Encoder, pixels: np.ndarray, seed: int = 0, batch: int = 256) -> dict[str, float]:
    """Are the maps right? Grey out the hottest quarter of each image for its strongest dimension, and random quarters.

    Returns
    -------
    `hottest` and `random`: mean loss of that dimension's activation, as a share of it; `error`: the standard error of
    their difference; `images`: how many. Where the maps mean something `hottest` is larger; `random` is the control.
    """
    z = model.encode(pixels, gated=False, batch=batch).numpy()
    dims = z.argmax(1)
    maps = heat_maps(model, pixels, dims[:, None], batch)[:, 0]  # [N, h, w]
    n, h, w = maps.shape
    quarter = max(1, h * w // 4)
    rng = np.random.default_rng(seed)
    masks = [np.argsort(-maps.reshape(n, -1), axis=1, kind="stable")[:, :quarter]]
    masks += [np.argsort(rng.random((n, h * w)), axis=1)[:, :quarter] for _ in range(DRAWS)]
    alive = z[np.arange(n), dims] > 0
    before = z[np.arange(n), dims][alive]
    grey = np.rint(255 * model.mean.flatten().cpu().numpy()).astype(np.uint8)[None, :, None, None]
    drops = []
    for cells in masks:
        hidden = np.zeros((n, h * w), np.uint8)
        np.put_along_axis(hidden, cells, 1, axis=1)
        hidden = hidden.reshape(n, 1, h, w)
        rows = np.arange(pixels.shape[2]) * h // pixels.shape[2]
        columns = np.arange(pixels.shape[3]) * w // pixels.shape[3]
        masked = np.where(hidden[:, :, rows][:, :, :, columns] > 0, grey, pixels)
        after = model.encode(masked, gated=False, batch=batch).numpy()[np.arange(n), dims][alive]
        drops.append((before - after) / before)
    if not len(before):
        return {"hottest": 0.0, "random": 0.0, "error": 0.0, "images": 0}
    hottest, control = drops[0], np.mean(drops[1:], axis=0)
    error = float((hottest - control).std() / np.sqrt(len(before)))
    return {"hottest": float(hottest.mean()), "random": float(control.mean()), "error": error, "images": len(before)}

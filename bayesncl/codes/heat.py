"""Heatmaps: where in an image a dimension is active.

The head is applied to the network's last features at each position.
"""

import copy
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from bayesncl.codes.encoders import View, pool, probe_images, view_of
from bayesncl.codes.open import PhotoCodes
from bayesncl.data.decode import Square
from bayesncl.data.images import Progress, spread_evenly
from bayesncl.errors import InputError
from bayesncl.measure.preprocess import Moments, prepare
from bayesncl.measure.rows import slices
from bayesncl.method.encoder import Encoder, center_crop, in_eval_mode
from bayesncl.method.heads import Features, Head, Prototypes
from bayesncl.method.losses import unit_rows

N_STRONGEST = 8  # dimensions per image with a map
N_CONTROLS = 4  # random quarters beside the hottest one
CHECKING = "checking heat maps"
N_CHECKED = 512  # images that decide whether maps are shown
MAX_EXTRA_TOKENS = 8  # class and register tokens
BATCH_SIZE = 64

Layer = tuple[nn.Module, bool]  # a module, and whether its output or its first input is meant


@dataclass(frozen=True)
class Heatmaps:
    """Maps of some dimensions of N images."""

    dims: np.ndarray  # int [N, K]
    maps: np.ndarray  # uint8 [N, K, h, w]; 255 at the maximum of each map
    check: dict[str, float]  # result of `masking_drop`
    share: float  # share of the picture's side, centered, that the maps cover


@dataclass(frozen=True)
class HeatmapModel:
    """A network and the head on its features h [N, F], of a trained model or of codes."""

    network: nn.Module  # from normalized pixels [n, 3, S, S] to h
    head: Head  # on the same device
    view: View  # of the network; images larger than S are center-cropped
    device: torch.device
    moments: Moments | None = None  # of codes, to prepare h for their head

    @cached_property
    def layer(self) -> Layer | None:
        """The last layer with features by position whose mean, or first token, is h."""
        seen: list[tuple[Layer, Tensor]] = []
        square = Square(self.view.crop, self.view.crop)
        x = self.prepare(np.stack([square.cut(image) for image in probe_images()]))

        def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            both = ((False, inputs[0] if inputs else None), (True, output))
            seen.extend(((module, o), f) for o, f in both if isinstance(f, Tensor) and f is not x)

        with torch.inference_mode(), ExitStack() as stack, in_eval_mode(self.network):
            for module in self.network.modules():
                stack.enter_context(module.register_forward_hook(record))
            h = pool(self.network(x)).float()
        tolerance = 1e-3 * float(h.abs().max()) + 1e-12
        for layer, f in reversed(seen):
            if (found := as_map(f, h.shape[1])) is not None:
                both = [found.float().mean((1, 2)), *([f[:, 0].float()] if f.ndim == 3 else [])]
                if any(float((each - h).abs().max()) <= tolerance for each in both):
                    return layer
        return None

    def prepare(self, pixels: np.ndarray) -> Tensor:
        """Network input from uint8 pixels [n, 3, H, W]."""
        x = center_crop(torch.from_numpy(np.array(pixels)), self.view.crop)
        return self.view.normalize(x.to(self.device).float() / 255)

    @torch.inference_mode()
    def encode(self, pixels: np.ndarray) -> np.ndarray:
        """Codes before any gate, float32 [N, D]."""
        codes = []
        with in_eval_mode(self.network), in_eval_mode(self.head):
            for part in slices(len(pixels), BATCH_SIZE):
                h = pool(self.network(self.prepare(pixels[part])))
                h = h if self.moments is None else prepare(h, self.moments)
                codes.append(self.head(h).z.float().cpu())
        return torch.cat(codes).numpy()

    def score(self, f: Tensor, h: Tensor) -> Tensor:
        """Scores [n, D] of features at positions f [n, F], in images with the features h [n, F].

        At fixed length of h, codes are linear in h. So where h is the mean over positions, the
        score of a dimension is the mean of the scores of the positions. With mirror images, this
        is the half of the image itself.
        """
        x = f if self.moments is None else prepare(f, self.moments, h)
        if self.moments is not None and isinstance(self.head, Prototypes):
            return self.head.projection(x) @ unit_rows(self.head.prototypes).T
        features: Features = self.head(x)
        return features.z if features.aux is None else features.aux  # before rectifier and gates


def heatmaps_of_run(model: Encoder) -> HeatmapModel:
    """Heatmaps of a trained model."""
    return HeatmapModel(model.backbone, model.head, view_of(model), model.mean.device)


def heatmaps_of_codes(codes: PhotoCodes) -> HeatmapModel:
    """Heatmaps of codes through their encoder; InputError if that is not a torch module."""
    encoder, device = codes.encoder, codes.device
    if encoder.network is None:
        raise InputError("the encoder is not a torch module with a plain image preparation")
    head = copy.deepcopy(codes.codes.head_).to(device)
    return HeatmapModel(encoder.network, head, encoder.view, device, codes.codes.moments_)


def as_map(f: Tensor, width: int) -> Tensor | None:
    """Features as [n, h, w, F], from [n, F, h, w], [n, h, w, F] or tokens [n, T, F]."""
    if f.ndim not in (3, 4) or width not in (f.shape[1], f.shape[-1]):
        return None
    if f.ndim == 4:
        found = f.permute(0, 2, 3, 1) if f.shape[1] == width else f
    else:
        side = isqrt(f.shape[1])
        extra = f.shape[1] - side * side  # these come first
        if f.shape[2] != width or extra > MAX_EXTRA_TOKENS:
            return None
        found = f[:, extra:].unflatten(1, (side, side))
    return found if found.shape[1] * found.shape[2] >= 4 else None


@torch.inference_mode()
def compute_maps(
    model: HeatmapModel, pixels: Any, dims: np.ndarray, progress: Progress | None = None
) -> np.ndarray:
    """Score of each position for some dimensions, float32 [N, K, h, w].

    `pixels` is uint8 [N, 3, H, W], or an object that gives such when sliced; `dims` is int [N, K].
    """
    assert model.layer is not None
    module, is_output = model.layer
    seen: list[Tensor] = []

    def record(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        seen.append((output if is_output else inputs[0]).clone())

    parts = []
    hook = module.register_forward_hook(record)
    with hook, in_eval_mode(model.network), in_eval_mode(model.head):
        for part in slices(len(pixels), BATCH_SIZE):
            h = pool(model.network(model.prepare(pixels[part])))
            f = as_map(seen.pop(), h.shape[1])
            assert f is not None
            n, high, wide, _ = f.shape
            z = model.score(f.flatten(0, 2), h.repeat_interleave(high * wide, 0))
            index = torch.from_numpy(dims[part, None]).to(z.device)
            picked = z.unflatten(0, (n, high * wide)).gather(2, index.expand(n, high * wide, -1))
            parts.append(picked.transpose(1, 2).unflatten(2, (high, wide)).float().cpu())
            seen.clear()
            if progress is not None:
                progress(part.stop, len(pixels), "heat maps")
    return torch.cat(parts).numpy()


def strongest_heatmaps(
    model: HeatmapModel, pixels: Any, z: np.ndarray, share: float | None = None,
    progress: Progress | None = None, checked: int = N_CHECKED,
) -> Heatmaps | str:  # fmt: skip
    """Maps of the strongest dimensions of each image, or the reason why there are none.

    On `checked` images, masking the hottest quarter must beat chance by two standard errors; see
    `masking_drop`. `share` is that of `Heatmaps`; the default is the center crop of larger images.
    """
    some = np.asarray(pixels[spread_evenly(len(pixels), checked)])
    check = masking_drop(model, some, progress)
    if check is None:
        return "the encoder has no features by position"
    if check["hottest"] - max(check["random"], 0) <= 2 * check["error"]:
        hottest, control = 100 * check["hottest"], 100 * check["random"]
        return (
            f"masking the hottest quarter of an image lowers its strongest dimension by "
            f"{hottest:.0f} %, a random quarter by {control:.0f} %: these maps are not meaningful"
        )
    dims = np.argsort(-z, axis=1, kind="stable")[:, :N_STRONGEST]
    maps = np.maximum(compute_maps(model, pixels, dims, progress), 0)
    most = maps.max((2, 3), keepdims=True)
    maps = np.rint(255 * maps / np.where(most > 0, most, 1)).astype(np.uint8)
    return Heatmaps(dims, maps, check, share or min(1.0, model.view.crop / some.shape[-1]))


def masking_drop(
    model: HeatmapModel, pixels: np.ndarray, progress: Progress | None = None
) -> dict[str, float] | None:
    """How much the strongest dimension drops when parts of an image are masked.

    Returns `hottest` and `random`: the mean relative drop when the hottest quarter, or random
    quarters, are gray; `error`: the standard error of their difference; `images`: their number.
    None if the network has no features by position.
    """
    if model.layer is None:
        return None
    progress = progress or (lambda *_: None)
    progress(0, N_CONTROLS + 1, CHECKING)
    pixels = center_crop(np.array(pixels), model.view.crop)
    gray = np.rint(255 * np.clip(model.view.mean, 0, 1)).astype(np.uint8)[:, None, None]
    z = model.encode(pixels)
    dims = z.argmax(1)
    alive = np.flatnonzero(z.max(1) > 0)
    if not len(alive):
        return {"hottest": 0.0, "random": 0.0, "error": 0.0, "images": 0}
    before = z[alive, dims[alive]]
    maps = compute_maps(model, pixels, dims[:, None])[:, 0]  # [N, h, w]
    n, h, w = maps.shape
    rng = np.random.default_rng(0)
    coldness = [-maps.reshape(n, h * w), *rng.random((N_CONTROLS, n, h * w))]
    rows, columns = (np.arange(s) * cells // s for s, cells in zip(pixels.shape[2:], (h, w)))
    drops = []
    for done, cold in enumerate(coldness, 1):
        rank = rankdata(cold, "ordinal", axis=1)  # from 1
        hidden = (rank <= max(1, h * w // 4)).reshape(n, 1, h, w)[:, :, rows][:, :, :, columns]
        masked = np.where(hidden, gray, pixels)
        drops.append((before - model.encode(masked)[alive, dims[alive]]) / before)
        progress(done, len(coldness), CHECKING)
    hottest, control = drops[0], np.mean(drops[1:], axis=0)
    error = float((hottest - control).std() / np.sqrt(len(before)))
    means = {"hottest": float(hottest.mean()), "random": float(control.mean())}
    return means | {"error": error, "images": len(before)}

"""Where in an image a dimension fires: the head applied at each position of the network's last features."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .data.images import Progress, spread_evenly
from .encoders import pool
from .errors import InputError
from .features import centre_crop
from .heads import Features, Prototypes
from .model import Encoder, in_eval_mode
from .objective import normalise
from .rows import prepare

if TYPE_CHECKING:
    from .codes_folder import PhotoCodes  # with scikit-learn, which `measure` of a file does without

STRONGEST = 8  # dimensions of an image whose maps are kept
DRAWS = 4  # random quarters beside the hottest one
CHECKED = 512  # images of the check that decides whether maps are shown
EXTRA = 8  # tokens at most that stand for no part of an image
BATCH = 64

Layer = tuple[nn.Module, bool]  # and whether its output is meant, or its first input


@dataclass(frozen=True)
class Heat:
    """Maps of some dimensions of N images."""

    dims: np.ndarray  # int [N, K], whose maps they are
    maps: np.ndarray  # uint8 [N, K, h, w], 255 where the dimension is hottest in that image
    check: dict[str, float]  # what `masking_drop` found
    share: float = 1.0  # of a picture's side, in its middle, that the maps cover


@dataclass(frozen=True)
class Sight:
    """A network, and what is read from its features h [N, F]; of a trained model or of codes."""

    network: nn.Module  # from normalised pixels [n, 3, S, S] to h
    normalise: Callable[[Tensor], Tensor]  # uint8 pixels to what the network takes, on its device
    head: Callable[[Tensor], Features]  # of rows of h
    # features of positions [n, F] and h of the image of each [n, F] to how strongly they drive each dimension, [n, D]
    drive: Callable[[Tensor, Tensor], Tensor]
    grey: np.ndarray  # uint8 [3], the colour that hides a part
    side: int  # S; larger images are cut to their middle

    def prepare(self, pixels: np.ndarray) -> Tensor:
        """Pixels as the network takes them."""
        return self.normalise(centre_crop(torch.from_numpy(np.array(pixels)), self.side))

    @torch.inference_mode()
    def encode(self, pixels: np.ndarray) -> np.ndarray:
        """Codes before any gate, float32 [N, D]."""
        with in_eval_mode(self.network):
            batches = (self.prepare(pixels[a : a + BATCH]) for a in range(0, len(pixels), BATCH))
            return torch.cat([self.head(pool(self.network(x))).z.float().cpu() for x in batches]).numpy()


def see_model(model: Encoder) -> Sight:
    """The sight of a trained model: a position drives what the head, before rectifier and gates, says of it alone."""

    def head(h: Tensor) -> Features:
        with in_eval_mode(model.head):
            return model.head(h)

    def drive(f: Tensor, h: Tensor) -> Tensor:
        raw = head(f).aux
        assert raw is not None
        return raw

    grey = np.rint(255 * model.mean.flatten().cpu().numpy()).astype(np.uint8)
    side, device = model.recipe.views.size, model.mean.device
    return Sight(model.backbone, lambda x: model.normalise_pixels(x.to(device)), head, drive, grey, side)


def see_codes(codes: PhotoCodes) -> Sight:
    """The sight of codes and the encoder they were read from; InputError where that cannot be looked into.

    Codes are read from h by a linear map, once its length is fixed. So where h is the mean over positions, the score of
    a dimension is the mean of what the positions drive. Of codes of mirror images too, this is the photo's own half.
    """
    encoder = codes.encoder
    if encoder.network is None:
        raise InputError("its encoder is no torch module")
    if encoder.transform is not None:
        raise InputError("its encoder prepares photos by a function of its own")
    device, view = encoder.device, encoder.view
    own, moments = copy.deepcopy(codes.codes.head_).to(device).eval(), codes.codes.moments_

    def drive(f: Tensor, h: Tensor) -> Tensor:
        x = prepare(f, moments, h)
        if isinstance(own, Prototypes):
            return own.projection(x) @ normalise(own.prototypes).T
        said: Features = own(x)
        return said.z if said.aux is None else said.aux

    grey = np.rint(255 * np.clip(view.mean, 0, 1)).astype(np.uint8)
    return Sight(
        encoder.network, lambda x: view.normalise(x.to(device).float() / 255), lambda h: own(prepare(h, moments)),
        drive, grey, view.crop,
    )  # fmt: skip


def as_map(f: Any, width: int) -> Tensor | None:
    """Features by position [n, h, w, F], of a map [n, F, h, w] or [n, h, w, F], or of tokens [n, T, F]."""
    if not isinstance(f, Tensor) or f.ndim not in (3, 4) or width not in (f.shape[1], f.shape[-1]):
        return None
    if f.ndim == 4:
        found = f.permute(0, 2, 3, 1) if f.shape[1] == width else f
    else:
        side = isqrt(f.shape[1])
        extra = f.shape[1] - side * side  # class and register tokens come first
        if f.shape[2] != width or extra > EXTRA:
            return None
        found = f[:, extra:].unflatten(1, (side, side))
    return found if found.shape[1] * found.shape[2] >= 4 else None


@torch.inference_mode()
def find_layer(sight: Sight, pixels: np.ndarray) -> Layer | None:
    """The last layer whose features have positions and stand for h: h is their mean, or their first token."""
    seen: list[tuple[Layer, Tensor]] = []
    x = sight.prepare(pixels[:2])

    def look(module: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        kept = ((False, given[0] if given else None), (True, made))
        seen.extend(((module, out), f) for out, f in kept if isinstance(f, Tensor) and f is not x)

    with ExitStack() as stack, in_eval_mode(sight.network):
        for module in sight.network.modules():
            stack.enter_context(module.register_forward_hook(look))
        h = pool(sight.network(x)).float()
    near = 1e-3 * float(h.abs().max()) + 1e-12
    for layer, f in reversed(seen):
        found = as_map(f, h.shape[1])
        if found is not None:
            stands = [found.float().mean((1, 2)), *([f[:, 0].float()] if f.ndim == 3 else [])]
            if any(float((each - h).abs().max()) <= near for each in stands):
                return layer
    return None


@torch.inference_mode()
def heat_maps(
    sight: Sight, layer: Layer, pixels: np.ndarray, dims: np.ndarray, tell: Progress | None = None
) -> np.ndarray:
    """How strongly each position alone would drive some dimensions, float32 [N, K, h, w].

    The head is applied to the features of each position, without rectifier, scaling to length 1 and gates. `pixels` is
    uint8 [N, 3, H, W], or what gives such when sliced; `dims` int [N, K], the dimensions wanted of each image, or [K].
    """
    wanted = torch.from_numpy(np.array(np.broadcast_to(dims, (len(pixels), np.shape(dims)[-1])), np.int64))
    seen: list[Tensor] = []
    module, out = layer
    hook = module.register_forward_hook(lambda _, given, made: seen.append((made if out else given[0]).clone()))
    parts = []
    with hook, in_eval_mode(sight.network):
        for a in range(0, len(pixels), BATCH):
            h = pool(sight.network(sight.prepare(pixels[a : a + BATCH])))
            f = as_map(seen[-1], h.shape[1])
            seen.clear()
            assert f is not None
            n, high, wide, _ = f.shape
            z = sight.drive(f.flatten(0, 2), h.repeat_interleave(high * wide, 0)).unflatten(0, (n, high * wide))
            picked = wanted[a : a + n, None].expand(n, high * wide, -1).to(z.device)
            parts.append(z.gather(2, picked).transpose(1, 2).reshape(n, -1, high, wide).float().cpu())
            if tell is not None:
                tell(a + n, len(pixels), "maps")
    return torch.cat(parts).numpy()


def strongest_heat(
    sight: Sight, pixels: Any, z: np.ndarray, share: float | None = None, tell: Progress | None = None,
    checked: int = CHECKED,
) -> Heat | str:  # fmt: skip
    """Maps of the strongest dimensions of each image, for the atlas, or in words why there are none.

    Maps are shown if on `checked` images the hottest quarter beats chance by two standard errors, see `masking_drop`.
    `share` is that of `Heat`; default what is left of larger images.
    """
    some = np.asarray(pixels[spread_evenly(len(pixels), checked)])
    layer = find_layer(sight, some)
    if layer is None:
        return "its encoder gives no features by position"
    check = masking_drop(sight, some, layer)
    if check["hottest"] - max(check["random"], 0) <= 2 * check["error"]:
        return (
            f"greying out the hottest quarter of an image takes {100 * check['hottest']:.0f} % of its strongest "
            f"dimension, a random quarter {100 * check['random']:.0f} %, so the maps of this encoder mean nothing"
        )
    dims = np.argsort(-z, axis=1, kind="stable")[:, :STRONGEST]
    maps = np.maximum(heat_maps(sight, layer, pixels, dims, tell=tell), 0)
    most = maps.max((2, 3), keepdims=True)
    maps = np.rint(255 * maps / np.where(most > 0, most, 1)).astype(np.uint8)
    return Heat(dims, maps, check, min(1.0, sight.side / some.shape[-1]) if share is None else share)


def masking_drop(sight: Sight, pixels: np.ndarray, layer: Layer) -> dict[str, float]:
    """Are the maps right? Grey out the hottest quarter of each image for its strongest dimension, and random quarters.

    Returns `hottest` and `random`, the mean loss of that dimension's activation as a share of it; `error`, the standard
    error of their difference; and `images`, how many were counted. Where the maps mean something `hottest` is larger;
    `random` is the control.
    """
    pixels = centre_crop(torch.from_numpy(np.array(pixels)), sight.side).numpy()
    z = sight.encode(pixels)
    dims = z.argmax(1)
    maps = heat_maps(sight, layer, pixels, dims[:, None])[:, 0]  # [N, h, w]
    n, h, w = maps.shape
    quarter = max(1, h * w // 4)
    rng = np.random.default_rng(0)
    masks = [np.argsort(-maps.reshape(n, -1), axis=1, kind="stable")[:, :quarter]]
    masks += [np.argsort(rng.random((n, h * w)), axis=1)[:, :quarter] for _ in range(DRAWS)]
    rows, columns = (np.arange(side) * cells // side for side, cells in zip(pixels.shape[2:], (h, w)))
    alive = np.flatnonzero(z.max(1) > 0)
    before = z[alive, dims[alive]]
    drops = []
    for cells in masks:
        hidden = np.zeros((n, h * w), bool)
        np.put_along_axis(hidden, cells, True, axis=1)
        hidden = hidden.reshape(n, 1, h, w)[:, :, rows][:, :, :, columns]
        masked = np.where(hidden, sight.grey[None, :, None, None], pixels)
        drops.append((before - sight.encode(masked)[alive, dims[alive]]) / before)
    if not len(before):
        return {"hottest": 0.0, "random": 0.0, "error": 0.0, "images": 0}
    hottest, control = drops[0], np.mean(drops[1:], axis=0)
    error = float((hottest - control).std() / np.sqrt(len(before)))
    return {"hottest": float(hottest.mean()), "random": float(control.mean()), "error": error, "images": len(before)}

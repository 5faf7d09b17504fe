"""The encoder: a backbone h = f(x) and a head that turns h into codes; features of a split."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from bayesncl import distributed
from bayesncl.data.decode import Pictures, Square, as_pixels
from bayesncl.data.images import Images, Progress, track
from bayesncl.errors import InputError
from bayesncl.method.backbones import batch_statistics, build_backbone, update_running_statistics
from bayesncl.method.heads import Features, build_head
from bayesncl.method.losses import keep_strongest
from bayesncl.recipes import Recipe

Pixels = TypeVar("Pixels", Tensor, np.ndarray)


class Encoder(nn.Module):
    """A backbone h = f(x) with the head that turns h into codes.

    Parameters
    ----------
    recipe : `model`, `gate` and `objective` define the modules; `data.mean` and `data.std`
        normalize the pixels.
    backbone : replaces the recipe's backbone: maps [N, 3, H, W] to [N, F] and has `.features` = F.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, recipe: Recipe, backbone: nn.Module | None = None) -> None:
        super().__init__()
        self.recipe = recipe
        self.backbone = backbone or build_backbone(recipe.model)
        features = int(self.backbone.features)  # type: ignore[arg-type]
        self.head = build_head(features, recipe.model, recipe.gate, recipe.objective)
        for name in ("mean", "std"):
            values = torch.tensor(getattr(recipe.data, name)).view(1, 3, 1, 1)
            self.register_buffer(name, values, persistent=False)

    @property
    def gate(self) -> nn.Module | None:
        """The layers to the gate logits; None without gates."""
        return getattr(self.head, "gate", None)

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Features:
        """Features of normalized pixels x [N, 3, H, W]; noisy gates take `uniform` [N, D]."""
        return self.head(self.embed(x), uniform)

    def embed(self, x: Tensor) -> Tensor:
        """h [N, F] of normalized pixels x [N, 3, H, W]; in training, updates running statistics."""
        h: Tensor = self.backbone(x)
        if self.training:
            update_running_statistics(self.backbone)
        return h

    def normalize_pixels(self, x: Tensor) -> Tensor:
        """Convert uint8 pixels, or floats in [0, 1], to the input of `forward`."""
        if x.dtype == torch.uint8:
            x = x.float() / 255
        return (x - self.mean) / self.std

    @torch.inference_mode()
    def encode(
        self, images: Pictures, gated: bool = True, n_active: int | None = None, batch: int = 256
    ) -> Tensor:
        """Compute the codes of images in eval mode.

        Parameters
        ----------
        images : one or many: uint8, or float in [0, 1], [N, 3, H, W] or [N, H, W, 3], gray with
            one channel; or PIL images or paths, resized and cropped as in training.
        gated : apply the gates, if the model has any.
        n_active : keep only the `n_active` strongest dimensions per image, renormalized.
        batch : images per forward pass.

        Returns
        -------
        [N, D] float32 on the CPU; rows have unit length, or are zero if every gate is closed.
        """
        pixels = as_pixels(images, Square(self.recipe.data.size, self.recipe.views.size))
        rows = []
        with in_eval_mode(self):
            for part in pixels.split(batch):
                features = self(self.normalize_pixels(part.to(self.mean.device)))
                z = features.gated if gated else features.z
                rows.append(keep_strongest(z, n_active).cpu())
        return torch.cat(rows) if rows else torch.empty(0, self.head.dim)


def build_model(recipe: Recipe) -> Encoder:
    """Build an encoder whose initial weights depend only on the recipe and its seed."""
    with torch.random.fork_rng(devices=[]):
        # the CPU generator only: torch.manual_seed would also reset those of the GPUs
        torch.default_generator.manual_seed(recipe.run.seed)
        return Encoder(recipe)


@contextmanager
def in_eval_mode(model: object) -> Iterator[None]:
    """Put a module in eval mode, then restore every submodule's mode; ignore other callables."""
    modes = [(m, m.training) for m in model.modules()] if isinstance(model, nn.Module) else []
    try:
        for module, _ in modes:
            module.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


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
    """Compute the features of a split; the model is unchanged.

    Mode ``sound``: eval mode and the normalization of training. ``paper``: BatchNorm with the
    statistics of each evaluation batch (in the order of the data) and the pixel statistics of the
    published evaluation. Several processes share the work and all get the result. `batch` images
    are forwarded at a time, which affects only `paper`, whose default is the training batch.
    """
    if len(images) == 0:
        raise InputError("there are no images to extract features from")
    recipe, data, device = model.recipe, model.recipe.data, model.mean.device
    size, statistics = batch or 512, (data.mean, data.std)
    if mode == "paper":
        size = batch or recipe.run.batch
        statistics = (data.paper_mean or data.mean, data.paper_std or data.std)
    mean, std = torch.tensor(statistics, device=device).view(2, 1, 3, 1, 1)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    hard = model.head.kind is not None and model.head.kind.hard
    dim, width = model.head.dim, int(model.backbone.features)  # type: ignore[arg-type]
    # a process without images contributes no rows
    parts = [[torch.empty(0, n, device=device) for n in (width, dim, dim)]]
    parts[0].append(torch.empty(0, dim * hard, dtype=torch.bool, device=device))
    starts = np.arange(0, len(images), size)
    mine = np.array_split(starts, distributed.world_size())[distributed.rank()].tolist()
    with in_eval_mode(model), batch_statistics(model) if mode == "paper" else nullcontext():
        for start in track(mine, len(mine), "features", progress):
            pixels = torch.from_numpy(np.array(images.pixels[start : start + size])).to(device)
            x = (center_crop(pixels, recipe.views.size).float() / 255 - mean) / std
            features = model(x.contiguous(memory_format=layout))
            mask = features.mask if hard and features.mask is not None else features.z[:, :0]
            opened = mask > recipe.gate.threshold
            parts.append([features.h.float(), features.z, features.gated, opened])
    h, z, gated, gates = (
        distributed.gather_arrays(torch.cat(part)).cpu().numpy() for part in zip(*parts)
    )
    return Extracted(h, z, gated, gates if hard else None)

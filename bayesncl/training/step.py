"""One training step: two views, features, loss, gradients, update.

`compile.accelerate` takes the same step with faster parts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesncl import distributed
from bayesncl.method.augment import make_views
from bayesncl.method.encoder import Encoder
from bayesncl.method.heads import Features
from bayesncl.method.lars import LARS
from bayesncl.method.losses import ACTIVE
from bayesncl.training.log import Meter


class Batch(NamedTuple):
    """Inputs of a step, at fixed addresses: a CUDA graph reads them there."""

    pixels: Tensor  # uint8 [b, 3, H, W]
    rows: Tensor  # int64 [b], positions in the dataset
    epoch: Tensor  # int64 []
    precision: torch.dtype  # of the products in the forward pass


def draw(
    model: Encoder, pixels: Tensor, index: Tensor, epoch: Tensor, seed: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Normalized views [2b, 3, S, S] of pixels [b, 3, H, W]; numbers [2b, D] for noisy gates."""
    views = make_views(pixels, index, epoch, seed, model.recipe.views)
    x = model.normalize_pixels(views).contiguous(memory_format=torch.channels_last)
    return x, model.head.draw_uniform(index, epoch, seed)


def code(model: Encoder, h: Tensor, uniform: Tensor | None) -> Features:
    """Features of h [2b, F]."""
    return model.head(h, uniform)


def score(model: Encoder, features: Features) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, which the head computes (`Head.loss`), and the metrics that `forward` returns."""
    terms = model.head.loss(features)
    with torch.no_grad():
        active = features.gated.abs() > ACTIVE
        l0 = active.float().sum(1).mean() / distributed.world_size()
        return terms.loss, torch.stack([*terms, l0]), active.float().sum(0)


class Parts(NamedTuple):
    """The functions that a forward pass consists of.

    They are compiled separately because torch does not cache a compiled function that enters
    autocast, and because a run with the same views or backbone finds its part in the cache.
    """

    draw: Callable[..., Any] = draw
    embed: Callable[..., Any] = Encoder.embed
    code: Callable[..., Any] = code
    score: Callable[..., Any] = score


EAGER = Parts()


def forward(model: Encoder, batch: Batch, parts: Parts = EAGER) -> tuple[Tensor, Tensor, Tensor]:
    """Loss of a batch; averages [5] (AVERAGES) and active rows per dimension [D], no gradient.

    With several processes these are this process's shares, which add up to the global values.
    """
    pixels, index, epoch, precision = batch
    seed = torch.full_like(epoch, model.recipe.run.seed)  # a number would be compiled in
    x, uniform = parts.draw(model, pixels, index, epoch, seed)
    mixed = precision != torch.float32
    with torch.autocast(pixels.device.type, dtype=precision, enabled=mixed):
        h = parts.embed(model, x)
        features = parts.code(model, h, uniform)
    return parts.score(model, features)


def train_step(
    model: Encoder, optimizer: LARS, meter: Meter, batch: Batch, parts: Parts = EAGER
) -> None:
    """One step: forward pass and loss, backward pass, update."""
    optimizer.zero_grad(set_to_none=True)
    loss, averages, active = forward(model, batch, parts)
    loss.backward()
    distributed.sum_gradients(model.parameters())
    optimizer.step()
    meter.add(averages, active)

"""Gradient dynamics of a model in training: `measure.dynamics` on batches of its own training views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .augment import make_views
from .data.images import Images
from .measure.dynamics import dynamics
from .model import Encoder, in_eval_mode
from .recipes import Recipe


def record(
    model: Encoder,
    pixels: np.ndarray | Tensor,
    labels: np.ndarray | None,
    recipe: Recipe,
    epoch: int,
    batches: int = 10,
) -> dict[str, Any]:
    """One row of gradient dynamics for a model in training; the model is left exactly as it was.

    The model runs in eval mode (running BatchNorm statistics, gates without noise) on `batches` batches of training
    views; images and views are drawn from the run's seed and the epoch, apart from those of training.

    Parameters
    ----------
    model : in any mode.
    pixels : uint8 [N, 3, H, W].
    labels : int [N], or None: correlations with the consistency are then None.
    recipe, epoch : of the run; batch size, views, temperature and seed are the recipe's.

    Returns
    -------
    dict
        `epoch`, `batches`, `mode` and what `dynamics` gives, ready for JSON.
    """
    size = min(recipe.run.batch, len(pixels))
    order = np.random.default_rng((recipe.run.seed, epoch, 1)).permutation(len(pixels))
    chosen = [order[s : s + size] for s in range(0, len(order) - size + 1, size)][:batches]
    place = next(model.parameters()).device
    mean, std = (torch.tensor(v, device=place).view(3, 1, 1) for v in (recipe.data.mean, recipe.data.std))
    index = None if labels is None else np.unique(labels, return_inverse=True)[1]

    def features(rows: np.ndarray) -> Tensor:
        images = pixels[rows] if isinstance(pixels, np.ndarray) else pixels[torch.from_numpy(rows).to(pixels.device)]
        views = make_views(
            torch.as_tensor(images).to(place),
            torch.from_numpy(rows).to(place),
            epoch,
            recipe.run.seed + 1,
            recipe.views,
        )
        gated: Tensor = model((views - mean) / std).gated
        return gated

    with in_eval_mode(model), torch.no_grad():
        stream = (
            (features(rows), None if index is None else torch.from_numpy(index[rows]).to(place)) for rows in chosen
        )
        row, _ = dynamics(stream, recipe.objective.temperature, 0 if index is None else int(index.max()) + 1)
    return {"epoch": epoch, "batches": len(chosen), "mode": "eval", **row}


def recorder(images: Images, recipe: Recipe) -> Callable[[Encoder, int], dict[str, Any] | None] | None:
    """What `train` calls after every epoch for lines of gradient dynamics; None if the recipe wants none."""
    if not recipe.run.dynamics_every:
        return None

    def after_epoch(model: Encoder, epoch: int) -> dict[str, Any] | None:
        if epoch % recipe.run.dynamics_every:
            return None
        return {"kind": "dynamics", **record(model, images.pixels, images.labels, recipe, epoch)}

    return after_epoch

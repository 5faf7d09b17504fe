"""Gradient dynamics: what InfoNCE does to each feature dimension during training.

The gradient of a batch is g = 2B dL/dz, [2B, D]: L is the InfoNCE loss, z the matrix given to it (unit-norm, gated
where the model has gates), and the factor 2B undoes the mean over anchors, so that a row does not shrink with the
batch. Row i holds what the loss asks of image i's features, as anchor, as positive and as negative. Per dimension we
take mean and variance over the rows of several batches of training views, all at the current weights: nothing is
updated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .augment import make_views
from .data.images import Images
from .measure.counts import MIN_SUPPORT
from .measure.theory import spearman
from .model import Encoder, in_eval_mode
from .objective import ACTIVE, info_nce
from .recipes import Recipe

CONFLICTS = (0.9, 0.5)  # products of firing probabilities from which a dimension counts as conflicting
CORRELATED = {
    "af_gv": ("frequency", "variance"),
    "af_sc": ("frequency", "consistency"),
    "gv_sc": ("variance", "consistency"),
    "af_gv_active": ("frequency", "variance_active"),
    "gv_sc_active": ("variance_active", "consistency"),
}
Batches = Iterable[tuple[Tensor, Tensor | None]]  # z [2B, D] as given to InfoNCE, labels [B] of its images


def statistics_of(batches: Batches, temperature: float, classes: int = 0) -> tuple[dict[str, np.ndarray], int]:
    """Per-dimension statistics of z and of the InfoNCE gradient, and the number of rows; `classes` 0 without labels.

    Arrays [D] in float64, NaN where a dimension has no firing row: `frequency` (share of rows where |z_k| > 1e-5),
    `support` (their number), `mean` and `variance` of the gradient over all rows, `mean_active` and `variance_active`
    over the firing rows, `consistency` (share of the commonest class among the firing rows, percent),
    `chance_consistency` (the same with shuffled labels), `conflict` (the greatest P(z_k fires | c) P(z_k fires | c') of
    two classes).
    """
    rows, sums, fired, class_rows = 0, torch.zeros(()), torch.zeros(()), torch.zeros(())
    generator = torch.Generator().manual_seed(0)  # of the shuffled labels
    for z, labels in batches:
        g, active = gradient(z, temperature).double(), (z.abs() > ACTIVE).double()
        of_batch = (g, g.square(), g * active, g.square() * active, active)
        sums = torch.stack([each.sum(0) for each in of_batch]).cpu() + sums  # [5, D]
        rows += len(z)
        if labels is not None and classes:
            mixed = labels[torch.randperm(len(labels), generator=generator).to(labels.device)]
            onehot = nn.functional.one_hot(torch.stack([labels, mixed]).long().repeat(1, 2), classes).double()
            fired = (onehot.mT @ active).cpu() + fired  # [2, C, D], firing rows by class, and by shuffled class
            class_rows = onehot[0].sum(0).cpu() + class_rows
    total, square, total_active, square_active, support = sums.numpy()
    consistency = np.full((2, len(support)), np.nan)
    conflict = consistency[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        if fired.ndim:
            consistency = 100 * fired.amax(1).numpy() / support
        if fired.ndim and classes > 1:
            conflict = (fired[0] / class_rows[:, None].clamp_min(1)).topk(2, dim=0).values.prod(0).numpy()
        mean, mean_active = total / rows, total_active / support
        return {
            "frequency": support / rows,
            "support": support,
            "mean": mean,
            "variance": np.maximum(square / rows - mean**2, 0),
            "mean_active": mean_active,
            "variance_active": np.maximum(square_active / support - mean_active**2, 0),
            "consistency": consistency[0],
            "chance_consistency": consistency[1],
            "conflict": conflict,
        }, rows


def gradient(z: Tensor, temperature: float) -> Tensor:
    """2B dL/dz of InfoNCE at z [2B, D], a row per view."""
    with torch.enable_grad():
        leaf = z.detach().float().requires_grad_()
        (g,) = torch.autograd.grad(info_nce(leaf, temperature), leaf)
    return g * len(z)


def correlations(statistics: dict[str, np.ndarray], support: int = 1) -> dict[str, float | None]:
    """Spearman correlations across the dimensions with so many firing rows; None where a side is constant or unknown.

    `af` is the activation frequency, `gv` the gradient variance over all rows (`_active`: over firing rows), `sc` the
    consistency.
    """
    counted = statistics["support"] >= support
    return {key: spearman(statistics[a][counted], statistics[b][counted]) for key, (a, b) in CORRELATED.items()}


def dynamics(batches: Batches, temperature: float, classes: int = 0) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Measure gradient dynamics over batches.

    Returns what was found, ready for JSON, and the statistics of `statistics_of`. Found are the correlations `paper`
    (every dimension that fires), `sound` (support of 10 rows) and `chance` (as sound, labels shuffled); the numbers of
    `rows` and of dimensions, `dims` and `dims_sound`; medians over the sound dimensions of the gradient's `variance`
    and `mean_to_deviation`, |mean| / standard deviation; and `instability`: the test of the paper's proposition at the
    thresholds 0.9 and 0.5 of the conflict, and without a threshold the Spearman correlations of the conflict with
    variance (the proposition wants it positive) and with mean_to_deviation (negative).
    """
    statistics, rows = statistics_of(batches, temperature, classes)
    counted = statistics["support"] >= MIN_SUPPORT
    conflict, variance = statistics["conflict"][counted], statistics["variance"][counted]
    ratio = _ratio(statistics["mean"], statistics["variance"])[counted]
    row = {
        "paper": correlations(statistics),
        "sound": correlations(statistics, MIN_SUPPORT),
        "chance": correlations(statistics | {"consistency": statistics["chance_consistency"]}, MIN_SUPPORT),
        "rows": rows,
        "dims": int((statistics["support"] >= 1).sum()),
        "dims_sound": int(counted.sum()),
        "variance": _median(variance),
        "mean_to_deviation": _median(ratio),
        "instability": {
            **{str(t): instability(statistics, statistics["conflict"] >= t) for t in CONFLICTS},
            "spearman_variance": spearman(conflict, variance),
            "spearman_mean_to_deviation": spearman(conflict, ratio),
        },
    }
    return row, statistics


def instability(statistics: dict[str, np.ndarray], conflicting: np.ndarray) -> dict[str, Any]:
    """Test the paper's proposition: conflicting dimensions have gradients of near-zero mean and high variance.

    The argument `conflicting`, bool [D], says which dimensions those are. Returns an entry `conflicting` for them and
    one `others` for the rest, each with the number `dims` and medians: `mean_size` (|mean|), `variance` and
    `mean_to_deviation` over all rows, `variance_active` and `mean_to_deviation_active` over firing rows. `holds` says
    whether the conflicting dimensions have the smaller |mean| / deviation and the larger variance (None without
    dimensions on both sides); `note` says the same in words.
    """

    def side(dims: np.ndarray) -> dict[str, Any]:
        mean, variance, mean_active, variance_active = (
            statistics[name][dims] for name in ("mean", "variance", "mean_active", "variance_active")
        )
        return {
            "dims": int(dims.sum()),
            "mean_size": _median(np.abs(mean)),
            "variance": _median(variance),
            "mean_to_deviation": _median(_ratio(mean, variance)),
            "variance_active": _median(variance_active),
            "mean_to_deviation_active": _median(_ratio(mean_active, variance_active)),
        }

    counted = statistics["support"] >= MIN_SUPPORT
    a, b = side(counted & conflicting), side(counted & ~conflicting)
    holds, note = None, f"nothing to compare: {a['dims']} conflicting dimensions, {b['dims']} others"
    if a["dims"] and b["dims"]:
        unsteadier, wilder = a["mean_to_deviation"] < b["mean_to_deviation"], a["variance"] > b["variance"]
        holds = bool(unsteadier and wilder)
        note = (
            f"|mean| / deviation is {'smaller' if unsteadier else 'not smaller'} "
            f"and the variance {'larger' if wilder else 'not larger'} "
            f"on the {a['dims']} conflicting dimensions than on the {b['dims']} others"
        )
    return {"conflicting": a, "others": b, "holds": holds, "note": note}


def _ratio(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """|mean| / standard deviation."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs(mean) / np.sqrt(variance)


def _median(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def record(
    model: Encoder, pixels: np.ndarray, labels: np.ndarray | None, recipe: Recipe, epoch: int, batches: int = 10
) -> dict[str, Any]:
    """One row of gradient dynamics for a model in training, ready for JSON; the model is left exactly as it was.

    The model runs in eval mode (running BatchNorm statistics, gates without noise) on `batches` batches of training
    views; images and views are drawn from the run's seed and the epoch, apart from those of training. Without labels
    [N] the correlations with the consistency are None.
    """
    size = min(recipe.run.batch, len(pixels))
    order = np.random.default_rng((recipe.run.seed, epoch, 1)).permutation(len(pixels))
    chosen = [order[s : s + size] for s in range(0, len(order) - size + 1, size)][:batches]
    place = next(model.parameters()).device
    mean, std = (torch.tensor(v, device=place).view(3, 1, 1) for v in (recipe.data.mean, recipe.data.std))
    classes = None if labels is None else np.unique(labels, return_inverse=True)[1]

    def batch(rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        images, index = (torch.from_numpy(each).to(place) for each in (pixels[rows], rows))
        views = make_views(images, index, epoch, recipe.run.seed + 1, recipe.views)
        known = None if classes is None else torch.from_numpy(classes[rows]).to(place)
        return model((views - mean) / std).gated, known

    with in_eval_mode(model), torch.no_grad():
        many = 0 if classes is None else int(classes.max()) + 1
        row, _ = dynamics(map(batch, chosen), recipe.objective.temperature, many)
    return {"epoch": epoch, "batches": len(chosen), "mode": "eval", **row}


def recorder(images: Images, recipe: Recipe) -> Callable[[Encoder, int], dict[str, Any] | None]:
    """What `train` calls after every epoch for lines of gradient dynamics, of every so many epochs."""

    def after_epoch(model: Encoder, epoch: int) -> dict[str, Any] | None:
        if epoch % recipe.run.dynamics_every:
            return None
        return {"kind": "dynamics", **record(model, images.pixels, images.labels, recipe, epoch)}

    return after_epoch

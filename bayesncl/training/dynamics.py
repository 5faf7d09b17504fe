"""Gradient dynamics: what InfoNCE asks of each feature dimension during training.

The gradient of a batch is g = 2B dL/dx, [2B, D], with L the InfoNCE loss. The factor 2B undoes the
mean over anchors, so a row does not shrink with the batch. The paper writes z_k and does not say
which tensor x is; there are three readings: the gated features that InfoNCE gets (`gated`), the
features before the gates (`z`), and the raw projection (`raw`), through the rectifier's surrogate
gradient as in training.

For x = gated the gradient splits into two forces, F_rep - F_align:

    F_align,i = 2 z_i+ / tau                          (pull of the positive)
    F_rep,i   = sum_j (p_ij + p_ji) z_j / tau         (push of all others; p is InfoNCE's softmax)

Statistics per dimension are taken over the rows of several batches of training views, at the
current weights: nothing is updated.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesncl.data.images import Images
from bayesncl.inputs import factorize
from bayesncl.measure.dimensions import CONFLICTS, MIN_SUPPORT, largest_share
from bayesncl.method.augment import make_views
from bayesncl.method.encoder import Encoder, in_eval_mode
from bayesncl.method.losses import ACTIVE, info_nce

CORRELATED = {
    "af_gv": ("frequency", "variance"),
    "af_sc": ("frequency", "consistency"),
    "gv_sc": ("variance", "consistency"),
    "af_gv_active": ("frequency", "variance_active"),
    "gv_sc_active": ("variance_active", "consistency"),
}
Columns = dict[str, np.ndarray]  # statistics by name, each [D] float64


def gradients(codes: Tensor, readings: Sequence[Tensor], temperature: float) -> list[Tensor]:
    """2B dL/dx of InfoNCE of codes [2B, D] for each x that they are computed from, gates fixed."""
    with torch.enable_grad():
        found = torch.autograd.grad(info_nce(codes, temperature), list(readings))
    return [g * len(codes) for g in found]


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Rank correlation over entries finite in both; None if a side is constant."""
    a, b = (side[np.isfinite(a) & np.isfinite(b)] for side in (a, b))
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value from 1; the mean rank for ties."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((counts.cumsum() - (counts - 1) / 2)[index])


def statistics(
    z: np.ndarray, g: np.ndarray, labels: np.ndarray | None, temperature: float = 1.0
) -> Columns:
    """Statistics of each dimension over rows of features z and gradients g, [R, D] each.

    `labels` [2, R] are class indices, true and shuffled, or None.

    Returns
    -------
    Arrays [D], NaN where a dimension never fires. `frequency` and `support` are share and number of
    rows where |z_k| > 1e-5, `variance_active` is over these rows, the other gradient statistics and
    the forces over all. `chance_consistency` is with shuffled labels, `conflict` the greatest
    product of two classes' firing probabilities.
    """
    active, g = np.abs(z) > ACTIVE, g.astype(np.float64)
    support, mean, variance = active.sum(0).astype(float), g.mean(0), g.var(0)
    align = 2 * z.mean(0, dtype=np.float64) / temperature  # its mean is that of the partners' rows
    repulsion = mean + align
    unknown = np.full(len(support), np.nan)
    found = dict.fromkeys(("consistency", "chance_consistency", "conflict"), unknown)
    if labels is not None and labels.max() > 0:  # of two classes or more
        onehot = np.eye(labels.max() + 1)[labels].swapaxes(1, 2)  # [2, C, R]
        true, shuffled = onehot @ active  # [C, D], firing rows by class
        found["consistency"], found["chance_consistency"] = (
            largest_share(fires)[1] for fires in (true, shuffled)
        )
        probability = true / np.maximum(onehot[0].sum(1), 1)[:, None]
        found["conflict"] = np.sort(probability, axis=0)[-2:].prod(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return found | {
            "frequency": support / len(z),
            "support": support,
            "mean": mean,
            "variance": variance,
            "variance_active": np.ma.masked_array(g, ~active).var(0).filled(np.nan),
            "mean_to_deviation": np.abs(mean) / np.sqrt(variance),
            "align": align,
            "repulsion": repulsion,
            "net_share": np.abs(repulsion - align) / (repulsion + align),
        }


def correlations(columns: Columns, support: int = 1) -> dict[str, float | None]:
    """Spearman correlations across dimensions with at least so many firing rows.

    `af` is the activation frequency, `gv` the gradient variance over all rows (`_active`: over
    firing rows), `sc` the consistency. None where a side is constant or unknown.
    """
    kept = columns["support"] >= support
    return {key: spearman(columns[a][kept], columns[b][kept]) for key, (a, b) in CORRELATED.items()}


def summarize(columns: Columns) -> dict[str, Any]:
    """Summary of the statistics, ready for JSON.

    `paper` has the correlations over every dimension that fires, `sound` those over dimensions with
    support 10, as have the medians, `chance` the same with shuffled labels. By the proposition
    `spearman_variance` is positive and `spearman_mean_to_deviation` negative.
    """
    sound = columns["support"] >= MIN_SUPPORT
    kept = {name: values[sound] for name, values in columns.items()}
    shuffled = columns | {"consistency": columns["chance_consistency"]}

    def rank(a: str, b: str) -> float | None:
        return spearman(kept[a], kept[b])

    return {
        "paper": correlations(columns),
        "sound": correlations(columns, MIN_SUPPORT),
        "chance": correlations(shuffled, MIN_SUPPORT),
        "dims": int((columns["support"] >= 1).sum()),
        "dims_sound": int(sound.sum()),
        **{name: _median(kept[name]) for name in ("variance", "mean_to_deviation")},
        "forces": {
            **{name: _median(kept[name]) for name in ("align", "repulsion", "net_share")},
            "spearman_frequency_align": rank("frequency", "align"),
            "spearman_frequency_repulsion": rank("frequency", "repulsion"),
            "spearman_conflict_net_share": rank("conflict", "net_share"),
        },
        "instability": {
            **{str(t): instability(columns, columns["conflict"] >= t) for t in CONFLICTS},
            "spearman_variance": rank("conflict", "variance"),
            "spearman_mean_to_deviation": rank("conflict", "mean_to_deviation"),
        },
    }


def instability(columns: Columns, conflicting: np.ndarray) -> dict[str, Any]:
    """Test the proposition: conflicting dimensions have gradients of small mean, large variance.

    `conflicting` is bool [D]. `holds` is whether their median |mean| / deviation is smaller and
    their median variance larger than those of the others, None if a side is empty.
    """
    sound = columns["support"] >= MIN_SUPPORT

    def side(dims: np.ndarray) -> dict[str, Any]:
        medians = {name: _median(columns[name][dims]) for name in ("variance", "mean_to_deviation")}
        return {"dims": int(dims.sum())} | medians

    a, b, holds = side(sound & conflicting), side(sound & ~conflicting), None
    if a["dims"] and b["dims"]:
        smaller = a["mean_to_deviation"] < b["mean_to_deviation"]
        holds = bool(smaller and a["variance"] > b["variance"])
    return {"conflicting": a, "others": b, "holds": holds}


def _median(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def record_dynamics(images: Images, model: Encoder, epoch: int) -> dict[str, Any] | None:
    """Gradient dynamics as a line of metrics.jsonl; None between two records."""
    if epoch % model.recipe.run.dynamics_every:
        return None
    return {"kind": "dynamics", **record(model, images.pixels, images.labels, epoch)}


def record(
    model: Encoder, pixels: np.ndarray, labels: np.ndarray | None, epoch: int, batches: int = 10
) -> dict[str, Any]:
    """Gradient dynamics of a model in training, ready for JSON; the model is left as it was.

    The model runs in eval mode on batches of training views, drawn from the run's seed and the
    epoch, but not those of training. The summary is that of the gated features; `readings` has the
    correlations for `z` and `raw`. Without labels [N] those with the consistency are None.
    """
    recipe, device = model.recipe, model.mean.device
    seed, temperature = recipe.run.seed, recipe.objective.temperature
    size = min(recipe.run.batch, len(pixels))
    order = np.random.default_rng((seed, epoch, 1)).permutation(len(pixels))
    index = np.zeros(len(pixels), int) if labels is None else factorize(labels)[0]
    generator = torch.Generator().manual_seed(0)
    found = []  # by batch: features gated and before the gates, the three gradients, labels
    with in_eval_mode(model):
        for start in range(0, len(order) - size + 1, size)[:batches]:
            rows = order[start : start + size]
            images, numbers = (torch.from_numpy(each).to(device) for each in (pixels[rows], rows))
            views = make_views(images, numbers, epoch, seed + 1, recipe.views)
            with torch.no_grad():
                h = model.embed(model.normalize_pixels(views))
            features = model.head(h)
            readings = features.gated, features.z, features.aux
            grads = gradients(features.gated, readings, temperature)
            each = features.gated.detach(), features.z.detach(), *grads
            shuffled = rows[torch.randperm(size, generator=generator).numpy()]
            both = np.tile(index[np.stack([rows, shuffled])], 2).T  # [2B, 2], true and shuffled
            found.append([*(tensor.float().cpu().numpy() for tensor in each), both])
    gated, z, *by_reading, both = (np.concatenate(parts) for parts in zip(*found))
    known = None if labels is None else both.T
    main, *others = (
        statistics(x, g, known, temperature) for x, g in zip((gated, z, z), by_reading)
    )
    by_name = {
        name: {"paper": correlations(each), "sound": correlations(each, MIN_SUPPORT)}
        for name, each in zip(("z", "raw"), others)
    }
    about = {"epoch": epoch, "batches": len(found), "mode": "eval", "rows": len(z)}
    return about | summarize(main) | {"readings": by_name}

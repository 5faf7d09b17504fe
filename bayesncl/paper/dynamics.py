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

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesncl.data.images import Images
from bayesncl.errors import InputError
from bayesncl.measure.counts import MIN_SUPPORT
from bayesncl.method.augment import make_views
from bayesncl.method.encoder import Encoder, in_eval_mode
from bayesncl.method.losses import ACTIVE, info_nce
from bayesncl.paper.theory import spearman
from bayesncl.recipes import Recipe

CONFLICTS = (0.9, 0.5)  # products of two classes' firing probabilities
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


class Statistics:
    """Per-dimension statistics of features and their gradients, batch by batch.

    `columns` gives arrays [D], NaN where a dimension never fires: `frequency` (share of rows where
    |z_k| > 1e-5) and `support` (their number); `mean` and `variance` of the gradient over all rows,
    `variance_active` over firing rows; `align` and `repulsion`, means of the two forces;
    `consistency` (share of the commonest class among firing rows, percent), `chance_consistency`
    (with shuffled labels); `conflict` (the greatest product of two classes' firing probabilities).
    """

    def __init__(self, classes: int = 0) -> None:
        self.classes, self.rows = classes, 0
        self.sums = self.fired = self.class_rows = torch.zeros(())
        self.generator = torch.Generator().manual_seed(0)  # of the shuffled labels

    def add(self, z: Tensor, g: Tensor, labels: Tensor | None, temperature: float = 1.0) -> None:
        """Add a batch: features and gradients [2B, D], labels [B]."""
        g, active = g.double(), (z.abs() > ACTIVE).double()
        align = 2 * z.double() / temperature  # its mean is that of the partners' rows too
        parts = g, g.square(), g * active, g.square() * active, active, align
        self.sums = torch.stack([part.sum(0) for part in parts]).cpu() + self.sums  # [6, D]
        self.rows += len(z)
        if labels is not None and self.classes:
            order = torch.randperm(len(labels), generator=self.generator)
            both = torch.stack([labels, labels[order.to(labels.device)]]).long().repeat(1, 2)
            onehot = nn.functional.one_hot(both, self.classes).double()
            # [2, C, D], firing rows by class and by shuffled class
            self.fired = (onehot.mT @ active).cpu() + self.fired
            self.class_rows = onehot[0].sum(0).cpu() + self.class_rows

    def columns(self) -> Columns:
        """The statistics."""
        total, square, total_active, square_active, support, align = self.sums.numpy()
        consistency = np.full((2, len(support)), np.nan)
        conflict = consistency[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            if self.fired.ndim:
                consistency = 100 * self.fired.amax(1).numpy() / support
            if self.fired.ndim and self.classes > 1:
                probability = self.fired[0] / self.class_rows[:, None].clamp_min(1)
                conflict = probability.topk(2, dim=0).values.prod(0).numpy()
            mean, mean_active = total / self.rows, total_active / support
            return {
                "frequency": support / self.rows,
                "support": support,
                "mean": mean,
                "variance": np.maximum(square / self.rows - mean**2, 0),
                "variance_active": np.maximum(square_active / support - mean_active**2, 0),
                "align": align / self.rows,
                "repulsion": mean + align / self.rows,
                "consistency": consistency[0],
                "chance_consistency": consistency[1],
                "conflict": conflict,
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

    Returns
    -------
    `paper`, `sound`, `chance` : correlations over every dimension that fires, over those with
        support 10, and the latter with shuffled labels.
    `dims`, `dims_sound` : numbers of dimensions.
    `variance`, `mean_to_deviation` : medians over sound dimensions; the latter is |mean| /
        standard deviation of the gradient.
    `forces` : medians of `align`, `repulsion` and `net_share`, |repulsion - align| / their sum, and
        Spearman correlations of the frequency with both forces and of the conflict with net_share.
    `instability` : the paper's proposition at the conflict thresholds 0.9 and 0.5, and Spearman
        correlations of the conflict with the variance (predicted positive) and with
        mean_to_deviation (predicted negative).
    """
    sound = columns["support"] >= MIN_SUPPORT
    kept = {name: values[sound] for name, values in columns.items()}
    ratio = _ratio(kept["mean"], kept["variance"])
    align, repulsion = kept["align"], kept["repulsion"]
    with np.errstate(invalid="ignore", divide="ignore"):
        net = np.abs(repulsion - align) / (repulsion + align)
    shuffled = columns | {"consistency": columns["chance_consistency"]}
    return {
        "paper": correlations(columns),
        "sound": correlations(columns, MIN_SUPPORT),
        "chance": correlations(shuffled, MIN_SUPPORT),
        "dims": int((columns["support"] >= 1).sum()),
        "dims_sound": int(sound.sum()),
        "variance": _median(kept["variance"]),
        "mean_to_deviation": _median(ratio),
        "forces": {
            "align": _median(align),
            "repulsion": _median(repulsion),
            "net_share": _median(net),
            "spearman_frequency_align": spearman(kept["frequency"], align),
            "spearman_frequency_repulsion": spearman(kept["frequency"], repulsion),
            "spearman_conflict_net_share": spearman(kept["conflict"], net),
        },
        "instability": {
            **{str(t): instability(columns, columns["conflict"] >= t) for t in CONFLICTS},
            "spearman_variance": spearman(kept["conflict"], kept["variance"]),
            "spearman_mean_to_deviation": spearman(kept["conflict"], ratio),
        },
    }


def instability(columns: Columns, conflicting: np.ndarray) -> dict[str, Any]:
    """Test the proposition: conflicting dimensions have gradients of small mean, large variance.

    `conflicting` is bool [D]. Returns `conflicting` and `others`, each with the number `dims` and
    medians of `variance` and `mean_to_deviation`; `holds`, whether the conflicting dimensions have
    the smaller |mean| / deviation and the larger variance (None if a side is empty).
    """

    def side(dims: np.ndarray) -> dict[str, Any]:
        mean, variance = (columns[name][dims] for name in ("mean", "variance"))
        medians = {"variance": variance, "mean_to_deviation": _ratio(mean, variance)}
        return {"dims": int(dims.sum())} | {k: _median(v) for k, v in medians.items()}

    sound = columns["support"] >= MIN_SUPPORT
    a, b = side(sound & conflicting), side(sound & ~conflicting)
    holds = None
    if a["dims"] and b["dims"]:
        smaller = a["mean_to_deviation"] < b["mean_to_deviation"]
        holds = bool(smaller and a["variance"] > b["variance"])
    return {"conflicting": a, "others": b, "holds": holds}


def _ratio(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """|mean| / standard deviation."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.abs(mean) / np.sqrt(variance)


def _median(values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else None


def record(
    model: Encoder, pixels: np.ndarray, labels: np.ndarray | None, recipe: Recipe, epoch: int,
    batches: int = 10,
) -> dict[str, Any]:  # fmt: skip
    """Gradient dynamics of a model in training, ready for JSON; the model is left as it was.

    The model runs in eval mode on `batches` batches of training views, drawn from the run's seed
    and the epoch, but not those of training. The summary is that of the gated features; `readings`
    has the correlations for `z` and `raw`. Without labels [N] those with the consistency are None.
    """
    size = min(recipe.run.batch, len(pixels))
    order = np.random.default_rng((recipe.run.seed, epoch, 1)).permutation(len(pixels))
    chosen = [order[s : s + size] for s in range(0, len(order) - size + 1, size)][:batches]
    device = model.mean.device
    index = None if labels is None else np.unique(labels, return_inverse=True)[1]
    classes = 0 if index is None else int(index.max()) + 1
    temperature = recipe.objective.temperature
    statistics = {name: Statistics(classes) for name in ("gated", "z", "raw")}
    with in_eval_mode(model):
        for rows in chosen:
            images, numbers = (torch.from_numpy(each).to(device) for each in (pixels[rows], rows))
            views = make_views(images, numbers, epoch, recipe.run.seed + 1, recipe.views)
            known = None if index is None else torch.from_numpy(index[rows]).to(device)
            with torch.no_grad():
                h = model.embed(model.normalize_pixels(views))
            features = model.head(h)
            readings = features.gated, features.z, features.aux
            found = gradients(features.gated, readings, temperature)
            for (name, each), g in zip(statistics.items(), found):
                z = features.gated if name == "gated" else features.z
                each.add(z.detach(), g, known, temperature)
    columns = {name: each.columns() for name, each in statistics.items()}
    levels = {"paper": 1, "sound": MIN_SUPPORT}
    rows_seen = statistics["gated"].rows
    row = {"epoch": epoch, "batches": len(chosen), "mode": "eval", "rows": rows_seen}
    row |= summarize(columns["gated"])
    row["readings"] = {
        name: {key: correlations(columns[name], support) for key, support in levels.items()}
        for name in ("z", "raw")
    }
    return row


def recorder(images: Images, recipe: Recipe) -> Callable[[Encoder, int], dict[str, Any] | None]:
    """Function of (model, epoch) for `train` to call after every epoch; a dict is logged."""
    if recipe.model.head != "projector" or recipe.objective.similarity != "dot":
        raise InputError(
            "run.dynamics_every: gradient dynamics are those of the paper's head and loss, "
            "model.head=projector and objective.similarity=dot"
        )

    def after_epoch(model: Encoder, epoch: int) -> dict[str, Any] | None:
        if epoch % recipe.run.dynamics_every:
            return None
        return {"kind": "dynamics", **record(model, images.pixels, images.labels, recipe, epoch)}

    return after_epoch
